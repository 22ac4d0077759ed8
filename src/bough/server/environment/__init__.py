"""The environment of a server's conversations: agents by name, folders, the executor, commands."""
