"""Scripts of skills, run in the real sandbox."""

from __future__ import annotations

import zipfile
from collections.abc import AsyncIterator, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from bough.execution.base import CodeExecutor, Network
from bough.execution.local import LocalSandboxCodeExecutor
from bough.skills import Skill, read_skill, run_script
from bough.skills.run.scripts import MAX_ERROR, ScriptRefused, ScriptResult, find_interpreter, find_uv, resolve_script

pytestmark = pytest.mark.anyio

NEEDS_NODE = pytest.mark.needs("node")
SCRIPTS = {
    "scripts/echo.py": "import sys\nprint(sys.argv[1:])\n",
    "scripts/make.py": "import os\nopen('out.txt', 'w').write('made')\nos.makedirs('deep')\n"
    "open('deep/x.bin','wb').write(b'\\0\\1')",
    "scripts/warn.py": "import sys\nprint('ok')\nprint('careful', file=sys.stderr)\n",
    "scripts/fail.py": "import sys\nprint('before')\nraise ValueError('x' * 500)\n",
    "scripts/three.py": "raise SystemExit(3)",
    "scripts/clean.py": "import sys\nsys.exit(None)",
    "scripts/loop.py": "print('begun', flush=True)\nwhile True: pass\n",
    "scripts/sibling.py": "import helper\nprint(helper.word, open('/skill/references/data.txt').read())\n",
    "scripts/helper.py": "word = 'sibling'\n",
    "scripts/write_skill.py": "open('/skill/SKILL.md', 'a').write('x')\n",
    "scripts/args.sh": 'printf "%s|" "$@"\n',
    "scripts/array.bash": "words=(a b)\necho ${#words[@]}\n",
    "scripts/shebang-bash.sh": "#!/usr/bin/env bash\nwords=(a b c)\necho ${#words[@]}\n",
    "scripts/tool": "#!/bin/sh\necho tool $1\n",
    "scripts/crlf-shebang": "#!/usr/bin/env python3\r\nprint('crlf')\r\n",
    "scripts/page.js": "console.log(process.argv.slice(2).join(','))\n",
    "scripts/module.mjs": "import { sep } from 'node:path'; console.log(sep)\n",
    "scripts/data.csv": "a,b\n",
    "scripts/needs.py": '# /// script\n# dependencies = ["not-there-at-all"]\n# ///\nimport not_there_at_all\n',
    "scripts/nested/inner.py": "print('inner')\n",
    "top.py": "print('top')\n",
    "references/data.txt": "reference",
    "assets/empty.txt": "",
}


@pytest.fixture
async def executor() -> AsyncIterator[CodeExecutor]:
    sandbox = LocalSandboxCodeExecutor(default_timeout_seconds=20)
    yield sandbox
    await sandbox.aclose()


@pytest.fixture
def skill(tmp_path: Path) -> Skill:
    folder = tmp_path / "kit"
    for name, text in SCRIPTS.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
        file.chmod(0o644)
    (folder / "SKILL.md").write_text("---\nname: kit\ndescription: Tools.\n---\nUse them.\n")
    return read_skill(folder)


@pytest.mark.parametrize(
    ("args", "argv"),
    [
        (None, "[]"),
        (["a b", "$(id)", "; rm -rf /", "*", ""], "['a b', '$(id)', '; rm -rf /', '*', '']"),
        ({"name": "x", "verbose": True, "tag": ["a", "b"], "off": False, "no": None, "_": ["in.txt", 3]},
         "['--name', 'x', '--verbose', '--tag', 'a', '--tag', 'b', 'in.txt', '3']"),
        ("--name 'John Doe' `id` && x", "['--name', 'John Doe', '`id`', '&&', 'x']"),
    ],
)  # fmt: skip
async def test_every_form_of_arguments_arrives_verbatim(
    skill: Skill, executor: CodeExecutor, args: object, argv: str
) -> None:
    result = await run_script(skill, executor, "echo.py", args)

    assert (result.status, result.stdout, result.exit_code) == ("success", argv + "\n", 0)


@pytest.mark.parametrize(
    ("script", "args", "stdout"),
    [
        ("args.sh", ["a b", "$HOME", "*"], "a b|$HOME|*|"),
        ("array.bash", None, "2\n"),
        ("shebang-bash.sh", None, "3\n"),
        ("tool", ["x"], "tool x\n"),
        ("crlf-shebang", None, "crlf\n"),
        pytest.param("page.js", ["a", "b"], "a,b\n", marks=NEEDS_NODE),
        pytest.param("module.mjs", None, "/\n", marks=NEEDS_NODE),
        ("sibling.py", None, "sibling reference\n"),
        ("nested/inner.py", None, "inner\n"),
        ("scripts/nested/inner.py", None, "inner\n"),
        ("./scripts/echo.py", None, "[]\n"),
        ("top.py", None, "top\n"),
    ],
)
async def test_every_type_of_script_runs_without_a_run_bit(
    skill: Skill, executor: CodeExecutor, script: str, args: object, stdout: str
) -> None:
    result = await run_script(skill, executor, script, args)

    assert (result.status, result.stdout, result.stderr) == ("success", stdout, "")


async def test_files_it_makes_come_back(skill: Skill, executor: CodeExecutor) -> None:
    result = await run_script(skill, executor, "make.py")

    assert {file.path: file.content for file in result.output_files} == {"out.txt": b"made", "deep/x.bin": b"\0\1"}
    assert result.as_dict()["output_files"] == [
        {"path": file.path, "size_bytes": len(file.content)} for file in result.output_files
    ]


async def test_status_comes_from_exit_code_and_timeout_only(skill: Skill, executor: CodeExecutor) -> None:
    warning = await run_script(skill, executor, "warn.py")
    three = await run_script(skill, executor, "three.py")
    clean = await run_script(skill, executor, "clean.py")
    failed = await run_script(skill, executor, "fail.py")

    assert (warning.status, warning.error_code, warning.stderr) == ("warning", None, "careful\n")
    assert (three.status, three.exit_code, three.error_code, three.error) == (
        "error",
        3,
        "EXECUTION_ERROR",
        "exit code 3",
    )
    assert (clean.status, clean.exit_code) == ("success", 0)
    assert (failed.status, failed.exit_code, failed.stdout) == ("error", 1, "before\n")
    assert failed.error is not None and len(failed.error) <= MAX_ERROR
    assert "x" * 500 in failed.details
    assert failed.isolation in ("namespaces", "landlock") and failed.duration > 0


async def test_a_timeout_keeps_the_output_so_far(skill: Skill, executor: CodeExecutor) -> None:
    result = await run_script(skill, executor, "loop.py", timeout_seconds=0.8)

    assert (result.status, result.error_code, result.timed_out) == ("error", "TIMEOUT", True)
    assert result.stdout == "begun\n"


async def test_a_script_cannot_change_its_skill(skill: Skill, executor: CodeExecutor) -> None:
    before = (skill.path or Path()).read_bytes()
    result = await run_script(skill, executor, "write_skill.py")

    assert result.status == "error"
    assert (skill.path or Path()).read_bytes() == before


async def test_it_works_in_the_workspace_but_not_on_what_decides_later(
    skill: Skill, executor: CodeExecutor, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    (work / ".git").mkdir(parents=True)
    (work / ".agents").mkdir()
    (work / "bough.yaml").write_text("model: x\n")
    (work / "in.txt").write_text("input")
    script = (skill.folder or Path()) / "scripts" / "touch.py"
    script.write_text(
        "print(open('in.txt').read())\n"
        "open('new.txt', 'w').write('new')\n"
        "for name in ('.git/config', '.agents/x', 'bough.yaml'):\n"
        "    try: open(name, 'w').write('bad')\n"
        "    except OSError as error: print(name, 'refused')\n"
    )
    result = await run_script(skill, executor, "touch.py", workspace=work)

    assert result.stdout == "input\n.git/config refused\n.agents/x refused\nbough.yaml refused\n"
    assert (work / "new.txt").read_text() == "new"
    assert (work / "bough.yaml").read_text() == "model: x\n"


async def test_a_link_in_the_workspace_is_not_laid_over(skill: Skill, executor: CodeExecutor, tmp_path: Path) -> None:
    work, secret = tmp_path / "work", tmp_path / "secret"
    work.mkdir()
    secret.mkdir()
    (secret / "key").write_text("hidden-value")
    (work / ".bough").symlink_to(secret)
    script = (skill.folder or Path()) / "scripts" / "peek.py"
    script.write_text("print(open('.bough/key').read())\n")

    result = await run_script(skill, executor, "peek.py", workspace=work)

    assert result.status == "error" and "hidden-value" not in result.stdout


@pytest.mark.parametrize(
    ("script", "args", "code", "says"),
    [
        ("", None, "MISSING_SCRIPT_NAME", "no script"),
        ("  ", None, "MISSING_SCRIPT_NAME", "no script"),
        ("ecko.py", None, "SCRIPT_NOT_FOUND", "scripts/echo.py"),
        ("../../etc/passwd", None, "SCRIPT_NOT_FOUND", "not a path inside"),
        ("/etc/passwd", None, "SCRIPT_NOT_FOUND", ""),
        ("data.csv", None, "UNSUPPORTED_SCRIPT_TYPE", ".py .sh"),
        ("SKILL.md", None, "UNSUPPORTED_SCRIPT_TYPE", ".py .sh"),
        ("echo.py", "'unclosed", "INVALID_INPUT_ARGS", "split"),
        ("echo.py", 7, "INVALID_ARGS_TYPE", "int"),
        ("echo.py", [["nested"]], "INVALID_INPUT_ARGS", "list"),
        ("echo.py", ["a\0b"], "INVALID_INPUT_ARGS", "NUL"),
        ("echo.py", {"a b": 1}, "INVALID_INPUT_ARGS", "option"),
        ("echo.py", {"": 1}, "INVALID_INPUT_ARGS", "option"),
        ("echo.py", ["x" * 200_000], "INVALID_INPUT_ARGS", "bytes"),
    ],
)
async def test_what_is_refused_says_why_in_200_characters(
    skill: Skill, executor: CodeExecutor, script: str, args: object, code: str, says: str
) -> None:
    result = await run_script(skill, executor, script, args)

    assert (result.status, result.error_code, result.execution) == ("error", code, None)
    assert says in (result.error or "") and len(result.error or "") <= MAX_ERROR
    assert result.as_dict()["error_code"] == code


async def test_without_an_executor_nothing_is_run(skill: Skill) -> None:
    result: ScriptResult = await run_script(skill, None, "echo.py")

    assert (result.status, result.error_code) == ("error", "NO_CODE_EXECUTOR")


async def test_an_executor_that_cannot_run_is_a_result(skill: Skill) -> None:
    closed = LocalSandboxCodeExecutor()
    await closed.aclose()

    result = await run_script(skill, closed, "echo.py")

    assert result.error_code == "EXECUTION_ERROR" and "closed" in (result.error or "")


async def test_dependencies_that_are_not_there_are_named(skill: Skill, executor: CodeExecutor) -> None:
    result = await run_script(skill, executor, "needs.py")

    assert result.error_code == "EXECUTION_ERROR"
    assert "not-there-at-all" in result.details


def _write_wheel(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr("kit_words.py", "word = 'from a dependency'\n")
        info = "kit_words-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: kit-words\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def uv() -> None:
    assert find_uv() is not None, "`make setup` installs uv"


@pytest.mark.usefixtures("uv")
@pytest.mark.needs("bubblewrap")  # for a network of named domains
async def test_declared_dependencies_come_through_uv_where_something_may_be_reached(
    skill: Skill, executor: CodeExecutor
) -> None:
    folder = skill.folder or Path()
    _write_wheel(folder / "assets" / "kit_words-1.0-py3-none-any.whl")
    (folder / "scripts" / "uses.py").write_text(
        "# /// script\n# dependencies = ['kit-words @ file:///skill/assets/kit_words-1.0-py3-none-any.whl']\n# ///\n"
        "import sys, kit_words\nprint(kit_words.word, sys.argv[1:])\n"
    )
    allowed = Network(domains=("example.org",))

    with_uv = await run_script(skill, executor, "uses.py", ["a"], network=allowed, env={"UV_OFFLINE": "1"})
    without = await run_script(skill, executor, "uses.py")

    assert (with_uv.status, with_uv.stdout, with_uv.output_files) == ("success", "from a dependency ['a']\n", ())
    assert (without.status, without.error_code) == ("error", "EXECUTION_ERROR")
    assert "declared dependencies are not installed" in without.details


@pytest.fixture
def package_index(tmp_path: Path) -> Iterator[str]:
    """A package index with one package in it, on this machine."""
    folder = tmp_path / "index" / "kit-words"
    folder.mkdir(parents=True)
    _write_wheel(folder / "kit_words-1.0-py3-none-any.whl")
    (folder / "index.html").write_text('<a href="kit_words-1.0-py3-none-any.whl">kit_words-1.0-py3-none-any.whl</a>')
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("uv")
@pytest.mark.needs("bubblewrap")  # for a network of named domains
async def test_dependencies_are_fetched_from_a_named_domain_and_from_nowhere_else(
    skill: Skill, executor: CodeExecutor, package_index: str
) -> None:
    file = (skill.folder or Path()) / "scripts" / "uses.py"
    file.write_text("# /// script\n# dependencies = ['kit-words']\n# ///\nimport kit_words\nprint(kit_words.word)\n")
    env = {"UV_INDEX_URL": package_index}

    refused = await run_script(skill, executor, "uses.py", env=env)
    fetched = await run_script(
        skill, executor, "uses.py", env=env, network=Network(domains=(package_index.removeprefix("http://"),))
    )
    elsewhere = await run_script(skill, executor, "uses.py", env=env, network=Network(domains=("example.org",)))

    assert (fetched.status, fetched.stdout) == ("success", "from a dependency\n"), fetched.stderr
    assert [each.error_code for each in (refused, elsewhere)] == ["EXECUTION_ERROR"] * 2
    assert "declared dependencies are not installed: kit-words; `bough skills run … --network" in refused.details


async def test_a_link_out_of_the_skill_is_no_script(skill: Skill, executor: CodeExecutor, tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text("print('outside')")
    ((skill.folder or Path()) / "scripts" / "link.py").symlink_to(outside)

    result = await run_script(skill, executor, "link.py")

    assert result.error_code == "SCRIPT_NOT_FOUND" and result.stdout == ""


async def test_a_skill_without_a_folder_has_no_scripts() -> None:
    with pytest.raises(ScriptRefused) as caught:
        resolve_script(Skill(name="flat", content="x"), "a.py")
    assert caught.value.error_code == "SCRIPT_NOT_FOUND"


async def test_env_with_assignments_in_a_shebang(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("#!/usr/bin/env -S A=1 python3 -u\n")
    assert find_interpreter(file) == ("python3", "-u")


@pytest.mark.parametrize(
    ("name", "first", "command"),
    [
        ("x.sh", "", ("bash",)),
        ("x.sh", "#!/bin/sh -e", ("/bin/sh", "-e")),
        ("x.sh", "#!/usr/bin/env python3", ("bash",)),
        ("x.cjs", "", ("node",)),
        ("x.py", "#!/bin/sh", None),
    ],
)
async def test_the_extension_chooses_and_a_shell_script_chooses_its_shell(
    name: str, first: str, command: tuple[str, ...] | None, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(f"{first}\n")
    assert find_interpreter(file) == command
