"""The wheel, installed without any extra: each command works, or says which extra it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.journeys.conftest import ROOT, Person, Result

from bough.errors import OUTCOMES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NEEDS_AN_EXTRA = [
    (["serve"], "server"),
    (["web"], "server"),
    (["a2a", "serve", "--agent", "agent.yaml"], "server"),
    (["acp"], "acp"),
    (["eval", "run", "cases.json"], "evals"),
    (["eval", "skill", ".agents/skills/demo-skill"], "evals"),
    (["eval", "score", "-"], "evals"),
    (["eval", "data", "cases.json"], "evals"),
    (["eval", "harbor", "."], "evals"),
]
WORKS = [
    ["--version"],
    ["--help"],
    ["demo"],
    ["init", "project"],
    ["doctor"],
    ["conv", "list"],
    ["conv", "show", "-"],
    ["conv", "tree"],
    ["conv", "export", "-", "-o", "one.bough"],
    ["fork", "-"],
    ["conv", "diff", "-", "-"],
    ["replay", "-"],
    [
        "skills",
        "new",
        "demo-skill",
        "--description",
        "Counts lines. Use it when someone asks how many lines a file has.",
    ],
    ["skills", "check", ".agents/skills/demo-skill"],
    ["skills", "list"],
    ["agents", "list"],
    ["agents", "schema"],
    ["schema", "conv", "list"],
    ["tasks", "list"],
    ["worker", "--once"],
    ["eval", "list"],
    ["resume", "-"],
    ["keys", "create", "laptop"],
    ["keys", "list"],
    ["tenants", "list"],
    ["budgets", "list"],
    ["exec", "-c", "print(6 * 7)"],
]


ANSWERS = [
    ["chat"],
    ["mcp"],
    ["approve"],
    ["reject"],
    ["answer", "yes"],
    ["conv", "tail"],
    ["conv", "turns"],
    ["conv", "search", "hello"],
    ["conv", "import", "one.bough"],
    ["conv", "adopt", "-"],
    ["conv", "tag", "-", "a=b"],
    ["conv", "delete", "-", "--dry-run"],
    ["conv", "restore", "-@1", "--dry-run"],
    ["conv", "apply", "-", "--dry-run"],
    ["conv", "collect"],
    ["try", "hello", "--check", "true", "--model", "offline"],
    ["bisect", "-", "--check", "true"],
    ["skills", "show", "demo-skill"],
    ["skills", "match", "how many lines"],
    ["skills", "run", "demo-skill", "x.py"],
    ["skills", "lock"],
    ["skills", "add", ".agents/skills/demo-skill"],
    ["skills", "update"],
    ["skills", "disable", "demo-skill"],
    ["skills", "enable", "demo-skill"],
    ["skills", "remove", "demo-skill"],
    ["skills", "trust", "--dry-run"],
    ["agents", "show", "x"],
    ["agents", "check"],
    ["tasks", "show"],
    ["tasks", "logs"],
    ["tasks", "wait", "abcd1234"],
    ["tasks", "cancel", "--all", "--yes"],
    ["tasks", "retry"],
    ["tasks", "input", "-", "yes"],
    ["keys", "revoke", "abcd1234"],
    ["keys", "rotate", "abcd1234"],
    ["budgets", "show", "june"],
    ["budgets", "change", "june", "--usd", "10"],
    ["tenants", "disable", "acme"],
    ["tenants", "enable", "acme"],
    ["eval", "show"],
    ["eval", "add", "-", "cases.yaml"],
    ["eval", "judge", "labels.jsonl", "--judge", "offline"],
    ["eval", "compare", "a", "b"],
    ["eval", "report"],
]
"""The other commands: each works or refuses with a message, a hint and a documented exit code."""

_UV = Path(sys.executable).with_name("uv")
_CASES = """{"eval_cases": [{"eval_id": "greets", "conversation": [
  {"user_content": {"parts": [{"text": "hello"}]}, "final_response": {"parts": [{"text": "hi"}]}}]}]}"""


_VISIT = r"""
import json, re, socket, subprocess, sys
from http.cookiejar import CookieJar
from urllib.request import HTTPCookieProcessor, ProxyHandler, Request, build_opener

try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError as error:
    network = error.strerror
opener = build_opener(HTTPCookieProcessor(CookieJar()), ProxyHandler({}))
with subprocess.Popen([sys.argv[1], "web", "-", "--no-open"], stdout=subprocess.PIPE, text=True) as process:
    address = process.stdout.readline().strip()
    page = opener.open(Request(address, headers={"Accept": "text/html"})).read().decode()
    base = address.partition("/enter/")[0]
    files = sorted(set(re.findall(r'(?:src|href)="(/static/[^"#]+)', page)))
    sizes = {file.rpartition("/")[2]: len(opener.open(base + file).read()) for file in files}
    process.terminate()
print(json.dumps({"network": network, "title": re.findall("<title>(.*?)</title>", page), "sizes": sizes,
                  "others": re.findall(r"(?:src|href)=.https?:[^ ]*", page)}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository."""
    folder = tmp_path_factory.mktemp("wheel")
    constraints = ["--build-constraints", ROOT / "requirements-dev.txt"]
    subprocess.run([_UV, "build", "-q", "--wheel", *constraints, "--out-dir", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path, extra: str = "") -> Path:
    """Install a wheel into an environment with nothing beside what it requires, and return its `bough`."""
    subprocess.run([_UV, "venv", "-q", "--python", sys.executable, folder], check=True)
    python = folder / "bin" / "python"
    constraints = ["-c", ROOT / ("requirements-dev.txt" if extra else "requirements.txt")]
    subprocess.run([_UV, "pip", "install", "-q", "--python", python, *constraints, f"{wheel}{extra}"], check=True)
    return python.with_name("bough")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bough` of an environment into which the wheel was installed without an extra."""
    return install(wheel, tmp_path_factory.mktemp("env") / "env")


@pytest.fixture
def run(installed: Path, person: Person) -> Callable[..., Result]:
    """Runs the installed command."""
    return lambda *args: person.try_command([installed, *args])


def test_commands_work_or_name_their_extra(person: Person, run: Callable[..., Result]) -> None:
    person.write({"agent.yaml": "name: helper\nsystem_prompt: Help.\n", "cases.json": _CASES})
    first = run("run", "hello")
    assert first.code == 0, first
    assert "no skill here covers that request" in first.stdout
    for command in WORKS:
        result = run(*command)
        assert result.code == 0, f"{command}: {result}"
        assert "Traceback" not in result.output
        if command == ["demo"]:
            assert "180 rows, 8 columns" in result.stdout, "the skills run, although an installer makes hard links"
    for command, extra in NEEDS_AN_EXTRA:
        result = run(*command)
        assert result.code == 6, f"{command}: {result}"
        assert f"pip install 'bough[{extra}]'" in result.stderr, f"{command}: {result}"
    for command in ANSWERS:
        result = run(*command)
        assert result.code in {outcome.exit_code for outcome in OUTCOMES.values()} | {0}, f"{command}: {result}"
        assert result.code == 0 or ("error: " in result.stderr and "hint: " in result.stderr), f"{command}: {result}"
        for fault in ("Traceback", "internal error", "ModuleNotFoundError", "No module named"):
            assert fault not in result.output, f"{command}: {result}"


def test_every_command_is_run(run: Callable[..., Result]) -> None:
    commands = run("--json").json()["commands"]
    names = {f"{noun} {verb}".strip() for noun, verbs in commands.items() for verb in verbs or [""]}
    tried = {" ".join(command[: 2 if commands.get(command[0]) else 1]) for command in (*WORKS, *ANSWERS)}
    tried |= {" ".join(command[: 2 if commands.get(command[0]) else 1]) for command, _ in NEEDS_AN_EXTRA}
    assert names - tried == {"run"}, "`run` is tried first"


@pytest.mark.needs("bubblewrap")
def test_the_page_is_served_without_a_network(wheel: Path, person: Person, tmp_path: Path) -> None:
    bough = install(wheel, tmp_path / "env", "[server]")
    assert person.try_command([bough, "run", "hello"]).code == 0
    alone = ["bwrap", "--dev-bind", "/", "/", "--unshare-net"]
    visit = person.try_command([*alone, bough.with_name("python"), "-c", _VISIT, bough])
    assert visit.code == 0, visit
    seen = json.loads(visit.stdout)
    assert seen["network"] == "Network is unreachable"
    assert (seen["title"], seen["others"]) == (["hello: bough"], [])
    assert {"timeline.js", "core.js", "icons.svg"} <= set(seen["sizes"]) and min(seen["sizes"].values()) > 100
