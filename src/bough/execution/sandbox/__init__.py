"""What keeps a run away from the machine: namespaces, Landlock, system-call filter, user, control group, network."""
