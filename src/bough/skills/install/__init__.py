"""What comes in from elsewhere, and what a person agrees to: sources, archives, reviews, the changes of the lock."""
