"""The errors that bough raises deliberately, each with its code, HTTP status and exit code.

BoughError
├── InvalidInput            a value from the caller is invalid
│   ├── Malformed           the value cannot be parsed
│   └── TooLarge            the value exceeds a size limit
├── NotFound                the requested object does not exist
├── PermissionDenied        a policy, missing trust or tenancy forbids the request
│   └── Unauthenticated     the key is missing or not valid
├── Conflict                the object exists, is running, or has changed
│   ├── InvalidTransition   the state machine does not allow the change of state
│   └── Stale               the object has changed since the caller read it
├── LimitExceeded           a budget, limit or quota was reached
├── Unavailable             a requirement is missing or temporarily unavailable
│   └── SandboxUnavailable  no sandbox with the required isolation works here
├── StoreError              the event log could not be read or written
│   └── CorruptLog          the stored data is inconsistent
├── ExecutorError           a script could not be started
├── ModelError              the model failed or returned an unusable response
├── ConnectError            an MCP or A2A peer failed
├── NotSupported            bough does not support the request
└── Interrupted             a person or a signal stopped the work
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """What an error code means outside Python: the HTTP status and the process exit code."""

    http_status: int
    exit_code: int


OUTCOMES: Mapping[str, Outcome] = {
    "internal": Outcome(500, 1),
    "malformed": Outcome(400, 2),
    "too_large": Outcome(413, 2),
    "invalid_input": Outcome(422, 2),
    "not_found": Outcome(404, 3),
    "unauthenticated": Outcome(401, 4),
    "permission_denied": Outcome(403, 4),
    "limit_exceeded": Outcome(429, 5),
    "unavailable": Outcome(503, 6),
    "sandbox_unavailable": Outcome(503, 6),
    "conflict": Outcome(409, 7),
    "invalid_transition": Outcome(409, 7),
    "stale": Outcome(412, 7),
    "store_error": Outcome(503, 6),
    "corrupt_log": Outcome(500, 6),
    "executor_error": Outcome(502, 1),
    "model_error": Outcome(502, 1),
    "connect_error": Outcome(502, 6),
    "not_supported": Outcome(501, 2),
    "timeout": Outcome(504, 124),
    "interrupted": Outcome(499, 130),
}
"""HTTP status and exit code of each error code. Codes are stable; more may be added."""


class BoughError(Exception):
    """An error with a stable `code`, a `message` that describes it, and a `hint` that says how to fix it.

    Args:
        message: What is wrong, in one sentence.
        hint: What the reader can do about it; may be empty.
        details: JSON values for programs; never a secret.
        code: A key of `OUTCOMES`; each class has its own default.
    """

    code: str = "internal"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        details: Mapping[str, Any] | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, Any] = dict(details or {})
        if code is not None:
            self.code = code

    @property
    def http_status(self) -> int:
        """The HTTP status of a server's response."""
        return OUTCOMES[self.code].http_status

    @property
    def exit_code(self) -> int:
        """The exit code of the command line."""
        return OUTCOMES[self.code].exit_code

    def as_dict(self) -> dict[str, Any]:
        """Return the error as JSON: `code` and `message`, and `hint` and `details` unless they are empty."""
        data: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.hint:
            data["hint"] = self.hint
        if self.details:
            data["details"] = self.details
        return data


class InvalidInput(BoughError):
    """A value from the caller is invalid; nothing was changed."""

    code = "invalid_input"


class Malformed(InvalidInput):
    """A request cannot be parsed: invalid JSON, encoding or header."""

    code = "malformed"


class TooLarge(InvalidInput):
    """A request or value exceeds a size limit."""

    code = "too_large"


class NotFound(BoughError):
    """The requested object does not exist."""

    code = "not_found"


class PermissionDenied(BoughError):
    """A policy, missing trust or another tenant's ownership forbids the request."""

    code = "permission_denied"


class Unauthenticated(PermissionDenied):
    """The key is missing, unknown, wrong, expired or revoked; the error does not say which."""

    code = "unauthenticated"


class Conflict(BoughError):
    """The object exists already, is running elsewhere, or has changed since it was read."""

    code = "conflict"


class InvalidTransition(Conflict):
    """The state machine does not allow the change of state."""

    code = "invalid_transition"


class Stale(Conflict):
    """The object has changed since the caller read it; `details["head"]` is its current head."""

    code = "stale"


class LimitExceeded(BoughError):
    """A budget, limit or quota was reached."""

    code = "limit_exceeded"


class Unavailable(BoughError):
    """Something that the work requires is missing or temporarily unavailable."""

    code = "unavailable"


class SandboxUnavailable(Unavailable):
    """No sandbox with the required isolation works on this machine; nothing was run."""

    code = "sandbox_unavailable"


class StoreError(BoughError):
    """The event log could not be read or written; acknowledged events are not lost."""

    code = "store_error"


class CorruptLog(StoreError):
    """The stored data is inconsistent; `details` says what is readable."""

    code = "corrupt_log"


class ExecutorError(BoughError):
    """A script could not be started, as opposed to a script that ran and failed."""

    code = "executor_error"


class ModelError(BoughError):
    """The model failed, or returned an unusable response."""

    code = "model_error"


class ConnectError(BoughError):
    """An MCP server or A2A agent could not be reached, or sent an invalid response."""

    code = "connect_error"


class NotSupported(BoughError):
    """bough does not support the request; the hint names an alternative."""

    code = "not_supported"


class Interrupted(BoughError):
    """A person or a signal stopped the work; it can be resumed."""

    code = "interrupted"


OPERATORS_CODES = frozenset({"store_error", "corrupt_log", "unavailable"})
"""Codes of errors in the operator's systems. Their messages may name the operator's files and databases."""

_STORE_PREFIX = re.compile(r"(?:/[^:]*|(?:postgres\w*|sqlite)\S*://\S*): ")
_DATABASE_MESSAGE = re.compile(r" \(.*\)$", re.DOTALL)
_LOCATION = re.compile(r"(?:postgres\w*|sqlite)://\S+|(?<![\w.:/@-])/[\w.~-][^\s:,'\"()]*")


def hide_places(code: str, message: str) -> str:
    """Return an error message without the operator's paths and addresses, for other people.

    Args:
        code: The code of the error; messages are changed only for `OPERATORS_CODES`.
    """
    if code not in OPERATORS_CODES:
        return message
    if prefix := _STORE_PREFIX.match(message):
        message = message[prefix.end() :]
        if prefix[0].startswith("postgres"):  # PostgreSQL's own message may name hosts
            message = _DATABASE_MESSAGE.sub("", message)
    return _LOCATION.sub("a file of the server", message)


def public_message(error: BoughError) -> str:
    """Return the message of an error for people who are not the operator, as `hide_places` does."""
    message, path = error.message, error.details.get("path")
    if error.code in OPERATORS_CODES and path:
        message = message.removeprefix(f"{path}: ").replace(str(path), "a file of the server")
    return hide_places(error.code, message)


def explain_error(error: BoughError) -> str:
    """Return code, public message and hint as one line, for protocols whose errors are plain text."""
    return f"{error.code}: {public_message(error)}" + (f" ({error.hint})" if error.hint else "")
