"""AG-UI: a front end runs an agent, watches its run, and answers its interrupts. A thread is a conversation."""
