"""Which skills a message or a file path activates, and with what inputs."""
