"""Formats that sets of cases are read from: `read` detects the format of a path."""
