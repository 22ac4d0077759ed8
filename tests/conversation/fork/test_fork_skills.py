"""A fork shares the skills of its source: none is looked for, read or rendered again, however many there are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from bough import AgentSpec, AsyncConversation, Settings
from bough.skills.find import catalog, discover, index
from bough.skills.read import parse
from bough.testing import ScriptedModel

pytestmark = pytest.mark.anyio

_SKILL = "---\nname: skill-{0}\ndescription: Does thing {0}.\n---\nDo thing {0}.\n"
_MODULES = {str(module.__file__) for module in (catalog, discover, index, parse)}


@contextmanager
def _count_calls() -> Iterator[dict[str, int]]:
    """Count calls of what finds, reads and renders skills, by name of the function."""
    calls: dict[str, int] = {}

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename in _MODULES:
            calls[frame.f_code.co_name] = calls.get(frame.f_code.co_name, 0) + 1

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


_active: list[tuple[str, list[str]]] = []


def _note_touched(event: str, arguments: tuple[Any, ...]) -> None:
    if _active and event in ("open", "os.scandir", "os.listdir"):
        folder, touched = _active[-1]
        if str(arguments[0]).startswith(folder):
            touched.append(f"{event} {arguments[0]}")


sys.addaudithook(_note_touched)  # cannot be taken back; outside of `_list_touched` it does nothing


@contextmanager
def _list_touched(folder: Path) -> Iterator[list[str]]:
    """List files below a folder that are opened, and folders that are read."""
    _active.append((str(folder), []))
    try:
        yield _active[-1][1]
    finally:
        _active.pop()


@pytest.mark.parametrize("overrides", [{}, {"system_prompt": "Be brief."}, {"model": "offline"}])
async def test_a_fork_reads_no_skill_again(tmp_path: Path, overrides: dict[str, Any]) -> None:
    workspace = tmp_path / "work"
    for number in range(20):
        folder = workspace / ".agents" / "skills" / f"skill-{number}"
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(_SKILL.format(number))
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    spec = AgentSpec(model=ScriptedModel(["first", "second"]), discover_skills=True)
    made = await AsyncConversation.create(
        spec, workspace=workspace, store=f"sqlite:///{tmp_path}/log.db", settings=settings
    )
    async with made as source:
        await source.send_message("hello")
        await source.run()
        with _list_touched(workspace) as touched, _count_calls() as calls:
            fork = await source.fork(overrides=overrides)
        assert touched == []
        assert calls == {}
        async with fork:
            assert fork.skills.get("skill-7").body.strip() == "Do thing 7."
            assert "skill-7" in fork.state.instructions
            assert ("Be brief." in fork.state.instructions) == ("system_prompt" in overrides)
            if "model" not in overrides:
                await fork.send_message("and now?")
                assert (await fork.run()).output == "second"
