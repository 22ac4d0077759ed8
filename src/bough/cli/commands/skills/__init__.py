"""`bough skills`: the commands for skills."""
