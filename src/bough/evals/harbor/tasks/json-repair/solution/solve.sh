#!/bin/bash
set -euo pipefail
cd /app
python3 -I - <<'PY'
import json
import os
import re

os.makedirs("fixed", exist_ok=True)
for name in os.listdir("broken"):
    with open(f"broken/{name}", encoding="utf-8-sig") as source:
        text = source.read()
    text = re.sub(r"^\s*//.*$|/\*.*?\*/", "", text, flags=re.M)
    if name == "quotes.json":
        text = text.replace("\\'", "\0").replace("'", '"').replace("\0", "'")
    text = re.sub(r"\bNaN\b", "null", text)
    text = re.sub(r",\s*([\]}])", r"\1", text)
    text = re.sub(r"([{,]\s*)(\w+):", r'\1"\2":', text)
    text = text.strip() + "}" * (text.count("{") - text.count("}"))
    with open(f"fixed/{name}", "w") as target:
        json.dump(json.loads(text), target)
PY
