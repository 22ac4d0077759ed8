"""Programs that run on the other side of the wall; they import the standard library alone, and little of it."""
