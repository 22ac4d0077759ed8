"""What a person chooses for a session in an editor: the mode (a policy), the model, and commands (skills)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from acp import schema

from bough.conversation import AsyncConversation
from bough.errors import InvalidInput
from bough.guard import Policy, policy_from_json, policy_named
from bough.guard.confirmation_policy import allows_change, narrower
from bough.skills import SkillRegistry
from bough.types import Json

MODEL: Final = "model"


class Mode(NamedTuple):
    """The name and description of a policy in an editor."""

    name: str
    description: str


_MODES: Final[Mapping[str, Mode]] = {
    "rules": Mode("Ask about risky calls", "Calls that may do harm require approval."),
    "ask": Mode("Ask about every call", "Every call of a tool requires approval."),
    "allow": Mode("Ask about nothing", "Calls run at once, commands in the sandbox."),
}


def list_modes(recorded: Json, floor: str | None) -> schema.SessionModeState:
    """Return the modes of a session, and its current mode.

    Args:
        recorded: The policy in the log, as JSON.
        floor: The name of the policy that no mode may be wider than.
    """
    policy = policy_named("allow") if recorded is None else policy_from_json(recorded)
    if floor is not None:
        policy = narrower(policy, policy_named(floor))
    modes = [
        schema.SessionMode(id=id, name=mode.name, description=mode.description)
        for id, mode in _MODES.items()
        if _is_within(id, floor)
    ]
    current = next((id for id in _MODES if policy_named(id) == policy), None)
    if current is None:  # a policy of an agent or a program
        current = "current"
        modes.append(schema.SessionMode(id=current, name="The agent's own policy"))
    return schema.SessionModeState(current_mode_id=current, available_modes=modes)


def parse_mode(id: str, floor: str | None) -> Policy:
    """Return the policy of a mode.

    Raises:
        InvalidInput: The session has no such mode.
    """
    if id not in _MODES or not _is_within(id, floor):
        names = ", ".join(name for name in _MODES if _is_within(name, floor))
        raise InvalidInput(f"there is no mode {id!r:.80}", hint=f"choose one of: {names}")
    return policy_named(id)


def _is_within(id: str, floor: str | None) -> bool:
    return floor is None or allows_change(policy_named(floor), policy_named(id))


def list_options(
    conversation: AsyncConversation,
) -> list[schema.SessionConfigOptionSelect | schema.SessionConfigOptionBoolean]:
    """Return the options of a session: the model. The choices are the current model and the one in the settings."""
    present = conversation.agent.model_name or "default"
    names = dict.fromkeys(filter(None, (present, conversation.settings.model)))
    return [
        schema.SessionConfigOptionSelect(
            type="select",
            id=MODEL,
            name="Model",
            category="model",
            current_value=present,
            options=[schema.SessionConfigSelectOption(value=name, name=name) for name in names],
        )
    ]


def list_commands(skills: SkillRegistry) -> list[schema.AvailableCommand]:
    """Return the skills of a session as commands: `/name` at the start of a prompt activates one."""
    hint = schema.AvailableCommandInput(root=schema.UnstructuredCommandInput(hint="what to do"))
    return [
        schema.AvailableCommand(name=skill.name, description=skill.description or skill.name, input=hint)
        for skill in skills.list_all()
    ]
