"""The formats of sets of cases; `read` detects the format of a path."""
