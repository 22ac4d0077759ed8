#!/bin/bash
# Writes the reward, 0 to 1. Without python3 nothing can be said of the answer, so nothing is written.
command -v python3 >/dev/null || { echo "python3 is missing" >&2; exit 3; }
python3 -I /tests/check.py > /logs/verifier/reward.txt
