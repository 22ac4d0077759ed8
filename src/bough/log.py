"""Log records as JSON, one line each; opt-in, since logging is for the program to set up that uses bough."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Writes a record's time, level, logger and message, and every field that was given with it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = {key: value for key, value in vars(record).items() if key not in _STANDARD and value is not None}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry | fields, default=str)


def json_to_file(path: Path) -> logging.Handler:
    """Have everything that bough logs appended to a file as JSON, and return the handler.

    Raises:
        OSError: The file cannot be written.
    """
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(JsonFormatter())
    log = logging.getLogger("bough")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    return handler


class OneLineFormatter(logging.Formatter):
    """Writes what other packages log in one line with the cause of an error; what bough logs stays unchanged.

    While a database is away, each attempt to reach it fails: its traceback would tell nothing more.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text."""
        if record.name.partition(".")[0] == "bough":
            return super().format(record)
        message = " ".join(record.getMessage().split())
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return message
        while error.__cause__ is not None:
            error = error.__cause__
        return f"{message}: {type(error).__name__}: {' '.join(str(error).split())}"


def shorten_stderr() -> None:
    """Have what other packages log to stderr written in one line each, where the program has set up no logging."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(OneLineFormatter())
