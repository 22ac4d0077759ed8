"""Agents and security analyzers of conversations as OpenHands' client reads them."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from bough.agents.spec import AgentSpec
from bough.conversation.fork.model_key import MODEL_KEY
from bough.types import JsonObject

MASKED = "**********"
POSTED_NAME = "agent"
"""The name of every agent that is posted in OpenHands' form."""

RULE_KINDS = ("PatternSecurityAnalyzer", "PolicyRailSecurityAnalyzer")
"""OpenHands' analyzers that `RuleAnalyzer` replaces."""

_PROVIDERS = {"gemini": "google", "vertex_ai": "google-vertex", "together_ai": "together"}
_COMPARED = ("settings", "retry", "workspace_access")
_TOOLS: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "read": ("glob", "grep"),
    "write": ("file_editor", "glob", "grep"),
    "run": ("terminal", "file_editor", "glob", "grep"),
}
"""The tools that stand for an access to the workspace."""


def model_named(name: str) -> str:
    """Return the model string of bough for a model name of OpenHands."""
    if "/" not in name or ":" in name.split("/", 1)[0]:
        return name
    provider, _, model = name.partition("/")
    if provider == "litellm_proxy":
        provider = "openai"
    return f"{_PROVIDERS.get(provider, provider)}:{model}"


def list_tools(workspace_access: str) -> list[JsonObject]:
    """Return the tools of an agent with this access to the workspace."""
    return [{"name": name} for name in _TOOLS.get(workspace_access, ())]


def describe_posted_spec(spec: AgentSpec) -> JsonObject:
    """Return what identifies the agent that a posted one became; kept beside the posted one, for `agent_in_force`."""
    snapshot = spec.snapshot()
    return {name: snapshot.get(name) for name in _COMPARED} | {"prompt": _digest(snapshot.get("system_prompt"))}


def agent_in_force(posted: JsonObject, agent: JsonObject, policies: JsonObject) -> JsonObject:
    """Return the agent of a conversation as OpenHands' client reads it.

    Args:
        posted: What the row keeps of the request; empty for conversations that were not started in this form.
        agent: The agent of the log's fold; `policies`: its rules.
    """
    posted_agent: JsonObject | None = posted.get("agent")
    if posted_agent is None or not _is_posted(posted, agent):
        return _from_record(agent)
    llm: JsonObject = dict(posted_agent.get("llm") or {})
    if model_named(str(llm.get("model"))) != agent.get("model"):
        llm["model"] = agent.get("model")
    if llm.get("base_url") != agent.get("base_url"):
        llm["base_url"] = agent.get("base_url")
    has_key = MODEL_KEY in (policies.get("sealed") or {})
    if bool(llm.get("api_key")) != has_key:
        llm["api_key"] = MASKED if has_key else None
    if "spec" in posted and posted["spec"]["prompt"] != _digest(agent.get("system_prompt")):
        return {**posted_agent, "llm": llm, "system_prompt": agent.get("system_prompt"), "agent_context": None}
    return {**posted_agent, "llm": llm}


def is_posted_in_force(posted: JsonObject, agent: JsonObject) -> bool:
    """Whether the agent of a log's fold is the posted one, whatever its model and prompt are now."""
    return posted.get("agent") is not None and _is_posted(posted, agent)


def describe_analyzer(recorded: JsonObject | None, posted: JsonObject | None = None) -> JsonObject | None:
    """Return the analyzer in force under a kind that OpenHands' client knows.

    Args:
        recorded: The analyzer as the log has it.
        posted: The analyzer that the conversation was started with; its kind is kept while it is the one in force.
    """
    kinds = {"RuleAnalyzer": RULE_KINDS, "ModelAnalyzer": ("LLMSecurityAnalyzer",)}
    if recorded is None or recorded.get("kind") not in kinds:
        return recorded
    names = kinds[recorded["kind"]]
    if posted and posted.get("kind") in names:
        return posted
    return {"kind": names[0]}


def _is_posted(posted: JsonObject, agent: JsonObject) -> bool:
    spec: JsonObject = posted.get("spec") or {}  # rows written before have none
    return agent.get("name") == POSTED_NAME and all(agent.get(name) == spec[name] for name in _COMPARED if name in spec)


def _from_record(agent: JsonObject) -> JsonObject:
    llm: JsonObject = {"model": agent.get("model") or "offline"}
    if agent.get("base_url"):
        llm["base_url"] = agent["base_url"]
    return {"kind": "Agent", "llm": llm, "tools": list_tools(str(agent.get("workspace_access")))}


def _digest(prompt: Any) -> str:
    return sha256(str(prompt or "").encode()).hexdigest()
