"""What keeps a run away from the machine: namespaces, Landlock, the system-call filter."""
