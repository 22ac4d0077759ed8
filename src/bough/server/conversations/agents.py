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
from bough.server.bodies.llm import model_settings, model_string, retry_policy
from bough.server.bodies.openhands_agents import MASKED, POSTED_NAME, describe_posted_spec, list_tools
from bough.server.bodies.rules import parse_openhands_condenser
from bough.types import JsonObject

_REFUSED_OF_AGENT = ("mcp_config", "filter_tools_regex", "critic", "persona")
_DEFAULT_CONTEXT = frozenset({"skills", "system_message_suffix"})

_ACCESS = ("none", "read", "write", "run")
_TOOLS: Mapping[str, str] = {
    **dict.fromkeys(("terminal", "execute_bash", "bash", "run_command"), "run"),
    **dict.fromkeys(("file_editor", "str_replace_editor", "write_file", "edit_file"), "write"),
    **dict.fromkeys(("glob", "grep", "read_file", "list_files", "search_files"), "read"),
    **dict.fromkeys(("task_tracker", "think", "finish"), "none"),
}
"""The workspace access that each tool needs, by name."""

_SNAKE = {
    **{"BashTool": "bash", "TerminalTool": "terminal", "FileEditorTool": "file_editor", "GlobTool": "glob"},
    **{"GrepTool": "grep", "TaskTrackerTool": "task_tracker", "FinishTool": "finish", "ThinkTool": "think"},
}


@dataclass(frozen=True)
class ResolvedAgent:
    """The agent of a body.

    Attributes:
        api_key: The key of its model, if one was posted with it.
        condenser: Only OpenHands' agents have one.
        posted: The data that a conversation's row records of an OpenHands agent.
    """

    spec: AgentSpec
    api_key: str | None = field(default=None, repr=False)
    condenser: Condenser | None = None
    posted: JsonObject | None = None


def resolve_agent(access: Access, agent: PostedAgent | None) -> ResolvedAgent:
    """Return the agent of a body; the default one if the body has none.

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
    """Return the agent of a body.

    Raises:
        InvalidInput: A field has an unsupported value.
        PermissionDenied: `base_url` needs an admin.
    """
    if agent.kind != "Agent":
        raise InvalidInput("agent.kind: only Agent is served here", hint="name a registered agent, or send an Agent")
    for name in _REFUSED_OF_AGENT:
        refuse(f"agent.{name}", getattr(agent, name), "register the agent in config.yaml or with --agents")
    settings, retry = model_settings(agent.llm), retry_policy(agent.llm)
    access.services.agents.require_base_url(access.caller, agent.llm.base_url)
    suffix = _read_suffix(agent.agent_context or {})
    prompt = "\n\n".join(filter(None, (agent.system_prompt or DEFAULT_PROMPT, suffix)))
    return AgentSpec(
        name=POSTED_NAME,
        model=model_string(agent.llm),
        base_url=agent.llm.base_url,
        settings=settings,
        retry=retry,
        system_prompt=prompt,
        workspace_access=cast("Any", _find_access(agent)),
        skills=None,
        discover_skills=True,
    )


def _describe_posted_agent(agent: AgentBody, spec: AgentSpec) -> JsonObject:
    """Return the data that a row records of a posted agent: the agent, and the resulting spec.

    Keys are masked: the client validates the agent and treats a masked key as missing. Tools are the actual ones.
    """
    posted = cast("JsonObject", mask_keys(agent.model_dump(mode="json", exclude_unset=True))) | {"kind": agent.kind}
    if spec.workspace_access != _find_access(agent):
        posted["tools"] = list_tools(spec.workspace_access)
    return {"agent": posted, "spec": describe_posted_spec(spec)}


def mask_keys(value: Any, name: str = "") -> Any:
    """Return a JSON value in which values with the names of secrets are replaced by asterisks."""
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return {key: mask_keys(item, key) for key, item in pairs.items()}
    if isinstance(value, list):
        return [mask_keys(item, name) for item in cast("list[Any]", value)]
    return MASKED if isinstance(value, str) and value and name.endswith(("_key", "_token", "_secret")) else value


def _find_access(agent: AgentBody) -> str:
    access = "none"
    for index, tool in enumerate(agent.tools):
        refuse(f"agent.tools.{index}.params", tool.params, "tools have no parameters here")
        name = _SNAKE.get(tool.name, tool.name)
        if name not in _TOOLS:
            near = get_close_matches(name, _TOOLS, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"known tools: {', '.join(_TOOLS)}"
            raise InvalidInput(f"agent.tools.{index}.name: no such tool", hint=hint)
        access = max(access, _TOOLS[name], key=_ACCESS.index)
    return access


def _read_suffix(context: JsonObject) -> str:
    for name, value in context.items():
        if name not in _DEFAULT_CONTEXT and not (is_empty(value) or name in ("kind", "datetime", "current_datetime")):
            refuse(f"agent.agent_context.{name}", value, "give skills to the operator, or in the prompt")
    refuse("agent.agent_context.skills", context.get("skills"), "register skills with the operator")
    return str(context.get("system_message_suffix") or "")


def refuse(field: str, value: Any, hint: str) -> None:
    """Refuse a field that is set.

    Raises:
        InvalidInput: The field is not empty.
    """
    if not is_empty(value):
        raise InvalidInput(f"{field}: not supported", hint=hint, details={"field": field})
