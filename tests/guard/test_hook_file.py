"""Files of hooks: every shape that OpenHands and Claude Code write, and every mistake in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bough.errors import InvalidInput
from bough.guard import HookKind, HookSet
from bough.guard.hook_file import load_hooks

GROUP = [{"matcher": "Bash", "hooks": [{"type": "command", "command": "check.sh", "timeout": 5}]}]


def load(tmp_path: Path, value: Any, name: str = "hooks.json") -> HookSet:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return load_hooks(file)


@pytest.mark.parametrize("value", [{"hooks": {"PreToolUse": GROUP}}, {"PreToolUse": GROUP}, {"pre_tool_use": GROUP}])
def test_both_shapes_and_both_spellings_mean_the_same(value: Any, tmp_path: Path) -> None:
    (hook,) = load(tmp_path, value).hooks
    assert (hook.kind, hook.matcher, hook.command, hook.timeout_seconds) == (
        HookKind.PRE_TOOL_USE,
        "Bash",
        "check.sh",
        5,
    )
    assert hook.source == str(tmp_path / "hooks.json")


def test_every_kind_is_read(tmp_path: Path) -> None:
    group = [{"hooks": [{"command": "x"}]}]
    for names in ([kind.value for kind in HookKind], [kind.name.lower() for kind in HookKind]):
        hooks = load(tmp_path, {"hooks": {name: group for name in names}}).hooks
        assert [hook.kind for hook in hooks] == list(HookKind)
        assert {(hook.matcher, hook.timeout_seconds, hook.on_failure) for hook in hooks} == {("*", 60.0, "deny")}


def test_a_hook_says_what_its_failure_means(tmp_path: Path) -> None:
    item = {"type": "command", "command": "x", "onFailure": "continue", "async": True}
    (hook,) = load(tmp_path, {"PreToolUse": [{"hooks": [item]}]}).hooks
    assert (hook.on_failure, hook.waits) == ("continue", False)


def test_what_bough_has_no_moment_for_is_noted_and_harms_nothing(tmp_path: Path) -> None:
    value = {
        "hooks": {"PreCompact": GROUP, "PreToolUse": [{"hooks": [{"type": "prompt", "prompt": "?"}, {"command": "x"}]}]}
    }
    found = load(tmp_path, value)
    assert [hook.command for hook in found.hooks] == ["x"]
    assert any("PreCompact" in note for note in found.notes)
    assert any("prompt" in note for note in found.notes)


def test_a_settings_file_may_hold_other_things(tmp_path: Path) -> None:
    assert load(tmp_path, {"permissions": {"allow": ["Bash"]}}, ".claude/settings.json") == HookSet()
    assert len(load(tmp_path, {"permissions": {}, "hooks": {"Stop": GROUP}}, ".claude/settings.json").hooks) == 1


def test_no_file_is_no_hook(tmp_path: Path) -> None:
    assert load_hooks(tmp_path / "missing" / "hooks.json") == HookSet()


@pytest.mark.parametrize(
    "value",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        "x" * ((1 << 20) + 1),
        {"hooks": []},
        {"PreToolUse": {}},
        {"PreToolUse": ["x"]},
        {"PreToolUse": [{"hooks": {}}]},
        {"PreToolUse": [{"hooks": ["x"]}]},
        {"PreToolUse": [{"hooks": [{"type": "command"}]}]},
        {"PreToolUse": [{"hooks": [{"command": ["x"]}]}]},
        {"PreToolUse": [{"hooks": [{"command": "x", "timeout": "5"}]}]},
        {"PreToolUse": [{"hooks": [{"command": "x", "timeout": -1}]}]},
        {"PreToolUse": [{"hooks": [{"command": "x", "onFailure": "ignore"}]}]},
        {"PreToolUse": [{"matcher": "(", "hooks": [{"command": "x"}]}]},
        {"PreToolUse": [{"matcher": 3, "hooks": [{"command": "x"}]}]},
    ],
)
def test_a_broken_file_is_refused_by_name(value: Any, tmp_path: Path) -> None:
    """Going on without the hooks of a broken file would be continuing without a guard."""
    with pytest.raises(InvalidInput) as caught:
        load(tmp_path, value)
    assert "hooks.json" in caught.value.message
    assert caught.value.hint


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "hooks.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput):
        load_hooks(tmp_path / "hooks.json")
