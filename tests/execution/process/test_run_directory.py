"""The folders of runs: what is large is removed behind the result, and nothing is left at the end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bough.execution import CodeExecutionInput, UnsafeLocalCodeExecutor
from bough.execution.process import run_directory
from bough.execution.process.files import remove_tree


def fill(folder: Path) -> None:
    """Make folders, deep and wide, and files in them."""
    for number in range(50):
        below = folder / str(number) / "deep" / "deeper"
        below.mkdir(parents=True)
        (below / "file").write_text("x")
        (folder / str(number) / "empty").mkdir()


def test_a_removal_that_is_cut_short_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for left in (0, 1, 20, 120):
        folder.mkdir(exist_ok=True)
        fill(folder)
        asked = iter(range(left))
        assert not remove_tree(str(folder), is_over=lambda asked=asked: next(asked, None) is None)
        assert folder.exists()
        assert remove_tree(str(folder))
        assert not folder.exists()


@pytest.mark.anyio
async def test_a_result_does_not_wait_for_the_removal_of_a_large_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o711)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(run_directory, "REMOVE_SECONDS", 0.0)  # every folder is large
    removed: list[str] = []
    taken: list[str] = []

    class Noting(run_directory.Remover):
        def add(self, folder: str) -> None:
            taken.append(folder)
            removed.extend(name for name in os.listdir(os.path.dirname(folder)) if name == "0")
            super().add(folder)

    monkeypatch.setattr(run_directory, "Remover", Noting)
    executor = UnsafeLocalCodeExecutor()
    code = "import os\nfor n in range(300): os.makedirs(f'{n}/deep')"
    assert (await executor.execute(CodeExecutionInput(code=code))).ok
    assert (len(taken), removed) == (1, [])
    await executor.aclose()
    assert os.listdir(tmp_path) == []


@pytest.mark.anyio
async def test_closing_does_not_wait_for_ever_and_the_rest_is_removed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o711)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(run_directory, "REMOVE_SECONDS", 0.0)
    monkeypatch.setattr(run_directory, "CLOSE_SECONDS", 0.0)  # not one name is waited for
    monkeypatch.setattr(run_directory.Remover, "add", lambda *_: None)
    executor = UnsafeLocalCodeExecutor()
    code = "import os\nfor n in range(300): os.makedirs(f'{n}/deep')"
    assert (await executor.execute(CodeExecutionInput(code=code))).ok
    await executor.aclose()
    deadline = time.monotonic() + 20
    while os.listdir(tmp_path) and time.monotonic() < deadline:
        os.sched_yield()
    assert os.listdir(tmp_path) == []
