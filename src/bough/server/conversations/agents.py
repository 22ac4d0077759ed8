"""Converting the agent of a body to a spec: each field is used, recorded, or refused by name; none is ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, cast

from bough.agents.spec import DEFAULT_PROMPT, AgentSpec
from bough.conversation.rules import Condenser
from bough.errors import InvalidInput
from bough.server.access import Access
from bough.server.bodies.agents import AgentBody, AgentForm, PostedAgent
from bough.server.bodies.base import is_empty
from bough.server.bodies.llm import parse_model, parse_model_settings, parse_retry_policy
from bough.server.bodies.openhands_agents import MASKED, POSTED_NAME, describe_posted_spec, list_tools
from bough.server.bodies.rules import parse_openhands_condenser
from bough.types import JsonObject

_REFUSED_FIELDS = ("mcp_config", "filter_tools_regex", "critic", "persona")
_READ_CONTEXT = ("skills", "system_message_suffix")
_IGNORED_CONTEXT = ("kind", "datetime", "current_datetime")

_ACCESS_LEVELS = ("none", "read", "write", "run")
_TOOL_ACCESS: Mapping[str, str] = {
    **dict.fromkeys(("terminal", "execute_bash", "bash", "run_command"), "run"),
    **dict.fromkeys(("file_editor", "str_replace_editor", "write_file", "edit_file"), "write"),
    **dict.fromkeys(("glob", "grep", "read_file", "list_files", "search_files"), "read"),
    **dict.fromkeys(("task_tracker", "think", "finish"), "none"),
}
"""The workspace access that each tool needs, by the tool's name."""

_TOOL_NAMES: Mapping[str, str] = {
    "BashTool": "bash",
    "TerminalTool": "terminal",
    "FileEditorTool": "file_editor",
    "GlobTool": "glob",
    "GrepTool": "grep",
    "TaskTrackerTool": "task_tracker",
    "FinishTool": "finish",
    "ThinkTool": "think",
}
"""The names of tools by the classes of OpenHands."""


@dataclass(frozen=True)
class ResolvedAgent:
    """The agent of a body, as a spec.

    Attributes:
        api_key: The key of its model, if the body has one.
        condenser: Set only for an OpenHands agent.
        posted: What the conversation's row records of an OpenHands agent; None for other agents.
    """

    spec: AgentSpec
    api_key: str | None = field(default=None, repr=False)
    condenser: Condenser | None = None
    posted: JsonObject | None = None


def resolve_agent(access: Access, agent: PostedAgent | None) -> ResolvedAgent:
    """Return the agent of a body, or the default agent if the body has none.

    Raises:
        InvalidInput: A field cannot be used; the message names it.
        PermissionDenied: A field needs another role.
    """
    agents = access.services.agents
    if not isinstance(agent, AgentBody):
        api_key = agent.api_key if isinstance(agent, AgentForm) else None
        return ResolvedAgent(agents.agent_for(access.caller, agent), api_key)
    condenser = parse_openhands_condenser(agent.condenser)
    spec = agents.narrow(access.caller, _build_spec(access, agent))
    return ResolvedAgent(spec, agent.llm.api_key or None, condenser, _describe_posted_agent(agent, spec))


def _build_spec(access: Access, agent: AgentBody) -> AgentSpec:
    """Convert an OpenHands agent to a spec.

    Raises:
        InvalidInput: A field has an unsupported value.
        PermissionDenied: Only an admin may set this `base_url`.
    """
    if agent.kind != "Agent":
        raise InvalidInput("agent.kind: only Agent is supported", hint="name a registered agent, or send an Agent")
    for name in _REFUSED_FIELDS:
        refuse_if_set(f"agent.{name}", getattr(agent, name), "register the agent in config.yaml or with --agents")
    settings, retry = parse_model_settings(agent.llm), parse_retry_policy(agent.llm)
    access.services.agents.require_base_url(access.caller, agent.llm.base_url)
    suffix = _read_suffix(agent.agent_context or {})
    prompt = "\n\n".join(filter(None, (agent.system_prompt or DEFAULT_PROMPT, suffix)))
    return AgentSpec(
        name=POSTED_NAME,
        model=parse_model(agent.llm),
        base_url=agent.llm.base_url,
        settings=settings,
        retry=retry,
        system_prompt=prompt,
        workspace_access=cast("Any", _find_access(agent)),
        skills=None,
        discover_skills=True,
    )


def _describe_posted_agent(agent: AgentBody, spec: AgentSpec) -> JsonObject:
    """Return what a row records of an OpenHands agent: the agent, and what identifies the resulting spec.

    Keys are masked, because the client validates the agent and treats a masked key as missing. If the spec has another
    workspace access than was asked for, the tools of the spec are recorded.
    """
    posted = cast("JsonObject", mask_keys(agent.model_dump(mode="json", exclude_unset=True))) | {"kind": agent.kind}
    if spec.workspace_access != _find_access(agent):
        posted["tools"] = list_tools(spec.workspace_access)
    return {"agent": posted, "spec": describe_posted_spec(spec)}


def mask_keys(value: Any, name: str = "") -> Any:
    """Return a JSON value in which each text under a name such as `api_key` is replaced by asterisks."""
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return {key: mask_keys(item, key) for key, item in pairs.items()}
    if isinstance(value, list):
        return [mask_keys(item, name) for item in cast("list[Any]", value)]
    return MASKED if isinstance(value, str) and value and name.endswith(("_key", "_token", "_secret")) else value


def _find_access(agent: AgentBody) -> str:
    """Return the narrowest workspace access that is enough for all tools of an agent.

    Raises:
        InvalidInput: A tool is unknown, or has parameters.
    """
    access = "none"
    for index, tool in enumerate(agent.tools):
        refuse_if_set(f"agent.tools.{index}.params", tool.params, "tools have no parameters")
        name = _TOOL_NAMES.get(tool.name, tool.name)
        if name not in _TOOL_ACCESS:
            near = get_close_matches(name, _TOOL_ACCESS, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"known tools: {', '.join(_TOOL_ACCESS)}"
            raise InvalidInput(f"agent.tools.{index}.name: no such tool", hint=hint)
        access = max(access, _TOOL_ACCESS[name], key=_ACCESS_LEVELS.index)
    return access


def _read_suffix(context: JsonObject) -> str:
    """Return the text that an agent's context appends to its system prompt.

    Raises:
        InvalidInput: The context has skills, or an unsupported field.
    """
    for name, value in context.items():
        if name not in _READ_CONTEXT and name not in _IGNORED_CONTEXT:
            refuse_if_set(
                f"agent.agent_context.{name}", value, "register skills with the operator, or put them in the prompt"
            )
    refuse_if_set("agent.agent_context.skills", context.get("skills"), "register skills with the operator")
    return str(context.get("system_message_suffix") or "")


def refuse_if_set(field: str, value: Any, hint: str) -> None:
    """Refuse a field that is set.

    Raises:
        InvalidInput: The field is not empty.
    """
    if not is_empty(value):
        raise InvalidInput(f"{field}: not supported", hint=hint, details={"field": field})
