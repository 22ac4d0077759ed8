"""Tasks in Harbor's format: an instruction, an image, and a test script that scores the result."""
