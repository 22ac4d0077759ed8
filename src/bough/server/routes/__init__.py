"""One file a resource; a route parses, calls and answers."""
