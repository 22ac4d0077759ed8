"""Models of bough's own, and the way from a model string to any other."""
