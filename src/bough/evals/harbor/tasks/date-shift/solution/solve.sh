#!/bin/bash
set -euo pipefail
cd /app
python3 -I - <<'PY'
import csv
from datetime import datetime, timedelta

with open("meetings.csv", newline="") as source, open("shifted.csv", "w", newline="") as target:
    writer = csv.writer(target)
    writer.writerow(["name", "utc"])
    for row in csv.DictReader(source):
        local = datetime.strptime(row["local"], "%Y-%m-%d %H:%M")
        try:
            local = local.replace(year=local.year + 1)
        except ValueError:
            local = local.replace(year=local.year + 1, day=28)
        text = "+00:00" if row["offset"] == "Z" else row["offset"]
        offset = timedelta(hours=int(text[1:3]), minutes=int(text[4:])) * (-1 if text[0] == "-" else 1)
        writer.writerow([row["name"], (local - offset).strftime("%Y-%m-%dT%H:%MZ")])
PY
