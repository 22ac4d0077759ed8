"""The folders of runs: a large one is removed after the result is returned, and none is left at the end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bough import tree
from bough.execution import CodeExecutionInput, UnsafeLocalCodeExecutor
from bough.execution.process import run_directory


def fill(folder: Path) -> None:
    """Make folders, deep and wide, and files in them."""
    for number in range(50):
        below = folder / str(number) / "deep" / "deeper"
        below.mkdir(parents=True)
        (below / "file").write_text("x")
        (folder / str(number) / "empty").mkdir()


def test_a_removal_that_was_cut_short_can_be_continued(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for left in (0, 1, 20, 120):
        folder.mkdir(exist_ok=True)
        fill(folder)
        asked = iter(range(left))
        assert not tree.remove(str(folder), should_stop=lambda asked=asked: next(asked, None) is None)
        assert folder.exists()
        assert tree.remove(str(folder))
        assert not folder.exists()


@pytest.fixture
def slow_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder in which the folder of each run is too large to be removed before its result."""
    tmp_path.chmod(0o711)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(run_directory, "REMOVE_SECONDS", 0.0)
    return tmp_path


async def leave_folders() -> UnsafeLocalCodeExecutor:
    """Return an executor of which a run left 300 folders."""
    executor = UnsafeLocalCodeExecutor()
    code = "import os\nfor n in range(300): os.makedirs(f'{n}/deep')"
    assert (await executor.execute(CodeExecutionInput(code=code))).ok
    return executor


@pytest.mark.anyio
async def test_a_result_does_not_wait_for_the_removal_of_a_large_folder(
    slow_removal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []

    class CountingRemover(run_directory.Remover):
        def add(self, folder: str) -> None:
            left.append(len(os.listdir(os.path.join(folder, "work"))))
            super().add(folder)

    monkeypatch.setattr(run_directory, "Remover", CountingRemover)
    executor = await leave_folders()
    assert left == [300]
    await executor.aclose()
    assert os.listdir(slow_removal) == []


@pytest.mark.anyio
async def test_closing_waits_only_so_long_and_the_janitor_removes_the_rest(
    slow_removal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_directory, "CLOSE_SECONDS", 0.0)
    monkeypatch.setattr(run_directory.Remover, "add", lambda *_: None)
    executor = await leave_folders()
    await executor.aclose()
    deadline = time.monotonic() + 20
    while os.listdir(slow_removal) and time.monotonic() < deadline:
        os.sched_yield()
    assert os.listdir(slow_removal) == []
