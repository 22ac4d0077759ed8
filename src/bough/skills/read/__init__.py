"""Skills as data: lenient and strict reading, what is repaired, and the files beside the instructions."""
