"""How much a caller may ask for, and how the same request twice is one."""
