"""The executor contract: input and output files, and the caller's workspace."""

# ruff: noqa: S108, D102, ASYNC240 - tests: their names say what they do
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bough.errors import InvalidInput
from bough.execution.base import (
    CodeExecutionInput,
    CodeExecutor,
    ExecutionLimits,
    File,
    Mount,
)
from bough.testing.executor_contract.base import Contract


class FilesContract(Contract):
    """Rules for input and output files, and the caller's workspace."""

    async def test_modules_of_the_program_may_have_any_name(self, executor: CodeExecutor) -> None:
        """Including the names of bough's own modules in the sandbox."""
        names = ("contained", "init", "keeper", "mounts", "program", "session", "zygote")
        files = [File(path=f"{name}.py", content=f"x = {name!r}".encode()) for name in names]
        code = f"import sys\nsys.path.insert(0, '.')\nimport {', '.join(names)}\n"
        code += f"print([each.x for each in ({', '.join(names)})] == {list(names)!r})"
        result = await self.run(executor, code, input_files=files)
        assert result.stdout == b"True\n", result.stderr

    async def test_input_files_nested_empty_binary_and_executable(self, executor: CodeExecutor) -> None:
        files = (
            File(path="a/b/c.bin", content=bytes(range(256))),
            File(path="empty", content=b""),
            File(path="run", content=b"#!/bin/sh\necho ran", mode=0o755),
            File(path="ü 木.txt", content=b"x"),
        )
        code = (
            "import os, subprocess\n"
            "assert open('a/b/c.bin', 'rb').read() == bytes(range(256))\n"
            "assert os.path.getsize('empty') == 0 and open('ü 木.txt').read() == 'x'\n"
            "print(subprocess.run(['./run'], capture_output=True).stdout)"
        )
        result = await self.run(executor, code, input_files=files)
        assert (result.stdout, result.stderr) == (b"b'ran\\n'\n", b"")
        assert result.output_files == ()

    @pytest.mark.parametrize(
        "name",
        [
            "../x",
            "/etc/x",
            "a/../../x",
            "",
            ".",
            "a//b",
            "a\0b",
            "a\\b",
            "a/",
            "./a",
            "x" * 300,
            "..",
            "a/./b",
            "\ud800",
        ],
    )
    async def test_unsafe_file_names_are_rejected(self, executor: CodeExecutor, name: str) -> None:
        with pytest.raises(InvalidInput):
            await self.run(executor, "pass", input_files=(File(path=name, content=b""),))

    @pytest.mark.parametrize(
        "request_",
        [
            {"working_dir": "../x"},
            {"working_dir": "/etc"},
            {"env": {"A=B": "x"}},
            {"env": {"A": "x\0y"}},
            {"argv": ("a\0b",)},
            {"language": "cobol"},
            {"workspace": "relative"},
            {"workspace": "/no/such/folder"},
            {"workspace": "/etc"},
            {"mounts": (Mount(source="/no/such/folder", target="/skill"),)},
            {"mounts": (Mount(source="/tmp", target="/usr/x"),)},
            {"mounts": (Mount(source="/tmp", target="skill"),)},
            {"mounts": (Mount(source="/tmp", target="/skill/../etc"),)},
            {"input_files": (File(path="a", content=b""), File(path="a", content=b""))},
            {"input_files": (File(path="a", content=b""), File(path="a/b", content=b""))},
            {"limits": ExecutionLimits(memory_bytes=-1)},
            {"limits": ExecutionLimits(work_bytes=10), "input_files": (File(path="a", content=b"x" * 11),)},
            {"command": ()},
            {"code": 5},
            {"argv": "a b"},
            {"argv": (1,)},
            {"stdin": 5},
            {"workspace": 5},
            {"env": {"A": 5}},
            {"limits": None},
            {"timeout_seconds": "3"},
            {"input_files": ("a",)},
            {"input_files": (File(path="a", content=5),)},  # type: ignore[arg-type]
            {"working_dir": "a\ud800"},
            {"script": "a.py"},
        ],
        ids=str,
    )
    async def test_bad_requests_are_refused_with_a_hint(self, executor: CodeExecutor, request_: dict[str, Any]) -> None:
        arguments: dict[str, Any] = {"code": "pass", **request_}
        with pytest.raises(InvalidInput) as caught:
            await executor.execute(CodeExecutionInput(**arguments))
        assert caught.value.hint

    @pytest.mark.parametrize("name", ["new\nline", "tab\t", "by\udcfftes", "\x1b[31m", "-rf", "*", "$HOME"])
    async def test_unusual_names_are_unchanged(self, executor: CodeExecutor, name: str) -> None:
        """A name may contain any bytes except NUL and slash; files with unprintable names are not returned."""
        code = (
            "import os\n"
            "name, = os.listdir('.')\n"
            "print(ascii(name))\n"
            "try: open(name, 'a').write('more')\n"
            "except OSError: print('not for writing')"  # by a supervisor that handles names only as text
        )
        result = await self.run(executor, code, input_files=(File(path=name, content=b"x"),))
        printed_name, *refused = result.stdout.decode().splitlines()
        assert printed_name == ascii(name)
        returned = {file.path: file.content for file in result.output_files}
        assert returned == ({name: b"xmore"} if name.isprintable() else {})
        assert len(returned) + len(result.output_skipped) + len(refused) == 1

    async def test_only_new_and_changed_files_are_returned(self, executor: CodeExecutor) -> None:
        files = (File(path="same", content=b"1"), File(path="other", content=b"1"))
        code = (
            "import os\n"
            "open('other', 'w').write('2')\n"
            "os.makedirs('deep/er')\n"
            "open('deep/er/new', 'wb').write(bytes(3))\n"
            "open('/tmp/elsewhere', 'w').write('x')"
        )
        result = await self.run(executor, code, input_files=files)
        assert {file.path: file.content for file in result.output_files} == {"other": b"2", "deep/er/new": bytes(3)}

    async def test_a_change_with_restored_times_is_returned(self, executor: CodeExecutor) -> None:
        code = (
            "import os\n"
            "old = os.stat('f')\n"
            "with open('f', 'r+') as f: f.write('2')\n"
            "os.utime('f', ns=(old.st_atime_ns, old.st_mtime_ns))"
        )
        result = await self.run(executor, code, input_files=(File(path="f", content=b"1"),))
        assert [file.content for file in result.output_files] == [b"2"]

    async def test_globs_select_the_returned_files(self, executor: CodeExecutor) -> None:
        code = "import os\nos.makedirs('a/b')\nfor n in ('x.csv', 'x.txt', 'a/y.csv', 'a/b/z.csv'): open(n, 'w')"
        result = await self.run(executor, code, output_globs=("*.csv", "a/**/z.*"))
        assert [file.path for file in result.output_files] == ["a/b/z.csv", "x.csv"]

    async def test_links_pipes_and_sparse_files_are_not_returned(self, executor: CodeExecutor) -> None:
        code = (
            "import os\n"
            "os.symlink('/etc/passwd', 'symlink'); os.symlink('/', 'folder')\n"
            "open('one', 'w').write('x'); os.link('one', 'two')\n"
            "try: os.mkfifo('pipe')\n"
            "except PermissionError: os.symlink('no pipes here', 'pipe')\n"
            "with open('sparse', 'wb') as f: f.truncate(60 << 20)\n"
            "open('good', 'w').write('good')"
        )
        result = await self.run(executor, code)
        assert result.stderr == b""
        assert [file.path for file in result.output_files] == ["good"]
        reasons = dict(result.output_skipped)
        assert sorted(reasons) == ["folder", "one", "pipe", "sparse", "symlink", "two"]
        assert "link" in reasons["two"]
        assert "bytes" in reasons["sparse"]

    async def test_files_over_the_limit_are_only_listed(self, executor: CodeExecutor) -> None:
        limits = ExecutionLimits(output_files=10)
        result = await self.run(executor, "for i in range(50): open(f'f{i:02}', 'w')", limits=limits)
        assert len(result.output_files) == 10
        assert len(result.output_skipped) == 40

    async def test_files_survive_a_timeout(self, executor: CodeExecutor) -> None:
        code = "open('partial', 'w').write('kept')\nprint('x', flush=True)\nimport time; time.sleep(1000)"
        result = await self.run(executor, code, timeout_seconds=2.0)
        assert [file.content for file in result.output_files] == [b"kept"]

    async def test_the_working_folder(self, executor: CodeExecutor) -> None:
        code = "import os; print('/'.join(os.getcwd().split('/')[-2:]))"
        assert (await self.run(executor, code, working_dir="a/b")).stdout == b"a/b\n"

    async def test_a_workspace_is_used_in_place(self, executor: CodeExecutor, workspace: Path) -> None:
        (workspace / "notes.txt").write_text("old")
        (workspace / "untouched.txt").write_text("same")
        code = (
            "import os\n"
            "text = open('notes.txt').read()\n"
            "open('notes.txt', 'w').write(text + ' and new')\n"
            "os.mkdir('made'); open('made/file', 'w').write('x')"
        )
        result = await self.run(executor, code, workspace=str(workspace))
        assert (result.stderr, result.exit_code) == (b"", 0)
        assert (workspace / "notes.txt").read_text() == "old and new"
        assert (workspace / "made" / "file").stat().st_uid == workspace.stat().st_uid
        assert {file.path for file in result.output_files} == {"notes.txt", "made/file"}

    async def test_a_workspace_stays_after_a_timeout(self, executor: CodeExecutor, workspace: Path) -> None:
        code = "open('kept', 'w').write('x')\nimport time; time.sleep(1000)"
        await self.run(executor, code, workspace=str(workspace), timeout_seconds=2.0)
        assert (workspace / "kept").read_text() == "x"
