"""One turn at the keyboard: running it, asking for approvals, showing its result."""
