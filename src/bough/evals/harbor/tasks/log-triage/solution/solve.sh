#!/bin/bash
set -euo pipefail
cd /app
python3 -I - <<'PY'
import json
import re

with open("units.log") as source:
    found = sorted(line for line in source if re.match(r"\S+ \w+: failed: ", line))
time, unit, reason = re.match(r"(\S+) (\w+): failed: (.*)", found[0]).groups()
with open("first.json", "w") as target:
    json.dump({"unit": unit, "time": time, "reason": reason}, target)
PY
