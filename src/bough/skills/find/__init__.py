"""Finding skills: discovery, index, search, catalogue, checks."""
