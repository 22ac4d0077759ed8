"""Forks: where they cut, how they are made, compared, and what files they get."""
