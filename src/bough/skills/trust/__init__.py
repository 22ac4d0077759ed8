"""Whether a skill may be used: digests, trust, lock file, scan, snapshots."""
