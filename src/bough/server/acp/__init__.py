"""The Agent Client Protocol: conversations in editors, over the standard streams of a process."""
