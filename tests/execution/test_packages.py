"""The packages of an environment in the sandbox: what imports, what cannot be changed, and what is refused."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import venv
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bough.agents.workspace.files import WorkspaceFiles
from bough.errors import InvalidInput
from bough.execution import CodeExecutionInput, Isolation, LocalSandboxCodeExecutor, Mount, UnsafeLocalCodeExecutor
from bough.execution.base import USUAL_GUARDS
from bough.execution.named import executor_named
from bough.execution.packages import Packages
from bough.settings import Settings

pytestmark = pytest.mark.anyio

PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
PLATFORM = f"linux_{platform.machine()}"


def make_environment(folder: Path) -> Path:
    """Make a virtual environment with one package, `pine`, and return its folder of packages."""
    venv.create(folder, symlinks=True, with_pip=False)
    packages = folder / "lib" / PYTHON / "site-packages"
    (packages / "pine.py").write_text("NEEDLES = 5\n")
    add_metadata(packages, "pine-1.0", "py3-none-any")
    return packages


def add_metadata(packages: Path, name: str, *tags: str) -> None:
    metadata = packages / f"{name}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "WHEEL").write_text("Wheel-Version: 1.0\n" + "".join(f"Tag: {tag}\n" for tag in tags))


@pytest.fixture(params=[pytest.param("bubblewrap", marks=pytest.mark.needs("bubblewrap")), "landlock"])
def rung(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Isolation:
    """Each kind of sandbox; Landlock is used where bubblewrap is not in PATH."""
    if request.param == "bubblewrap":
        return Isolation.NAMESPACES
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return Isolation.LANDLOCK


@pytest.fixture
async def executor(rung: Isolation, tmp_path: Path) -> AsyncIterator[LocalSandboxCodeExecutor]:
    make_environment(tmp_path / ".venv")
    async with LocalSandboxCodeExecutor(packages=tmp_path / ".venv") as executor:
        yield executor


async def test_a_script_and_its_child_processes_import_the_packages(
    executor: LocalSandboxCodeExecutor, rung: Isolation, tmp_path: Path
) -> None:
    child = "subprocess.run([sys.executable, '-c', 'import pine; print(pine.__file__)'])"
    result = await executor.execute(
        CodeExecutionInput(code=f"import pine, subprocess, sys\nprint(pine.NEEDLES, flush=True)\n{child}")
    )
    assert (result.text, result.isolation) == ("5\n/packages/pine.py\n", rung), result.error_text
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "count.py").write_text("import pine; print(pine.NEEDLES)")
    (tmp_path / "work" / "pine.py").write_text("NEEDLES = 2")  # the script's own folder comes first, as without bough
    result = await executor.execute(CodeExecutionInput(script="count.py", workspace=tmp_path / "work"))
    assert result.text == "2\n", result.error_text


@pytest.mark.needs("bubblewrap")
async def test_warm_and_kept_interpreters_import_them(tmp_path: Path) -> None:
    make_environment(tmp_path / ".venv")
    async with LocalSandboxCodeExecutor(packages=tmp_path / ".venv") as executor:
        request = CodeExecutionInput(code="import pine; print(pine.NEEDLES)", execution_id="a")
        assert await executor.warm_up(request)
        assert (await executor.execute(request)).text == "5\n"
        assert executor.counts["warm"] == 1
    async with LocalSandboxCodeExecutor(packages=tmp_path / ".venv", stateful=True) as executor:
        assert (await executor.execute(CodeExecutionInput(code="import pine", execution_id="a"))).ok
        request = CodeExecutionInput(code="print(pine.NEEDLES)", execution_id="a")
        assert (await executor.execute(request)).text == "5\n"


async def test_an_environment_in_the_workspace_stays_as_it_is(
    executor: LocalSandboxCodeExecutor, tmp_path: Path
) -> None:
    packages = tmp_path / ".venv" / "lib" / PYTHON / "site-packages"
    code = f"""
import os
for act in (
    lambda: open("/packages/pine.py", "w"),
    lambda: open("/work/.venv/lib/{PYTHON}/site-packages/pine.py", "w"),
    lambda: open("/work/.venv/lib/{PYTHON}/site-packages/sitecustomize.py", "w"),
    lambda: open("/work/.venv/bin/evil", "w"),
    lambda: os.rename("/work/.venv", "/work/moved"),
):
    try:
        act()
    except OSError:
        print("refused")
open("/work/result.txt", "w").write("kept")
"""
    before = sorted(str(path) for path in (tmp_path / ".venv").rglob("*"))
    result = await executor.execute(CodeExecutionInput(code=code, workspace=tmp_path))
    assert result.text == "refused\n" * 5, result.error_text
    assert sorted(str(path) for path in (tmp_path / ".venv").rglob("*")) == before
    assert (packages / "pine.py").read_text() == "NEEDLES = 5\n"
    assert (tmp_path / "result.txt").read_text() == "kept"


async def test_a_link_that_names_the_environment_cannot_be_redirected(rung: Isolation, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    make_environment(tmp_path / "environments" / "a")
    (work / ".venv").symlink_to(tmp_path / "environments" / "a")
    async with LocalSandboxCodeExecutor(packages=work / ".venv") as executor:
        code = "import os, pine\nos.mkdir('/work/evil')\nos.remove('/work/.venv')\nos.symlink('evil', '/work/.venv')"
        result = await executor.execute(CodeExecutionInput(code=code, workspace=work))
        assert result.ok, result.error_text
        assert os.readlink(work / ".venv") == str(tmp_path / "environments" / "a")
        assert (await executor.execute(CodeExecutionInput(code="import pine", workspace=work))).ok


async def test_tools_of_an_agent_cannot_write_into_it(tmp_path: Path) -> None:
    packages = make_environment(tmp_path / ".venv")
    guards = Packages.find(tmp_path / ".venv").extend_guards(USUAL_GUARDS, str(tmp_path))
    name = str((packages / "pine.py").relative_to(tmp_path))
    with pytest.raises(InvalidInput):
        WorkspaceFiles(tmp_path, guards).write(name, "evil")
    assert (packages / "pine.py").read_text() == "NEEDLES = 5\n"


async def test_nothing_of_it_runs_on_the_host_and_no_link_is_followed(rung: Isolation, tmp_path: Path) -> None:
    packages = make_environment(tmp_path / ".venv")
    secret, canary = tmp_path / "secret", tmp_path / "canary"
    secret.write_text("private")
    (packages / "start.pth").write_text(f"import pathlib; pathlib.Path({str(canary)!r}).touch()\n{tmp_path}\n")
    (packages / "leak.txt").symlink_to(secret)
    metadata = packages / "trap-1.dist-info"
    metadata.mkdir()
    os.mkfifo(metadata / "WHEEL")  # to open it for reading would wait for ever
    (packages / "link-1.dist-info").symlink_to(tmp_path)
    async with LocalSandboxCodeExecutor(packages=tmp_path / ".venv") as executor:
        code = "import os, pine, sys\nprint(os.path.exists('/packages/leak.txt'), any('canary' in p for p in sys.path))"
        result = await executor.execute(CodeExecutionInput(code=code))
    assert result.text == "False False\n", result.error_text
    assert not canary.exists()


async def test_what_is_installed_later_is_there_and_another_python_is_refused(
    executor: LocalSandboxCodeExecutor, tmp_path: Path
) -> None:
    packages = tmp_path / ".venv" / "lib" / PYTHON / "site-packages"
    assert not (await executor.execute(CodeExecutionInput(code="import fir", execution_id="a"))).ok
    (packages / "fir.py").write_text("")
    assert (await executor.execute(CodeExecutionInput(code="import fir", execution_id="a"))).ok
    packages.parent.rename(packages.parent.with_name("python3.7"))
    with pytest.raises(InvalidInput, match=r"was for Python 3\.\d+, and is for Python 3\.7 now"):
        await executor.execute(CodeExecutionInput(code="print(1)"))
    (tmp_path / ".venv").rename(tmp_path / "gone")
    with pytest.raises(InvalidInput, match="does not exist"):
        await executor.execute(CodeExecutionInput(code="print(1)"))


async def test_a_relative_path_counts_from_the_folder_of_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_environment(tmp_path / ".venv")
    monkeypatch.chdir(tmp_path)
    async with LocalSandboxCodeExecutor(packages=".venv") as executor:
        monkeypatch.chdir("/")
        assert (await executor.execute(CodeExecutionInput(code="import pine"))).ok


def _of_another_python(folder: Path) -> Path:
    make_environment(folder)
    (folder / "lib" / PYTHON).rename(folder / "lib" / "python3.7")
    return folder


def _of_two_pythons(folder: Path) -> Path:
    make_environment(folder)
    (folder / "lib" / "python3.7" / "site-packages").mkdir(parents=True)
    return folder


def _behind_a_link(folder: Path) -> Path:
    (folder / "lib" / PYTHON).mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    (folder / "lib" / PYTHON / "site-packages").symlink_to("/etc")
    return folder


def _of_windows(folder: Path) -> Path:
    (folder / "Lib" / "site-packages").mkdir(parents=True)
    return folder


def _with_tag(tag: str, folder: Path) -> Path:
    add_metadata(make_environment(folder), "oak-2.1", tag)
    return folder


def _target_with_tag(tag: str, folder: Path) -> Path:
    add_metadata(folder, "oak-2.1", tag)
    return folder


def _file(path: Path) -> Path:
    path.touch()
    return path


def _empty(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder, "does not exist"),
        (_file, "is a file"),
        (_empty, "has no installed packages"),
        (lambda folder: f"{folder}\0", "cannot be read"),
        (_of_another_python, r"is for Python 3\.7, and a sandbox here has Python 3"),
        (_of_two_pythons, r"has packages of python3\.\d+, python3\.7"),
        (_behind_a_link, "leads through a link out of its environment"),
        (_of_windows, "was created on Windows"),
        (lambda folder: _with_tag("cp313-cp313-macosx_11_0_arm64", folder), "oak-2.1 is for macosx_11_0_arm64"),
        (lambda folder: _with_tag("py3-none-manylinux_2_17_riscv64", folder), "oak-2.1 is for manylinux_2_17_riscv64"),
        (lambda folder: _with_tag(f"cp37-cp37m-{PLATFORM}", folder), r"oak-2.1 in .* is for Python 3\.7, but"),
        (lambda folder: _target_with_tag(f"cp37-cp37m-{PLATFORM}", folder), r"is for Python 3\.7, and a sandbox here"),
    ],
)
def test_what_no_sandbox_here_can_import_is_refused(tmp_path: Path, make: object, message: str) -> None:
    path = make(tmp_path / "environment")  # type: ignore[operator]
    with pytest.raises(InvalidInput, match=message) as caught:
        LocalSandboxCodeExecutor(packages=path)
    assert caught.value.hint


def test_a_folder_that_pip_filled_and_the_folder_of_packages_itself_are_taken(tmp_path: Path) -> None:
    add_metadata(tmp_path / "target", "oak-2.1", f"cp{sys.version_info[0]}{sys.version_info[1]}-abi3-{PLATFORM}")
    assert LocalSandboxCodeExecutor(packages=tmp_path / "target").packages is not None
    folder = make_environment(tmp_path / ".venv")
    found = Packages.find(folder)
    assert (found.root, found.folder) == (str(tmp_path / ".venv"), str(folder))  # its programs are guarded, too


async def test_a_workspace_or_writable_mount_that_shares_folders_with_it_is_refused(tmp_path: Path) -> None:
    packages = make_environment(tmp_path / ".venv")
    async with LocalSandboxCodeExecutor(packages=tmp_path / ".venv") as executor:
        for workspace in (tmp_path / ".venv", packages):
            with pytest.raises(InvalidInput, match="is a part of the environment"):
                await executor.execute(CodeExecutionInput(code="print(1)", workspace=workspace))
        for source in (tmp_path, packages):
            mount = Mount(source=str(source), target="/data", writable=True)
            with pytest.raises(InvalidInput, match="could change the packages"):
                await executor.execute(CodeExecutionInput(code="print(1)", mounts=(mount,)))


@pytest.mark.needs("bubblewrap")
async def test_the_python_path_of_a_request_counts(tmp_path: Path) -> None:
    make_environment(tmp_path / ".venv")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "pine.py").write_text("NEEDLES = 3")
    mounts = (Mount(source=str(tmp_path / "own"), target="/own"),)
    request = CodeExecutionInput(code="import pine; print(pine.NEEDLES)", mounts=mounts, env={"PYTHONPATH": "/own"})
    async with (
        LocalSandboxCodeExecutor() as plain,
        LocalSandboxCodeExecutor(stateful=True) as stateful,
        LocalSandboxCodeExecutor(packages=tmp_path / ".venv") as with_packages,
        UnsafeLocalCodeExecutor() as unsafe,
    ):
        for executor in (plain, stateful, with_packages, unsafe):
            result = await executor.execute(request)
            assert result.text == "3\n", (executor.name, result.error_text)
        assert not (await plain.execute(CodeExecutionInput(code="import pine", mounts=mounts))).ok


def test_only_a_person_chooses_packages_by_settings(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    (home / "bough.yaml").write_text("packages: .venv")
    with pytest.raises(InvalidInput, match="must be an absolute path"):
        Settings.load(home, cwd=project, env={})
    (home / "bough.yaml").write_text(f"packages: {tmp_path}/.venv")
    assert Settings.load(home, cwd=project, env={}).packages == tmp_path / ".venv"
    (project / "bough.yaml").write_text("packages: .venv")
    with pytest.raises(InvalidInput, match="may not set `packages`"):
        Settings.load(home, cwd=project, env={})


def test_packages_that_are_no_path_are_refused() -> None:
    with pytest.raises(InvalidInput, match="packages: this is a int"):
        LocalSandboxCodeExecutor(packages=3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["container", "container:a", "unsafe"])
def test_executors_without_packages_say_so(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot use the packages") as caught:
        executor_named(name, packages=tmp_path)
    assert caught.value.hint


@pytest.mark.needs("bubblewrap")
def test_the_command_line_takes_them(tmp_path: Path) -> None:
    make_environment(tmp_path / ".venv")
    command = [sys.executable, "-m", "bough.cli.main", "exec", "--packages", ".venv", "-c", "import pine; print(pine)"]
    environment = {**os.environ, "BOUGH_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == "<module 'pine' from '/packages/pine.py'>\n", done.stderr


async def test_every_link_on_the_way_to_an_environment_is_guarded(rung: Isolation, tmp_path: Path) -> None:
    """A chain of links, and a link in the middle of the path: a program that redirects one chooses what is imported."""
    work, environments = tmp_path / "work", tmp_path / "environments"
    work.mkdir()
    make_environment(environments / "a")
    (work / "current").symlink_to(environments / "a")
    (work / ".venv").symlink_to("current")
    (work / "all").symlink_to(environments)
    for given, names in ((work / ".venv", [".venv", "current"]), (work / "all" / "a", ["all"])):
        async with LocalSandboxCodeExecutor(packages=given) as executor:
            code = (
                "import os, pine\n"
                f"for name in {names!r}:\n"
                "    try:\n        os.unlink(f'/work/{name}')\n        os.symlink('/tmp', f'/work/{name}')\n"
                "    except OSError:\n        print('refused')"
            )
            result = await executor.execute(CodeExecutionInput(code=code, workspace=work))
            assert result.ok, result.error_text
            assert [os.readlink(work / name) for name in (".venv", "current", "all")] == [
                "current",
                str(environments / "a"),
                str(environments),
            ]
            data = Mount(source=work, target="/data", writable=True)
            with pytest.raises(InvalidInput, match="could change the packages"):
                await executor.execute(CodeExecutionInput(code="", mounts=(data,)))


async def test_paths_that_no_file_has_are_invalid_input(tmp_path: Path) -> None:
    make_environment(tmp_path / ".venv")
    async with LocalSandboxCodeExecutor(packages=tmp_path / ".venv") as executor:
        for workspace in ("a\0b", "\ud800x"):
            with pytest.raises(InvalidInput):
                await executor.execute(CodeExecutionInput(code="", workspace=workspace))


async def test_a_first_compiled_package_does_not_stop_an_executor(rung: Isolation, tmp_path: Path) -> None:
    packages = tmp_path / "target"
    add_metadata(packages, "oak-1.0", "py3-none-any")
    async with LocalSandboxCodeExecutor(packages=packages) as executor:
        assert (await executor.execute(CodeExecutionInput(code=""))).ok
        version = (
            await executor.execute(CodeExecutionInput(code="import sys; print(*sys.version_info[:2], sep='')"))
        ).text
        add_metadata(packages, "elm-1.0", f"cp{version.strip()}-cp{version.strip()}-{PLATFORM}")
        assert (await executor.execute(CodeExecutionInput(code=""))).ok
        add_metadata(packages, "fir-1.0", f"cp37-cp37m-{PLATFORM}")
        with pytest.raises(InvalidInput):
            await executor.execute(CodeExecutionInput(code=""))


def test_a_free_threaded_package_is_refused(tmp_path: Path) -> None:
    add_metadata(tmp_path, "oak-1.0", f"cp313-cp313t-{PLATFORM}")
    with pytest.raises(InvalidInput, match="no sandbox here runs"):
        Packages.find(tmp_path)


@pytest.mark.needs("bubblewrap")
async def test_a_python_path_of_one_call_is_not_that_of_the_next(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    async with LocalSandboxCodeExecutor(stateful=True) as executor:
        show = CodeExecutionInput(
            code="import sys; print('/work/one' in sys.path)", execution_id="a", workspace=tmp_path
        )
        assert (await executor.execute(replace(show, env={"PYTHONPATH": "/work/one"}))).text == "True\n"
        assert (await executor.execute(show)).text == "False\n"
