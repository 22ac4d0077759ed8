"""Programs that run inside the sandbox; they import little, and only from the standard library."""
