"""What a script sees of its skill is the copy that was checked, whatever happens in the folder meanwhile."""

from __future__ import annotations

import py_compile
from pathlib import Path

import pytest

from bough.agents.context import ToolContext
from bough.agents.skills.tools import SkillToolset
from bough.execution.base import CodeExecutionInput, CodeExecutionResult
from bough.execution.unsafe import UnsafeLocalCodeExecutor
from bough.skills import SkillRegistry, TrustStore, read_skill, run_script
from bough.skills.run.tools import run_named_script

pytestmark = pytest.mark.anyio


class SwappingExecutor(UnsafeLocalCodeExecutor):
    """Has the live folder changed between the check and the start, and notes what was to be shown."""

    def __init__(self, live: Path) -> None:
        super().__init__()
        self.live = live
        self.shown: dict[str, str] = {}
        self.names: list[str] = []

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        (self.live / "scripts" / "run.py").write_text("print('swapped')\n")
        (mount,) = [each for each in request.mounts if each.target == "/skill"]
        folder = Path(mount.source)
        self.shown = {path.name: path.read_text() for path in folder.rglob("*.py")}
        self.names = [path.name for path in folder.rglob("*")]
        assert request.env["PYTHONDONTWRITEBYTECODE"] == "1"
        return CodeExecutionResult(exit_code=0)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project" / ".agents" / "skills" / "kit"
    (folder / "scripts").mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir()
    (folder / "SKILL.md").write_text("---\nname: kit\ndescription: Does a thing.\n---\nRun scripts/run.py.\n")
    (folder / "scripts" / "run.py").write_text("print('honest')\n")
    py_compile.compile(str(folder / "scripts" / "run.py"), doraise=True)
    return tmp_path / "project"


def kit(project: Path) -> Path:
    return project / ".agents" / "skills" / "kit"


async def test_a_swap_between_check_and_start_is_not_run(project: Path, tmp_path: Path) -> None:
    TrustStore(tmp_path / "home").trust(project)
    registry = SkillRegistry.open(project, home=tmp_path / "home")
    executor = SwappingExecutor(kit(project))
    result = await run_named_script(registry, executor, "kit", "run.py")
    assert result.status == "success"
    assert executor.shown == {"run.py": "print('honest')\n"}
    assert not [name for name in executor.names if name.endswith(".pyc") or name == "__pycache__"]
    again = await run_named_script(registry, executor, "kit", "run.py")
    assert again.error_code == "SKILL_NOT_TRUSTED"


async def test_a_skill_given_by_hand_is_copied_for_the_run_too(project: Path) -> None:
    executor = SwappingExecutor(kit(project))
    assert (await run_script(read_skill(kit(project)), executor, "run.py")).status == "success"
    assert executor.shown == {"run.py": "print('honest')\n"}


async def test_an_active_skill_keeps_its_copy_until_it_is_loaded_again(project: Path, tmp_path: Path) -> None:
    registry = SkillRegistry.open(tmp_path, home=tmp_path / "home", roots=[kit(project).parent])
    skill = registry.get("kit")
    taken = registry.snapshot(skill)
    assert taken is not None
    deps = ToolContext(skill_trees=lambda: {"kit": taken.digest}, active_skills=lambda: {"kit": skill.content_hash})
    tools = SkillToolset(registry)
    (kit(project) / "scripts" / "run.py").write_text("print('edited')\n")
    assert tools._read_resource("kit", "scripts/run.py", deps) == "print('honest')\n"  # pyright: ignore[reportPrivateUsage]
    fresh = SkillToolset(registry)._read_resource("kit", "scripts/run.py", ToolContext())  # pyright: ignore[reportPrivateUsage]
    assert fresh == "print('edited')\n"
    taken.folder.parent.rename(tmp_path / "gone")
    answer = tools._read_resource("kit", "scripts/run.py", deps)  # pyright: ignore[reportPrivateUsage]
    assert isinstance(answer, dict) and answer["error_code"] == "SKILL_CHANGED"
    (kit(project) / "scripts" / "run.py").write_text("print('honest')\n")
    assert tools._read_resource("kit", "scripts/run.py", deps) == "print('honest')\n"  # pyright: ignore[reportPrivateUsage]


async def test_trust_that_is_taken_back_ends_the_use_of_the_copy(project: Path, tmp_path: Path) -> None:
    store = TrustStore(tmp_path / "home")
    store.trust(project)
    registry = SkillRegistry.open(project, home=tmp_path / "home")
    taken = registry.snapshot(registry.get("kit"))
    assert taken is not None
    deps = ToolContext(skill_trees=lambda: {"kit": taken.digest})
    store.revoke(project)
    answer = SkillToolset(registry)._read_resource("kit", "scripts/run.py", deps)  # pyright: ignore[reportPrivateUsage]
    assert isinstance(answer, dict) and answer["error_code"] == "SKILL_NOT_TRUSTED"


@pytest.mark.needs("bubblewrap")
async def test_own_files_are_where_a_script_starts_and_byte_code_is_not(project: Path, tmp_path: Path) -> None:
    from bough.execution import LocalSandboxCodeExecutor

    folder = kit(project)
    (folder / "references").mkdir()
    (folder / "references" / "x.md").write_text("a reference")
    (folder / "table.csv").write_text("a,b")
    (folder / "scripts" / "run.py").write_text(
        "import os\nprint(open('references/x.md').read(), open('table.csv').read(), os.environ['SKILL_DIR'])\n"
        "print([n for _, d, f in os.walk('/skill') for n in d + f if 'pyc' in n])\n"
        "open('made.txt', 'w').write('1')\n"
    )
    executor = LocalSandboxCodeExecutor()
    try:
        result = await run_script(read_skill(folder), executor, "run.py")
        assert result.stdout == "a reference a,b /skill\n[]\n", result.stderr
        assert [file.path for file in result.output_files] == ["made.txt"]
        (tmp_path / "mine").mkdir()
        there = await run_script(read_skill(folder), executor, "run.py", workspace=tmp_path / "mine")
        assert "$SKILL_DIR" in str(there.details)
        assert list((tmp_path / "mine").iterdir()) == []
    finally:
        await executor.aclose()
