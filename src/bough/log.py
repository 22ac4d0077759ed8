"""Log records as JSON, one per line. Opt-in, because the program that uses bough configures logging."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record's time, level, logger and message, and the fields passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        data = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = {key: value for key, value in vars(record).items() if key not in _STANDARD and value is not None}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(data | fields, default=str)


def json_to_file(path: Path) -> logging.Handler:
    """Append bough's log records to a file as JSON, and return the handler.

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
    """Formats records of other packages as one line with the root cause of an error; bough's records are unchanged.

    While a database is unreachable, every attempt to connect logs an error, and tracebacks would add nothing.
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
    """Write log records of other packages to stderr as one line each, if the program has not configured logging."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(OneLineFormatter())
