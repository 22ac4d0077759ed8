#!/bin/bash
set -euo pipefail
cd /app
python3 -I - <<'PY'
import csv

total = 0
with open("ledger.csv", newline="") as source:
    for row in csv.DictReader(source):
        if row["account"].startswith("#") or row["status"] != "booked" or row["currency"] != "EUR":
            continue
        text = row["amount"].replace(",", "")
        cents = round(float(text.strip("()")) * 100)
        total += -cents if text.startswith("(") else cents
with open("total.txt", "w") as target:
    target.write(f"{total / 100:.2f}\n")
PY
