"""`bough tasks`: a module for looking at tasks, and one for what is said to them."""
