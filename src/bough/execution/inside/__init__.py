"""Programs that run on the inside of the sandbox; they import the standard library alone, and little of it."""
