"""Search over what was said and answered: how text is split into words, how queries are read, and the index."""
