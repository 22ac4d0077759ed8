"""Says how risky a tool call is, by rules: the tool, its paths, its command line, and secrets in its arguments."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

from bough.errors import InvalidInput
from bough.guard.names import names
from bough.guard.paths import path_findings
from bough.guard.request import CODE_NAMES, COMMAND_NAMES, PATH_NAMES, ToolRequest, command_text, list_texts
from bough.guard.risk import Assessment, Risk, RiskFinding
from bough.types import Json, JsonObject


class SecurityAnalyzer(Protocol):
    """Something that says how risky a call is. Whatever it raises, the guard does not let the call through.

    One that asks nobody outside of this process (a model, a service) may say so with `outside = False`; for any other
    the call it is asked about is made durable first.
    """

    async def analyze(self, call: ToolRequest) -> Assessment:
        """Return the risk and the reasons for it; UNKNOWN where it cannot be told."""
        ...

    def to_json(self) -> JsonObject:
        """What a conversation records of it."""
        ...


_KNOWN: Mapping[str, Risk] = {
    **dict.fromkeys(("list_skills", "load_skill", "load_skill_resource", "search_skills", "read_result"), Risk.LOW),
    **dict.fromkeys(("read_file", "read", "list_files", "ls", "search_files", "glob", "grep", "view"), Risk.LOW),
    **dict.fromkeys(("think", "finish", "final_result", "task_tracker"), Risk.LOW),
    **dict.fromkeys(("write_file", "write", "edit_file", "edit", "create_file", "make_folder"), Risk.MEDIUM),
    **dict.fromkeys(("delete_file", "move_file", "file_editor", "str_replace_editor"), Risk.MEDIUM),
    **dict.fromkeys(("python", "run_skill_script", "web_search", "web_fetch", "fetch"), Risk.MEDIUM),
}
_READING = names("read_file read list_files ls search_files glob grep view")
_SHELLS = names("run_command run_shell shell bash terminal execute_bash exec_command execute_command run_terminal_cmd")


class RuleAnalyzer:
    """Judges by rules alone: the same call in the same workspace always gets the same answer.

    A tool without a rule is UNKNOWN, even when nothing in its arguments looks harmful.

    Args:
        risks: Tools of your own and how risky each is at least; these come before what is built in.
        shells: Further tools whose `command` is a command line and nothing else.
    """

    outside = False

    def __init__(self, risks: Mapping[str, Risk] | None = None, *, shells: frozenset[str] = frozenset()) -> None:
        self._own = dict(risks or {})
        self._own_shells = frozenset(shells)
        self._risks = {**_KNOWN, **self._own}
        self._shells = _SHELLS | self._own_shells

    async def analyze(self, call: ToolRequest) -> Assessment:
        """Return what the rules say. Looks at links on disk (in another thread), runs nothing, asks nobody."""
        if call.arguments.keys() & (COMMAND_NAMES | PATH_NAMES):
            return await asyncio.to_thread(self.assess, call)
        return self.assess(call)

    def assess(self, call: ToolRequest) -> Assessment:
        """Return what `analyze` returns, without a loop."""
        return Assessment.collect(self._findings(call))

    def to_json(self) -> JsonObject:
        """Its name, and what was added to the rules that are built in."""
        out: JsonObject = {"kind": "RuleAnalyzer"}
        if self._own:
            out["risks"] = {tool: risk.value for tool, risk in sorted(self._own.items())}
        if self._own_shells:
            out["shells"] = sorted(self._own_shells)
        return out

    def _findings(self, call: ToolRequest) -> Iterator[RiskFinding]:
        yield from self._by_tool(call)
        yield from secret_findings(call.arguments)
        for name, value in call.arguments.items():
            if name in COMMAND_NAMES:
                yield from _command(value, call)
            elif name in PATH_NAMES:
                yield from _paths(value, call)
            elif name in CODE_NAMES and call.tool == "python":
                yield from _code(value)

    def _by_tool(self, call: ToolRequest) -> Iterator[RiskFinding]:
        tool = call.tool if call.tool in self._risks or call.tool in self._shells else _snake(call.tool)
        if tool in self._shells and tool not in self._own:
            if not COMMAND_NAMES & call.arguments.keys():
                yield RiskFinding(Risk.UNKNOWN, f"`{call.tool}` runs a command that is not among its arguments")
        elif tool in self._risks:
            yield RiskFinding(self._risks[tool], f"`{call.tool}` is {self._risks[tool].value} by rule")
        else:
            yield RiskFinding(Risk.UNKNOWN, f"there is no rule for the tool `{call.tool[:60]}`")


def _snake(name: str) -> str:
    """`Read` and `ReadFile` are `read` and `read_file`."""
    return "".join(f"_{c.lower()}" if c.isupper() and at else c.lower() for at, c in enumerate(name))


def _command(value: Json, call: ToolRequest) -> Iterator[RiskFinding]:
    from bough.guard.shell.assess import assess_shell  # the grammar is loaded when the first command is seen

    text = command_text(value)
    if not text and value not in ("", None):
        yield RiskFinding(Risk.UNKNOWN, "the command is neither a text nor a list of texts")
    yield from assess_shell(text, workspace=call.workspace)


def _code(value: Json) -> Iterator[RiskFinding]:
    """Judge code as `run_command` judges `python3 file.py`, and by the words that make `python3 -c` a high risk."""
    from bough.guard.shell.runners import is_harmful_code

    if any(is_harmful_code(text) for text in list_texts(value)):
        yield RiskFinding(Risk.HIGH, "the code starts programs, deletes, decodes or connects")


def _paths(value: Json, call: ToolRequest) -> Iterator[RiskFinding]:
    write = _snake(call.tool) not in _READING
    for path in list_texts(value):
        yield from path_findings(path, workspace=call.workspace, write=write)


def analyzer_from_json(value: Json) -> RuleAnalyzer:
    """Return the analyzer that `RuleAnalyzer.to_json` described.

    Raises:
        InvalidInput: It describes another analyzer, or none.
    """
    data: dict[str, Any] = value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    try:
        analyzer = _rule_analyzer(data) if data.get("kind") == "RuleAnalyzer" else None
    except (ValueError, AttributeError, TypeError):
        analyzer = None
    if analyzer is None:
        raise InvalidInput(
            f"{value!r} describes no analyzer that can be made from data",
            hint="only RuleAnalyzer can; give any other as an object",
        )
    return analyzer


def _rule_analyzer(data: JsonObject) -> RuleAnalyzer:
    risks = {str(tool): Risk(risk) for tool, risk in data.get("risks", {}).items()}
    return RuleAnalyzer(risks, shells=frozenset(map(str, data.get("shells", ()))))


_SHAPES: tuple[tuple[str, str], ...] = (
    ("an AWS access key", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("a GitHub token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{60,255})\b"),
    ("a GitLab token", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    ("an Anthropic key", r"\bsk-ant-[A-Za-z0-9_-]{20,}"),
    ("an OpenAI-style key", r"\bsk-(?:proj-|svcacct-)?[A-Za-z0-9_-]{20,}"),
    ("a Google key", r"\bAIza[0-9A-Za-z_-]{35}"),
    ("a Slack token", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("a Stripe key", r"\b[rs]k_live_[A-Za-z0-9]{20,}"),
    ("a Hugging Face token", r"\bhf_[A-Za-z0-9]{30,}"),
    ("an npm token", r"\bnpm_[A-Za-z0-9]{36}\b"),
    ("a PyPI token", r"\bpypi-[A-Za-z0-9_-]{50,}"),
    ("a SendGrid key", r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("a private key", r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"),
    ("a signed token (JWT)", r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    ("a bearer token", r"(?i:\bauthorization: *(?:bearer|basic|token) +)[A-Za-z0-9._~+/=-]{16,}"),
    ("a password in a URL", r"\b[a-z][a-z0-9+.-]*://[^\s/:@]{1,64}:[^\s/@$]{3,128}@"),
)


def secret_findings(value: Json) -> Iterator[RiskFinding]:
    """Yield one HIGH finding for each kind of secret in a JSON value, naming the kind and never the text."""
    text = "\n".join(_strings(value))
    for name, shape in _SHAPES:
        if re.search(shape, text):
            yield RiskFinding(Risk.HIGH, f"the arguments hold {name}")


def _strings(value: Json) -> Iterator[str]:
    """Every text in a JSON value, keys too; not recursive, whatever the depth."""
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            mapping = cast(dict[str, Any], item)
            stack += [*map(str, mapping.keys()), *mapping.values()]
        elif isinstance(item, (list, tuple)):
            stack += cast(list[Any], item)
