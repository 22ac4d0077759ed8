"""Changes of a state: what has its form is applied, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bough.conversation.log.state import State, read_changes
from bough.events.model import StateChanged

JUNK: tuple[Any, ...] = (7, ["x", 1], {"x": 1}, True, [None], 0.5)
WRONG = [
    *(("status", junk) for junk in (*JUNK, None, "dancing")),
    *(("title", junk) for junk in JUNK),
    *(("tags", junk) for junk in (*JUNK, None, "x")),
    *(("workspace", junk) for junk in (*JUNK, None)),
    *(("agent", junk) for junk in (*JUNK, None, {"name": 1}, {"name": "a", "model": 2})),
    *(("waiting", junk) for junk in (*JUNK, None, "x", {"a": {"risk": 1}}, {"a": {"request": {"choices": 1}}})),
    *(("edited", junk) for junk in (*JUNK, None, {"a": {"after": 1, "by": "ada"}}, {"a": {"after": {}}})),
    *(("approved", junk) for junk in (*JUNK, None, "x")),
]


@pytest.mark.parametrize(("name", "junk"), WRONG)
def test_a_change_of_a_wrong_form_changes_nothing(name: str, junk: Any) -> None:
    state = State(title="before", workspace=Path("w"), agent={"name": "a"}, tags={"t": "v"})
    before = state.copy()
    state.apply(0, StateChanged(changes={name: junk}))
    state.head, state.last_id = before.head, before.last_id
    assert state == before


def test_a_rule_of_a_wrong_form_leaves_the_rule_in_force() -> None:
    state = State(policies={"policy": {"kind": "AlwaysConfirm"}, "limits": {"steps": 1}})
    state.apply(0, StateChanged(changes={"policies": {"policy": None, "limits": 9, "hooks": "x", "total": None}}))
    assert state.policies == {"policy": {"kind": "AlwaysConfirm"}, "limits": {"steps": 1}, "total": None}


def test_what_has_its_form_is_kept() -> None:
    changes: dict[str, Any] = {
        "status": "paused",
        "title": None,
        "waiting": {"a": {"tool": "t", "risk": None, "request": {"question": "?", "choices": ["yes"]}}},
        "edited": {"a": {"after": {"x": 1}, "by": "ada"}},
        "policies": {"secrets": ["A"], "sealed": {"A": "id"}, "hooks": [{"command": "x"}], "later": 9},
        "later": [1],
    }
    assert read_changes(changes) == changes
