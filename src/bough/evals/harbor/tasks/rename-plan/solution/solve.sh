#!/bin/bash
set -euo pipefail
cd /app
python3 -I - <<'PY'
import csv
import os
import re

taken = set()
with open("names.txt") as source, open("plan.csv", "w", newline="") as target:
    writer = csv.writer(target)
    writer.writerow(["old", "new"])
    for old in source.read().splitlines():
        stem, extension = os.path.splitext(old)
        stem = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
        new, number = stem + extension.lower(), 1
        while new in taken:
            number += 1
            new = f"{stem}-{number}{extension.lower()}"
        taken.add(new)
        writer.writerow([old, new])
PY
