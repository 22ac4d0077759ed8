"""What a command writes to stderr about the faults of other packages."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import logging
from bough.log import shorten_stderr

shorten_stderr()
for name in ("engine.worker", "bough.task"):
    try:
        try:
            raise OSError("connection refused\\nIs the server running?")
        except OSError as error:
            raise RuntimeError("no connector") from error
    except RuntimeError:
        logging.getLogger(name).exception("listener\\n  error")
"""


def test_an_error_of_another_package_is_one_line_with_its_cause() -> None:
    """An engine whose database is away logs a traceback at each attempt; bough's own faults keep theirs."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, *others = done.stderr.splitlines()
    assert first == "listener error: OSError: connection refused Is the server running?"
    assert "Traceback (most recent call last):" in others
