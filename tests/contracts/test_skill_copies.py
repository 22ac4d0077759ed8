"""What was trusted or locked is what every executor runs, told from the host's side: files planted later never run."""

from __future__ import annotations

import json
import py_compile
from dataclasses import dataclass
from pathlib import Path

import pytest

from bough.execution.base import CodeExecutionInput, CodeExecutionResult, CodeExecutor
from bough.skills import ScriptResult, SkillRegistry, TrustStore
from bough.skills.install.install import InstallRequest, install
from bough.skills.run.tools import run_named_script

NINE_DEEP = "a/b/c/d/e/f/g/h/i"
SCRIPT = """\
import os, sys
root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
names = sorted(name for _, folders, files in os.walk(root) for name in folders + files)
open("ran.txt", "w").write("yes")
import json, helper
print(json.dumps({"word": helper.word, "names": names}))
"""


@dataclass
class Swapping:
    """Another executor; just before it starts a script, the live folder is changed, as by another process."""

    inner: CodeExecutor
    live: Path

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Change the live folder, then run the request."""
        (self.live / "scripts" / "helper.py").write_text("word = 'swapped'\n")
        plant_bytecode(self.live)
        return await self.inner.execute(request)


def plant_bytecode(skill: Path) -> None:
    """Write byte code beside a source that says something else."""
    poison = skill.parent / "poison.py"
    poison.write_text("word = 'planted'\n")
    target = skill / "scripts" / "__pycache__" / "helper.cpython-311.pyc"
    py_compile.compile(
        str(poison), str(target), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    poison.unlink()


def plant_deep(skill: Path) -> None:
    """Write a file nine folders deep."""
    (skill / NINE_DEEP).mkdir(parents=True)
    (skill / NINE_DEEP / "x.py").write_text("print('planted')\n")


def write_skill(folder: Path) -> Path:
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: kit\ndescription: Does a thing.\n---\nRun scripts/run.py.\n")
    (folder / "scripts" / "run.py").write_text(SCRIPT)
    (folder / "scripts" / "helper.py").write_text("word = 'honest'\n")
    return folder


@pytest.mark.anyio
class SkillCopies:
    """Trust and lock on one executor."""

    @pytest.fixture
    def skill(self, tmp_path: Path) -> Path:
        (tmp_path / "project" / ".git").mkdir(parents=True)
        return write_skill(tmp_path / "project" / ".agents" / "skills" / "kit")

    @pytest.fixture
    def workspace(self, tmp_path: Path) -> Path:
        (tmp_path / "workspace").mkdir(mode=0o777)
        return tmp_path / "workspace"

    async def run(self, registry: SkillRegistry, executor: object, workspace: Path) -> ScriptResult:
        result = await run_named_script(registry, executor, "kit", "run.py", workspace=workspace)  # type: ignore[arg-type]
        return result

    @pytest.mark.parametrize("plant", [plant_bytecode, plant_deep])
    async def test_a_file_planted_after_trust_stops_the_script(
        self, executor: CodeExecutor, skill: Path, workspace: Path, tmp_path: Path, plant: object
    ) -> None:
        TrustStore(tmp_path / "home").trust(tmp_path / "project")
        registry = SkillRegistry.open(tmp_path / "project", home=tmp_path / "home")
        plant(skill)  # type: ignore[operator]
        refused = await self.run(registry, executor, workspace)
        assert (refused.error_code, refused.execution) == ("SKILL_NOT_TRUSTED", None)
        assert list(workspace.iterdir()) == []

    @pytest.mark.parametrize("plant", [plant_bytecode, plant_deep])
    async def test_a_file_planted_after_installation_stops_the_script(
        self, executor: CodeExecutor, workspace: Path, tmp_path: Path, plant: object
    ) -> None:
        home = tmp_path / "home"
        (installed,) = install(InstallRequest(source=str(write_skill(tmp_path / "kit"))), home / "installed").installed
        registry = SkillRegistry.open(workspace, home=home)
        plant(installed.folder)  # type: ignore[operator]
        refused = await self.run(registry, executor, workspace)
        assert (refused.error_code, refused.execution) == ("SKILL_NOT_TRUSTED", None)
        assert list(workspace.iterdir()) == []

    async def test_a_swap_between_check_and_start_is_not_seen(
        self, executor: CodeExecutor, skill: Path, workspace: Path, tmp_path: Path
    ) -> None:
        TrustStore(tmp_path / "home").trust(tmp_path / "project")
        registry = SkillRegistry.open(tmp_path / "project", home=tmp_path / "home")
        result = await self.run(registry, Swapping(executor, skill), workspace)
        assert result.status == "success", result.stderr
        seen = json.loads(result.stdout)
        assert seen == {"word": "honest", "names": ["SKILL.md", "helper.py", "run.py", "scripts"]}
        assert (workspace / "ran.txt").read_text() == "yes"
        again = await self.run(registry, executor, workspace)
        assert again.error_code == "SKILL_NOT_TRUSTED"


class TestBubblewrap(SkillCopies):
    @pytest.fixture
    def executor(self, bubblewrap: CodeExecutor) -> CodeExecutor:
        return bubblewrap


class TestZygote(SkillCopies):
    @pytest.fixture
    def executor(self, zygote: CodeExecutor) -> CodeExecutor:
        return zygote


class TestStateful(SkillCopies):
    @pytest.fixture
    def executor(self, stateful: CodeExecutor) -> CodeExecutor:
        return stateful


@pytest.mark.slow
class TestContainer(SkillCopies):
    @pytest.fixture
    def executor(self, container: CodeExecutor) -> CodeExecutor:
        return container


class TestSandlock(SkillCopies):
    @pytest.fixture
    def executor(self, sandlock: CodeExecutor) -> CodeExecutor:
        return sandlock


class TestUnsafe(SkillCopies):
    @pytest.fixture
    def executor(self, unsafe: CodeExecutor) -> CodeExecutor:
        return unsafe
