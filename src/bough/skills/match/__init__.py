"""Which skills a message or a path activates, and with what inputs."""
