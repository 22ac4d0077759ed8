"""`bough conv`: the commands for conversations."""
