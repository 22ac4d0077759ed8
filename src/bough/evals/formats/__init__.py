"""Formats that sets of cases are read from: `read` says which one a path is."""
