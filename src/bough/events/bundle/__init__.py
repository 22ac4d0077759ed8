"""A conversation as one signed file: written, checked whole, read."""
