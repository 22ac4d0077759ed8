"""The processes of a run: their user, files, limits and network, their end and their result."""
