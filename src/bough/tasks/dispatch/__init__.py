"""What brings pending tasks to workers."""
