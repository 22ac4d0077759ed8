"""Prints 1 where the sum is right, else 0."""

# pyright: basic
import pathlib

try:
    print(int(pathlib.Path("/app/total.txt").read_text().strip() == "11501.01"))
except (OSError, ValueError):
    print(0)
