"""Isolating a run from the machine: namespaces, Landlock, the system-call filter."""
