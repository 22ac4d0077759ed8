"""Tasks in Harbor's form: an instruction, an image, and a test script that decides."""
