"""One table of codes: every error class has a row, and exit codes stay what is documented."""

from __future__ import annotations

import pytest

import bough.errors as errors
from bough.errors import (
    OUTCOMES,
    BoughError,
    Conflict,
    InvalidInput,
    NotFound,
    StoreError,
    Unavailable,
    public_message,
)

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


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (StoreError("/srv/a b/log.db: the disk is full", details={"path": "/srv/a b/log.db"}), "the disk is full"),
        (StoreError("cannot write to /srv/x: No space left"), "cannot write to a file of the server: No space left"),
        (StoreError("postgresql://me@db:5432/x: it cannot be reached (at 10.0.0.7)"), "it cannot be reached"),
        (StoreError("the store sqlite:////srv/log.db is closed"), "the store a file of the server is closed"),
        (Unavailable("http://127.0.0.1/v1 does not answer"), "http://127.0.0.1/v1 does not answer"),
        (InvalidInput("/work/x: not a folder"), "/work/x: not a folder"),
    ],
)
def test_messages_for_others_than_the_operator_name_none_of_its_places(error: BoughError, message: str) -> None:
    assert public_message(error) == message
