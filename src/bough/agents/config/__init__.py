"""`config.yaml`: agents, models, servers and secrets by name."""
