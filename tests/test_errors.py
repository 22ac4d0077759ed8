"""One table of codes: every error class has a row, and exit codes stay what is documented."""

from __future__ import annotations

import bough.errors as errors
from bough.errors import OUTCOMES, BoughError, Conflict, NotFound

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, BoughError)]


def test_every_class_has_a_row() -> None:
    assert {cls.code for cls in CLASSES} <= OUTCOMES.keys()
    assert len({cls.code for cls in CLASSES}) == len(CLASSES), "a code says which class it was"


def test_documented_exit_codes() -> None:
    codes = {cls.__name__: cls("x").exit_code for cls in CLASSES}
    assert codes["InvalidInput"] == 2
    assert codes["NotFound"] == 3
    assert codes["PermissionDenied"] == 4
    assert codes["LimitExceeded"] == 5
    assert codes["Unavailable"] == codes["SandboxUnavailable"] == codes["StoreError"] == 6
    assert codes["Conflict"] == 7
    assert codes["Interrupted"] == 130
    assert OUTCOMES["timeout"].exit_code == 124


def test_statuses_are_errors() -> None:
    assert all(400 <= outcome.http_status < 600 and outcome.exit_code for outcome in OUTCOMES.values())


def test_as_json() -> None:
    error = NotFound("no such thing", hint="look there", details={"name": "x"})
    assert error.as_dict() == {
        "code": "not_found",
        "message": "no such thing",
        "hint": "look there",
        "details": {"name": "x"},
    }
    assert Conflict("taken").as_dict() == {"code": "conflict", "message": "taken"}
