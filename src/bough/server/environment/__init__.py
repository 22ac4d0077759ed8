"""What the conversations of a server work with: agents by name, folders, the executor, commands."""
