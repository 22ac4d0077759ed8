"""What a model request shows the planner: the user's words, the skills on offer, the tools, and this turn's calls."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from typing import cast
from xml.etree import ElementTree

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextContent,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters

from bough.agents.models.planner.rank import RankedSkill
from bough.types import Json, JsonObject

_CATALOG = re.compile(r"<available_skills\b.*?</available_skills>|<available_skills\s*/>", re.DOTALL)
_ACTIVE = re.compile(r"<skill\s+(always=\"true\"\s+)?name=(\"[^\"]*\"|'[^']*').*</skill>", re.DOTALL)
_FEEDBACK = re.compile(r"<(?:pyai:)?(retry_feedback|validation_errors)>\n.*\n</(?:pyai:)?\1>\s*$", re.DOTALL)
_AGENT = re.compile(r"^- ([\w.-]+): (.*)$", re.MULTILINE)
LOADERS = ("load_skill", "activate_skill")
RUNNER = "run_skill_script"
READER = "load_skill_resource"
DELEGATE = "delegate"


@dataclass(frozen=True, kw_only=True)
class Active:
    """A skill whose text is in the request already."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Done:
    """A call of this turn and how it ended: `outcome` is PydanticAI's, `result` what the tool returned."""

    tool: str
    args: JsonObject
    result: Json
    outcome: str

    @property
    def fields(self) -> JsonObject:
        """The result where it is a JSON object, an empty one otherwise."""
        return cast("JsonObject", self.result) if isinstance(self.result, dict) else {}  # pyright: ignore[reportUnknownMemberType]

    @property
    def failed(self) -> bool:
        """Whether it came to nothing: refused, interrupted, or with an error in its result."""
        if self.outcome != "success":
            return True
        fields = self.fields
        return fields.get("status") == "error" or bool(fields.get("error_code") or fields.get("timed_out"))


@dataclass(frozen=True, kw_only=True)
class Used:
    """The script that was called last before this turn."""

    skill: str
    script: str


@dataclass(frozen=True, kw_only=True)
class PlannerTurn:
    """Everything the planner decides from.

    Attributes:
        message: The user's latest words, without the texts of activated skills.
        active: Skills that came with the message, in order; not those that a tool activated later.
        entries: The catalogue: names and descriptions.
        agents: The sub-agents that work can be given to, likewise; none that has a skill's name.
        names: All skill names known, also of skills that the catalogue leaves out.
        tools: Names of the tools that may be called.
        done: Calls since the message, in order, with their results.
        used: What a follow-up refers to.
    """

    message: str
    active: tuple[Active, ...] = ()
    entries: tuple[RankedSkill, ...] = ()
    agents: tuple[RankedSkill, ...] = ()
    names: frozenset[str] = frozenset()
    tools: frozenset[str] = frozenset()
    done: tuple[Done, ...] = ()
    used: Used | None = None


def read_turn(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> PlannerTurn:
    """Return the turn that `messages` ends in. O(messages)."""
    start = _start(messages)
    prompts = list(_user_texts(messages[start:]))
    standing = _standing_text(messages, parameters)
    entries = read_catalog(standing)
    calls = list(_calls(messages))
    active = tuple(_active(list(_user_texts(messages[start : start + 1]))))
    return PlannerTurn(
        message="\n".join(filter(None, map(_own_words, prompts))),
        active=active,
        entries=entries,
        agents=tuple(_agents(parameters, standing, {entry.name for entry in entries})),
        names=frozenset(item.name for item in (*entries, *active)) | _read_enum(parameters, LOADERS, "skill_name"),
        tools=frozenset(tool.name for tool in parameters.declared_function_tools),
        done=tuple(done for at, done in calls if at > start),
        used=next((used for at, done in reversed(calls) if at < start and (used := _parse_used(done))), None),
    )


def read_catalog(text: str) -> tuple[RankedSkill, ...]:
    """Return the entries of the last `<available_skills>` element in `text`; none when there is no readable one."""
    elements = _CATALOG.findall(text)
    return tuple(_entries(elements[-1])) if elements else ()


def _entries(element: str) -> Iterator[RankedSkill]:
    try:
        root = ElementTree.fromstring(element)  # noqa: S314 - starts at its root, so it can declare no entity
    except ElementTree.ParseError:
        return
    for skill in root.iter("skill"):
        name = (skill.findtext("name") or skill.get("name") or "").strip()
        description = skill.findtext("description") or skill.get("description") or skill.text or ""
        if name:
            yield RankedSkill(name=name, text=" ".join(description.split()))


def _start(messages: Sequence[ModelMessage]) -> int:
    """Return where the user spoke last; 0 when nobody did."""
    spoke = (i for i in reversed(range(len(messages))) if any(map(_own_words, _user_texts(messages[i : i + 1]))))
    return next(spoke, 0)


def _user_texts(messages: Sequence[ModelMessage]) -> Iterator[str]:
    for message in messages:
        if not isinstance(message, ModelRequest):
            continue
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                text = _text(part)
                if not _FEEDBACK.search(text):
                    yield text


def _text(part: UserPromptPart) -> str:
    if isinstance(part.content, str):
        return part.content
    items = (item.content if isinstance(item, TextContent) else item for item in part.content)
    return "\n".join(item for item in items if isinstance(item, str))


def _own_words(text: str) -> str:
    """Return `text` without the skill that was activated along with it; a part carries one at most."""
    return _ACTIVE.sub("", text).strip()


def _active(prompts: Sequence[str]) -> Iterator[Active]:
    for text in prompts:
        if (match := _ACTIVE.search(text)) and not match[1]:
            yield Active(name=unescape(match[2][1:-1]), text=match[0])


def _standing_text(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> str:
    requests = [message for message in messages if isinstance(message, ModelRequest)]
    system = [part.content for m in requests for part in m.parts if isinstance(part, SystemPromptPart)]
    instructions = [part.content for part in parameters.instruction_parts or ()]
    return "\n".join([*system, *(m.instructions or "" for m in requests), *instructions])


def _read_enum(parameters: ModelRequestParameters, tools: Collection[str], argument: str) -> frozenset[str]:
    """Return the names that the schema of a tool allows; it holds them all, a catalogue may not."""
    for tool in parameters.declared_function_tools:
        if tool.name in tools:
            values = tool.parameters_json_schema.get("properties", {}).get(argument, {}).get("enum", ())
            return frozenset(value for value in values if isinstance(value, str))
    return frozenset()


def _agents(parameters: ModelRequestParameters, standing: str, skills: Collection[str]) -> Iterator[RankedSkill]:
    """Yield the sub-agents that may be delegated to, with what the catalogue in the prompt says of each."""
    described = {match[1]: match[2] for match in _AGENT.finditer(standing)}
    for name in sorted(_read_enum(parameters, (DELEGATE,), "agent_name")):
        if name not in skills:
            yield RankedSkill(name=name, text=described.get(name, ""))


def _calls(messages: Sequence[ModelMessage]) -> Iterator[tuple[int, Done]]:
    """Yield every answered call with the index of the response that made it."""
    returns = {
        part.tool_call_id: part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)
    }
    for at, message in enumerate(messages):
        for call in message.tool_calls if isinstance(message, ModelResponse) else ():
            if (back := returns.get(call.tool_call_id)) is not None:
                args = call.args_as_dict(raise_if_invalid=False)
                yield at, Done(tool=call.tool_name, args=args, result=_plain(back.content), outcome=back.outcome)


def _plain(content: Json) -> Json:
    """Return a tool's result as JSON: a text that holds a JSON object is read, anything else is left as it is."""
    if isinstance(content, str) and content.lstrip().startswith("{"):
        try:
            return json.loads(content)
        except ValueError:
            return content
    return content


def _parse_used(done: Done) -> Used | None:
    if done.tool != RUNNER:
        return None
    return Used(skill=str(done.args.get("skill_name", "")), script=str(done.args.get("script_path", "")))
