"""Rates the risk of tool calls by rules: the tool, its paths, its command line, and secrets in its arguments."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

from bough.errors import InvalidInput
from bough.guard.paths import path_findings
from bough.guard.request import CODE_NAMES, COMMAND_NAMES, PATH_NAMES, ToolRequest, command_text, list_texts
from bough.guard.risk import Assessment, Risk, RiskFinding, names
from bough.types import Json, JsonObject


class SecurityAnalyzer(Protocol):
    """Rates the risk of calls. If it raises, the guard rejects the call.

    Before an analyzer is asked, the call is made durable. An analyzer that contacts nothing outside of this process
    (no model, no service) may have `outside = False` to skip that.
    """

    async def analyze(self, call: ToolRequest) -> Assessment:
        """Return the risk with its reasons; UNKNOWN if it cannot be determined."""
        ...

    def to_json(self) -> JsonObject:
        """Return its record in a log."""
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
    """Rates calls by rules only, so that the same call in the same workspace always has the same risk.

    A tool without a rule is UNKNOWN, even if nothing in its arguments looks harmful.

    Args:
        risks: The minimum risk of tools by name; replaces the built-in rule of a tool.
        shells: More tools whose `command` argument is a command line and that do nothing else.
    """

    outside = False

    def __init__(self, risks: Mapping[str, Risk] | None = None, *, shells: frozenset[str] = frozenset()) -> None:
        self._own = dict(risks or {})
        self._own_shells = frozenset(shells)
        self._risks = {**_KNOWN, **self._own}
        self._shells = _SHELLS | self._own_shells

    async def analyze(self, call: ToolRequest) -> Assessment:
        """Return the findings of all rules. Follows links on disk in a thread; runs nothing and asks no model."""
        if call.arguments.keys() & (COMMAND_NAMES | PATH_NAMES):
            return await asyncio.to_thread(self.assess, call)
        return self.assess(call)

    def assess(self, call: ToolRequest) -> Assessment:
        """Return the same as `analyze`, synchronously."""
        return Assessment.collect(self._findings(call))

    def to_json(self) -> JsonObject:
        """Return its kind and its own tools."""
        data: JsonObject = {"kind": "RuleAnalyzer"}
        if self._own:
            data["risks"] = {tool: risk.value for tool, risk in sorted(self._own.items())}
        if self._own_shells:
            data["shells"] = sorted(self._own_shells)
        return data

    def _findings(self, call: ToolRequest) -> Iterator[RiskFinding]:
        yield from self._assess_tool(call)
        yield from secret_findings(call.arguments)
        for name, value in call.arguments.items():
            if name in COMMAND_NAMES:
                yield from _assess_command(value, call)
            elif name in PATH_NAMES:
                yield from _assess_paths(value, call)
            elif name in CODE_NAMES and call.tool == "python":
                yield from _assess_code(value)

    def _assess_tool(self, call: ToolRequest) -> Iterator[RiskFinding]:
        tool = call.tool if call.tool in self._risks or call.tool in self._shells else _snake_case(call.tool)
        if tool in self._shells and tool not in self._own:
            # A known shell has no risk itself, its command line has; without one, nothing is known.
            if not COMMAND_NAMES & call.arguments.keys():
                yield RiskFinding(Risk.UNKNOWN, f"`{call.tool}` runs a command that is not among its arguments")
        elif tool in self._risks:
            yield RiskFinding(self._risks[tool], f"`{call.tool}` is {self._risks[tool].value} by rule")
        else:
            yield RiskFinding(Risk.UNKNOWN, f"there is no rule for the tool `{call.tool[:60]}`")


def _snake_case(name: str) -> str:
    """Return a tool name in snake case: `ReadFile` is `read_file`."""
    return "".join(f"_{c.lower()}" if c.isupper() and at else c.lower() for at, c in enumerate(name))


def _assess_command(value: Json, call: ToolRequest) -> Iterator[RiskFinding]:
    from bough.guard.shell.assess import assess_shell  # loads the grammar

    text = command_text(value)
    if not text and value not in ("", None):
        yield RiskFinding(Risk.UNKNOWN, "the command is neither a text nor a list of texts")
    yield from assess_shell(text, workspace=call.workspace)


def _assess_code(value: Json) -> Iterator[RiskFinding]:
    """Yield a HIGH finding for code with harmful words, as for `python3 -c`."""
    from bough.guard.shell.runners import is_harmful_code

    if any(is_harmful_code(text) for text in list_texts(value)):
        yield RiskFinding(Risk.HIGH, "the code starts programs, deletes, decodes or connects")


def _assess_paths(value: Json, call: ToolRequest) -> Iterator[RiskFinding]:
    write = _snake_case(call.tool) not in _READING  # an unknown tool may write
    for path in list_texts(value):
        yield from path_findings(path, workspace=call.workspace, write=write)


def analyzer_from_json(value: Json) -> RuleAnalyzer:
    """Return the analyzer of a record.

    Raises:
        InvalidInput: It is not the record of a `RuleAnalyzer`.
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
    """Yield a HIGH finding for each kind of secret in a JSON value, with the kind and never the text."""
    text = "\n".join(_strings(value))
    for name, shape in _SHAPES:
        if re.search(shape, text):
            yield RiskFinding(Risk.HIGH, f"the arguments hold {name}")


def _strings(value: Json) -> Iterator[str]:
    """Yield all texts in a JSON value, keys included. Not recursive, so depth is not bounded by the stack."""
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
