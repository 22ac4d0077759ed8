"""Rates the risk of tool calls by rules: the tool, its paths, its command line, and secrets in its arguments."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

from bough.errors import InvalidInput
from bough.guard.paths import assess_path
from bough.guard.request import CODE_NAMES, COMMAND_NAMES, PATH_NAMES, ToolRequest, join_command, list_texts
from bough.guard.risk import Assessment, Risk, RiskFinding, names
from bough.types import Json, JsonObject


class SecurityAnalyzer(Protocol):
    """Rates the risk of calls. If it raises, the guard rejects the call.

    The call is made durable before the analyzer runs. An analyzer that contacts nothing outside of this process (no
    model, no service) may set `outside = False` to skip that.
    """

    async def analyze(self, call: ToolRequest) -> Assessment:
        """Return the risks of a call with their reasons; UNKNOWN if they cannot be determined."""
        ...

    def to_json(self) -> JsonObject:
        """Return the analyzer as a log records it."""
        ...


_LOW_TOOLS = names(
    "list_skills load_skill load_skill_resource search_skills read_result read_file read list_files ls search_files "
    "glob grep view think finish final_result task_tracker"
)
_MEDIUM_TOOLS = names(
    "write_file write edit_file edit create_file make_folder delete_file move_file file_editor str_replace_editor "
    "python run_skill_script web_search web_fetch fetch"
)
_BUILT_IN_RISKS: Mapping[str, Risk] = {
    **dict.fromkeys(_LOW_TOOLS, Risk.LOW),
    **dict.fromkeys(_MEDIUM_TOOLS, Risk.MEDIUM),
}
_READING_TOOLS = names("read_file read list_files ls search_files glob grep view")
_SHELL_TOOLS = names(
    "run_command run_shell shell bash terminal execute_bash exec_command execute_command run_terminal_cmd"
)


class RuleAnalyzer:
    """Rates calls by rules only, so that the same call in the same workspace always has the same risk.

    A tool without a rule is UNKNOWN, even if nothing in its arguments looks harmful.

    Args:
        risks: The minimum risk of tools by name; it replaces a tool's built-in rule.
        shells: Additional tools that only run the command line in their `command` argument.
    """

    outside = False

    def __init__(self, risks: Mapping[str, Risk] | None = None, *, shells: frozenset[str] = frozenset()) -> None:
        self._custom_risks = dict(risks or {})
        self._custom_shells = frozenset(shells)
        self._risks = {**_BUILT_IN_RISKS, **self._custom_risks}
        self._shells = _SHELL_TOOLS | self._custom_shells

    async def analyze(self, call: ToolRequest) -> Assessment:
        """Return the findings of all rules. Links on disk are followed in a thread; nothing is run."""
        if call.arguments.keys() & (COMMAND_NAMES | PATH_NAMES):
            return await asyncio.to_thread(self.assess, call)
        return self.assess(call)

    def assess(self, call: ToolRequest) -> Assessment:
        """Return the findings of all rules, like `analyze`, but in this thread."""
        return Assessment.collect(self._list_findings(call))

    def to_json(self) -> JsonObject:
        """Return the kind, and the tools passed to the constructor."""
        data: JsonObject = {"kind": "RuleAnalyzer"}
        if self._custom_risks:
            data["risks"] = {tool: risk.value for tool, risk in sorted(self._custom_risks.items())}
        if self._custom_shells:
            data["shells"] = sorted(self._custom_shells)
        return data

    def _list_findings(self, call: ToolRequest) -> Iterator[RiskFinding]:
        yield from self._assess_tool(call)
        yield from find_secrets(call.arguments)
        for name, value in call.arguments.items():
            if name in COMMAND_NAMES:
                yield from _assess_command(value, call)
            elif name in PATH_NAMES:
                yield from _assess_paths(value, call)
            elif name in CODE_NAMES and call.tool == "python":
                yield from _assess_code(value)

    def _assess_tool(self, call: ToolRequest) -> Iterator[RiskFinding]:
        """Yield the finding about the tool alone; none for a shell, whose risk is that of its command line."""
        tool = call.tool if call.tool in self._risks or call.tool in self._shells else _snake_case(call.tool)
        if tool in self._shells and tool not in self._custom_risks:
            if not COMMAND_NAMES & call.arguments.keys():
                yield RiskFinding(Risk.UNKNOWN, f"`{call.tool}` has no command line among its arguments")
        elif tool in self._risks:
            yield RiskFinding(self._risks[tool], f"`{call.tool}` is {self._risks[tool].value} by rule")
        else:
            yield RiskFinding(Risk.UNKNOWN, f"no rule for the tool `{call.tool[:60]}`")


def _snake_case(name: str) -> str:
    """Return a tool name in snake case, such as `read_file` for `ReadFile`."""
    return "".join(f"_{c.lower()}" if c.isupper() and index else c.lower() for index, c in enumerate(name))


def _assess_command(value: Json, call: ToolRequest) -> Iterator[RiskFinding]:
    from bough.guard.shell.assess import assess_shell  # loads the grammar

    text = join_command(value)
    if not text and value not in ("", None):
        yield RiskFinding(Risk.UNKNOWN, "the command is neither a text nor a list of texts")
    yield from assess_shell(text, workspace=call.workspace)


def _assess_code(value: Json) -> Iterator[RiskFinding]:
    """Yield a HIGH finding for code with harmful words, as for `python3 -c`."""
    from bough.guard.shell.runners import is_harmful_code

    if any(is_harmful_code(text) for text in list_texts(value)):
        yield RiskFinding(Risk.HIGH, "the code starts programs, deletes, decodes or connects")


def _assess_paths(value: Json, call: ToolRequest) -> Iterator[RiskFinding]:
    may_write = _snake_case(call.tool) not in _READING_TOOLS
    for path in list_texts(value):
        yield from assess_path(path, workspace=call.workspace, write=may_write)


def analyzer_from_json(value: Json) -> RuleAnalyzer:
    """Return the analyzer that `to_json` recorded.

    Raises:
        InvalidInput: The value is not the record of a `RuleAnalyzer`.
    """
    data: dict[str, Any] = value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    try:
        analyzer = _build_rule_analyzer(data) if data.get("kind") == "RuleAnalyzer" else None
    except (ValueError, AttributeError, TypeError):
        analyzer = None
    if analyzer is None:
        raise InvalidInput(
            f"{value!r} is not the record of a RuleAnalyzer",
            hint="give any other analyzer as an object",
        )
    return analyzer


def _build_rule_analyzer(data: JsonObject) -> RuleAnalyzer:
    risks = {str(tool): Risk(risk) for tool, risk in data.get("risks", {}).items()}
    return RuleAnalyzer(risks, shells=frozenset(map(str, data.get("shells", ()))))


_SECRET_PATTERNS: tuple[tuple[str, str], ...] = (
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


def find_secrets(value: Json) -> Iterator[RiskFinding]:
    """Yield a HIGH finding for each kind of secret in a JSON value; the reason never contains the secret."""
    text = "\n".join(_list_strings(value))
    for kind, pattern in _SECRET_PATTERNS:
        if re.search(pattern, text):
            yield RiskFinding(Risk.HIGH, f"the arguments contain {kind}")


def _list_strings(value: Json) -> Iterator[str]:
    """Yield all texts in a JSON value, keys included. Not recursive, so that any depth is possible."""
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
