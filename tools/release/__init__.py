"""What a release must be: `make release-check`."""
