"""Whether a skill may be used: trust, lock file, scan, installation."""
