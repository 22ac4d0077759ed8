"""Print the first failing line of a log of unit states."""

# pyright: basic
import re
import sys

with open(sys.argv[1]) as source:
    print(min(line.strip() for line in source if re.match(r"\S+ \w+: failed: ", line)))
