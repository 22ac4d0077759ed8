"""From OpenHands' body to a conversation: field by field honoured, kept, or refused by name; nothing is ignored."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, cast
from uuid import UUID

from bough.agents.spec import DEFAULT_PROMPT, AgentSpec
from bough.conversation.rules import Condenser, GivenRules
from bough.errors import InvalidInput
from bough.events.model import UserMessage
from bough.guard import Limits
from bough.server.access import Access
from bough.server.auth.sealed import MODEL_KEY
from bough.server.conversations.conversation import Start
from bough.server.conversations.policies import require_policy
from bough.server.forms.base import is_empty
from bough.server.forms.peer import MASKED, POSTED_NAME, describe_posted_spec, list_tools
from bough.server.openhands.bodies import AgentBody, MessageBody, StartConversation, ThresholdsBody
from bough.server.openhands.llm import model_of, retry_of, settings_of
from bough.server.openhands.policies import analyzer_of, policy_of
from bough.types import JsonObject

_REFUSED = {
    "agent_definitions": "name a registered agent with sub_agents",
    "hook_config": "hooks are the operator's: hooks.json in the home",
    "plugins": "use skills",
    "client_tools": "use an MCP server of a registered agent",
    "agent_launch_additions": "give the agent itself",
    "worktree": 'fork with workspace: "worktree"',
    "worktree_options": 'fork with workspace: "worktree"',
    "agent_settings": "give agent",
    "agent_profile_id": "give agent",
    "parent_conversation_id": "use /api/tasks",
    "secrets_encrypted": "give secrets in clear over TLS",
    "conversation_runtime": "there is one runtime here",
    "container": "the executor is the operator's",
}
_REFUSED_OF_AGENT = ("mcp_config", "filter_tools_regex", "critic", "persona")
_THRESHOLDS: Mapping[str, int] = {
    "action_observation": 4, "action_error": 3, "monologue": 3, "alternating_pattern": 6,
}  # fmt: skip
"""When the peer's agent counts as stuck unless somebody says otherwise."""

_DEFAULT_CONTEXT = frozenset({"skills", "system_message_suffix"})

_ACCESS = ("none", "read", "write", "run")
_TOOLS: Mapping[str, str] = {
    **dict.fromkeys(("terminal", "execute_bash", "bash", "run_command"), "run"),
    **dict.fromkeys(("file_editor", "str_replace_editor", "write_file", "edit_file"), "write"),
    **dict.fromkeys(("glob", "grep", "read_file", "list_files", "search_files"), "read"),
    **dict.fromkeys(("task_tracker", "think", "finish"), "none"),
}
"""A tool's name to the access to the workspace that it needs."""

_SNAKE = {
    **{"BashTool": "bash", "TerminalTool": "terminal", "FileEditorTool": "file_editor", "GlobTool": "glob"},
    **{"GrepTool": "grep", "TaskTrackerTool": "task_tracker", "FinishTool": "finish", "ThinkTool": "think"},
}


def start_of(access: Access, body: StartConversation, id: UUID, about: JsonObject) -> Start:
    """Return the conversation that a body asks for.

    Raises:
        InvalidInput: A field holds something that cannot be honoured; the message names it.
        PermissionDenied: A field needs another role or scope.
    """
    for name, hint in _REFUSED.items():
        _refuse(name, getattr(body, name), hint)
    if not body.stuck_detection:
        raise InvalidInput("stuck_detection: cannot be switched off", hint="bound the run: max_iterations")
    _refuse(
        "stuck_detection_thresholds", _list_thresholds(body.stuck_detection_thresholds), "the detector's own ones hold"
    )
    services = access.services
    spec = services.agents.narrow(access.caller, agent_of(access, body.agent))
    rules: GivenRules = {"limits": Limits(steps=body.max_iterations)}
    if not is_empty(body.confirmation_policy):
        rules["confirmation_policy"] = policy_of(body.confirmation_policy)
        require_policy(access, rules["confirmation_policy"])
    if not is_empty(body.security_analyzer):
        rules["security_analyzer"] = analyzer_of(body.security_analyzer)
    if (condenser := condenser_of(body.agent.condenser)) is not None:
        rules["condenser"] = condenser
    posted: JsonObject = {
        **describe_posted_agent(body.agent, spec),
        "security_analyzer": body.security_analyzer,
        "max_iterations": body.max_iterations,
        "stuck_detection": body.stuck_detection,
        "tool_module_qualnames": body.tool_module_qualnames,
    }
    return Start(
        id=id,
        agent=spec,
        workspace=services.workspaces.folder_for(access.caller, id, body.workspace.working_dir),
        tags=body.tags,
        rules=rules,
        message=_message_of(body.initial_message),
        run=body.initial_message is not None and body.initial_message.run,
        secrets=secret_values(body.secrets) | ({MODEL_KEY: body.agent.llm.api_key} if body.agent.llm.api_key else {}),
        about=about | {"form": "openhands", "posted": posted},
    )


def secret_values(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of posted secrets: texts, or `StaticSecret`s.

    Raises:
        InvalidInput: One is looked up elsewhere: no address of a body is called.
    """
    found: dict[str, str] = {}
    for name, value in given.items():
        data: JsonObject = cast("JsonObject", value) if isinstance(value, dict) else {"value": value}
        if data.get("kind", "StaticSecret") != "StaticSecret" or not isinstance(data.get("value"), str):
            raise InvalidInput(f"secrets.{name}: not a text", hint="a text, or a StaticSecret; LookupSecret is refused")
        found[name] = data["value"]
    return found


def agent_of(access: Access, agent: AgentBody) -> AgentSpec:
    """Return the agent of a body.

    Raises:
        InvalidInput: A field holds something that cannot be honoured.
        PermissionDenied: `base_url` needs an admin.
    """
    if agent.kind != "Agent":
        raise InvalidInput("agent.kind: only Agent is served here", hint="name a registered agent, or send an Agent")
    for name in _REFUSED_OF_AGENT:
        _refuse(f"agent.{name}", getattr(agent, name), "register the agent in config.yaml or with --agents")
    settings, retry = settings_of(agent.llm), retry_of(agent.llm)
    access.services.agents.require_base_url(access.caller, agent.llm.base_url)
    suffix = _suffix_of(agent.agent_context or {})
    prompt = "\n\n".join(filter(None, (agent.system_prompt or DEFAULT_PROMPT, suffix)))
    return AgentSpec(
        name=POSTED_NAME,
        model=model_of(agent.llm),
        base_url=agent.llm.base_url,
        settings=settings,
        retry=retry,
        system_prompt=prompt,
        workspace_access=cast("Any", _access_of(agent)),
        skills=None,
        discover_skills=True,
    )


def describe_posted_agent(agent: AgentBody, spec: AgentSpec) -> JsonObject:
    """Return what a row keeps of a posted agent: it, and what it became.

    Keys are masked: the client validates the agent and reads a masked key as none. Tools are those that it has.
    """
    posted = cast("JsonObject", mask_keys(agent.model_dump(mode="json", exclude_unset=True))) | {"kind": agent.kind}
    if spec.workspace_access != _access_of(agent):
        posted["tools"] = list_tools(spec.workspace_access)
    return {"agent": posted, "spec": describe_posted_spec(spec)}


def mask_keys(value: Any, name: str = "") -> Any:
    """Return a JSON value with what its name says is a secret replaced by asterisks."""
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return {key: mask_keys(each, key) for key, each in pairs.items()}
    if isinstance(value, list):
        return [mask_keys(each, name) for each in cast("list[Any]", value)]
    return MASKED if isinstance(value, str) and value and name.endswith(("_key", "_token", "_secret")) else value


def _access_of(agent: AgentBody) -> str:
    found = "none"
    for index, tool in enumerate(agent.tools):
        _refuse(f"agent.tools.{index}.params", tool.params, "tools have no parameters here")
        name = _SNAKE.get(tool.name, tool.name)
        if name not in _TOOLS:
            near = get_close_matches(name, _TOOLS, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"known tools: {', '.join(_TOOLS)}"
            raise InvalidInput(f"agent.tools.{index}.name: no such tool", hint=hint)
        found = max(found, _TOOLS[name], key=_ACCESS.index)
    return found


def _suffix_of(context: JsonObject) -> str:
    for name, value in context.items():
        if name not in _DEFAULT_CONTEXT and not (is_empty(value) or name in ("kind", "datetime", "current_datetime")):
            _refuse(f"agent.agent_context.{name}", value, "give skills to the operator, or in the prompt")
    _refuse("agent.agent_context.skills", context.get("skills"), "register skills with the operator")
    return str(context.get("system_message_suffix") or "")


def condenser_of(given: JsonObject | None) -> Condenser | None:
    """Return the condenser of a body; None where it has none.

    Raises:
        InvalidInput: It is one that is not served here.
    """
    from bough.conversation.log.condenser import SummarizingCondenser

    if is_empty(given) or given is None or given.get("kind") in ("NoOpCondenser", "NoOp"):
        return None
    if given.get("kind") != "LLMSummarizingCondenser":
        raise InvalidInput("agent.condenser.kind: no such condenser", hint="LLMSummarizingCondenser or NoOpCondenser")
    size, first, tokens = given.get("max_size", 240), given.get("keep_first", 2), given.get("max_tokens")
    if not all(isinstance(value, int) for value in (size, first)):
        raise InvalidInput("agent.condenser: max_size and keep_first are whole numbers", hint="leave them out")
    return SummarizingCondenser(max_events=size, keep_first=first, **({} if tokens is None else {"max_tokens": tokens}))


def _message_of(body: MessageBody | None) -> UserMessage | None:
    if body is None or not body.content:
        return None
    return UserMessage(content=tuple(part for item in body.content for part in item.parts()))


def _list_thresholds(thresholds: ThresholdsBody | None) -> JsonObject:
    """Return the thresholds that are not the peer's own defaults."""
    given = {} if thresholds is None else thresholds.model_extra or {}
    return {name: value for name, value in given.items() if value is not None and value != _THRESHOLDS.get(name)}


def _refuse(field: str, value: Any, hint: str) -> None:
    if not is_empty(value):
        raise InvalidInput(f"{field}: not supported", hint=hint, details={"field": field})
