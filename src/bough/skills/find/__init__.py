"""Which skills there are: discovery, index, search, catalog, checks."""
