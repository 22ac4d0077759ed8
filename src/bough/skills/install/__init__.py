"""Installing and updating skills: sources, archives, reviews, changes of the lock file."""
