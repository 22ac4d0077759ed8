"""Agents and security analyzers in the form that OpenHands' client reads."""

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
_COMPARED_FIELDS = ("settings", "retry", "workspace_access")
_TOOLS_BY_ACCESS: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "read": ("glob", "grep"),
    "write": ("file_editor", "glob", "grep"),
    "run": ("terminal", "file_editor", "glob", "grep"),
}
"""The tools of OpenHands that correspond to an access to the workspace."""


def convert_model_name(name: str) -> str:
    """Return bough's model string for a model name of OpenHands."""
    if "/" not in name or ":" in name.split("/", 1)[0]:
        return name
    provider, _, model = name.partition("/")
    if provider == "litellm_proxy":
        provider = "openai"
    return f"{_PROVIDERS.get(provider, provider)}:{model}"


def list_tools(workspace_access: str) -> list[JsonObject]:
    """Return the tools of OpenHands that correspond to an access to the workspace."""
    return [{"name": name} for name in _TOOLS_BY_ACCESS.get(workspace_access, ())]


def describe_posted_spec(spec: AgentSpec) -> JsonObject:
    """Return what identifies the spec of a posted agent. `describe_agent` compares it with the current agent."""
    snapshot = spec.snapshot()
    compared = {name: snapshot.get(name) for name in _COMPARED_FIELDS}
    return compared | {"prompt": _hash_prompt(snapshot.get("system_prompt"))}


def describe_agent(posted: JsonObject, agent: JsonObject, policies: JsonObject) -> JsonObject:
    """Return the current agent of a conversation in OpenHands' form.

    That is the posted agent with its current model, address, key and prompt; or the recorded agent, if none was posted
    or it was replaced.

    Args:
        posted: What the row records of the request; empty if the conversation was not started in OpenHands' form.
        agent: The agent in the fold of the log.
        policies: The rules in the fold of the log.
    """
    posted_agent: JsonObject | None = posted.get("agent")
    if posted_agent is None or not _is_posted(posted, agent):
        return _describe_recorded(agent)
    llm: JsonObject = dict(posted_agent.get("llm") or {})
    if convert_model_name(str(llm.get("model"))) != agent.get("model"):
        llm["model"] = agent.get("model")
    if llm.get("base_url") != agent.get("base_url"):
        llm["base_url"] = agent.get("base_url")
    has_key = MODEL_KEY in (policies.get("sealed") or {})
    if bool(llm.get("api_key")) != has_key:
        llm["api_key"] = MASKED if has_key else None
    if "spec" in posted and posted["spec"]["prompt"] != _hash_prompt(agent.get("system_prompt")):
        return {**posted_agent, "llm": llm, "system_prompt": agent.get("system_prompt"), "agent_context": None}
    return {**posted_agent, "llm": llm}


def is_posted_in_force(posted: JsonObject, agent: JsonObject) -> bool:
    """Whether the agent in the fold of a log is still the posted one; its model and prompt may have changed."""
    return posted.get("agent") is not None and _is_posted(posted, agent)


def describe_analyzer(recorded: JsonObject | None, posted: JsonObject | None = None) -> JsonObject | None:
    """Return the current analyzer, under a kind that OpenHands' client knows; None without one.

    Args:
        recorded: The analyzer in the fold of the log.
        posted: The analyzer of the request. It is returned as long as the recorded one is its equivalent.
    """
    kinds = {"RuleAnalyzer": RULE_KINDS, "ModelAnalyzer": ("LLMSecurityAnalyzer",)}
    if recorded is None or recorded.get("kind") not in kinds:
        return recorded
    names = kinds[recorded["kind"]]
    if posted and posted.get("kind") in names:
        return posted
    return {"kind": names[0]}


def _is_posted(posted: JsonObject, agent: JsonObject) -> bool:
    """Whether an agent has the name and the compared fields of the posted agent's spec."""
    spec: JsonObject = posted.get("spec") or {}  # rows of older versions have none
    is_same_spec = all(agent.get(name) == spec[name] for name in _COMPARED_FIELDS if name in spec)
    return agent.get("name") == POSTED_NAME and is_same_spec


def _describe_recorded(agent: JsonObject) -> JsonObject:
    """Return a recorded agent in OpenHands' form."""
    llm: JsonObject = {"model": agent.get("model") or "offline"}
    if agent.get("base_url"):
        llm["base_url"] = agent["base_url"]
    return {"kind": "Agent", "llm": llm, "tools": list_tools(str(agent.get("workspace_access")))}


def _hash_prompt(prompt: Any) -> str:
    return sha256(str(prompt or "").encode()).hexdigest()
