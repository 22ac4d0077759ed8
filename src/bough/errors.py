"""Every error bough raises on purpose, with its code, HTTP status and exit code.

BoughError
├── InvalidInput            a value the caller gave is wrong
│   ├── Malformed           it cannot be read at all
│   └── TooLarge            it is longer than what is taken
├── NotFound                the thing named does not exist
├── PermissionDenied        policy, trust or tenancy forbids it
│   └── Unauthenticated     nobody knows who asks
├── Conflict                it exists, is running, or has moved on
│   ├── InvalidTransition   a state change the state machine does not allow
│   └── Stale               it is no longer what the caller saw
├── LimitExceeded           a budget or bound was reached
├── Unavailable             something needed is not there (now)
│   └── SandboxUnavailable  no isolation that is strong enough works here
├── StoreError              the event log could not be read or written
│   └── CorruptLog          what is stored does not add up
├── ExecutorError           a script could not be run at all
├── ModelError              the model failed or answered nonsense
├── ConnectError            an MCP or A2A peer failed
├── NotSupported            bough does not do this
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
"""The one table: error code -> (HTTP status, exit code). Codes are stable; more may be added."""


class BoughError(Exception):
    """An error with a stable `code`, a `message` that says what, and a `hint` that says how to fix it.

    Args:
        message: What is wrong, in one sentence.
        hint: What the reader can do about it; empty when there is nothing to do.
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
        """The HTTP status a server answers with."""
        return OUTCOMES[self.code].http_status

    @property
    def exit_code(self) -> int:
        """The exit code the command line ends with."""
        return OUTCOMES[self.code].exit_code

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON: `code`, `message`, and `hint` and `details` where there are any."""
        out: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.hint:
            out["hint"] = self.hint
        if self.details:
            out["details"] = self.details
        return out


class InvalidInput(BoughError):
    """A value the caller gave is wrong; nothing was changed."""

    code = "invalid_input"


class Malformed(InvalidInput):
    """What was sent cannot be read at all: no JSON, a bad encoding, a bad header."""

    code = "malformed"


class TooLarge(InvalidInput):
    """What was sent is longer than what is taken."""

    code = "too_large"


class NotFound(BoughError):
    """The thing named does not exist."""

    code = "not_found"


class PermissionDenied(BoughError):
    """A policy, missing trust or another tenant's ownership forbids it."""

    code = "permission_denied"


class Unauthenticated(PermissionDenied):
    """No key was given, or it is unknown, wrong, expired or revoked: all of these look the same."""

    code = "unauthenticated"


class Conflict(BoughError):
    """It exists already, is running elsewhere, or has moved on since it was read."""

    code = "conflict"


class InvalidTransition(Conflict):
    """A state change that the state machine does not allow."""

    code = "invalid_transition"


class Stale(Conflict):
    """It has changed since the caller saw it; `details["head"]` says what it is now."""

    code = "stale"


class LimitExceeded(BoughError):
    """A budget, bound or quota was reached."""

    code = "limit_exceeded"


class Unavailable(BoughError):
    """Something the work needs is not there, or not now."""

    code = "unavailable"


class SandboxUnavailable(Unavailable):
    """No isolation of the wanted strength works on this machine; nothing was run."""

    code = "sandbox_unavailable"


class StoreError(BoughError):
    """The event log could not be read or written; what was acknowledged is still there."""

    code = "store_error"


class CorruptLog(StoreError):
    """What is stored does not add up; `details` says what is readable."""

    code = "corrupt_log"


class ExecutorError(BoughError):
    """A script could not be run at all (as opposed to a script that ran and failed)."""

    code = "executor_error"


class ModelError(BoughError):
    """The model failed, or answered something that cannot be used."""

    code = "model_error"


class ConnectError(BoughError):
    """An MCP server or A2A agent could not be reached or spoke nonsense."""

    code = "connect_error"


class NotSupported(BoughError):
    """bough does not do this; the hint names what does the same."""

    code = "not_supported"


class Interrupted(BoughError):
    """A person or a signal stopped the work; it can be resumed."""

    code = "interrupted"


OPERATORS_CODES = frozenset({"store_error", "corrupt_log", "unavailable"})
"""Codes of errors about what the operator keeps: their messages may name its files and databases."""

_STORE_PREFIX = re.compile(r"(?:/[^:]*|(?:postgres\w*|sqlite)\S*://\S*): ")
_DATABASE_ANSWER = re.compile(r" \(.*\)$", re.DOTALL)
_PLACE = re.compile(r"(?:postgres\w*|sqlite)://\S+|(?<![\w.:/@-])/[\w.~-][^\s:,'\"()]*")


def hide_places(code: str, message: str) -> str:
    """Return the message of an error without paths and addresses of the operator's, for everybody else.

    Args:
        code: The code of the error; only messages about what the operator keeps are changed.
    """
    if code not in OPERATORS_CODES:
        return message
    if prefix := _STORE_PREFIX.match(message):
        message = message[prefix.end() :]
        if prefix[0].startswith("postgres"):  # its server's own words name hosts
            message = _DATABASE_ANSWER.sub("", message)
    return _PLACE.sub("a file of the server", message)


def public_message(error: BoughError) -> str:
    """Return the message of an error for people who are not the operator: see `hide_places`."""
    message, path = error.message, error.details.get("path")
    if error.code in OPERATORS_CODES and path:
        message = message.removeprefix(f"{path}: ").replace(str(path), "a file of the server")
    return hide_places(error.code, message)


def explain_error(error: BoughError) -> str:
    """Return code, message and hint in one line, for protocols that carry a text; see `public_message`."""
    return f"{error.code}: {public_message(error)}" + (f" ({error.hint})" if error.hint else "")
