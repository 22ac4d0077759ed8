"""What the stores that speak SQL have in common: the same named statements, in two dialects."""
