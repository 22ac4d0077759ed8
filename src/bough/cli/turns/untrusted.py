"""Refuse requests for a project's untrusted skill before anything is run or created."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from bough.agents.spec import AgentSpec
    from bough.conversation import AsyncConversation
    from bough.settings import Settings
    from bough.skills import SkillRegistry


def refuse_untrusted_start(agent: AgentSpec, message: str, workspace: Path, settings: Settings) -> None:
    """Check the first message of a conversation before the conversation is created.

    Raises:
        PermissionDenied: The message calls an untrusted skill, or the offline planner would choose one.
    """
    from bough.agents.build import open_registry
    from bough.conversation.agent import workspace_folder
    from bough.conversation.message import refuse_untrusted
    from bough.events.model import UserMessage

    folder = workspace_folder(workspace)
    registry = open_registry(agent, workspace=folder, home=settings.home, roots=settings.skill_roots)
    if refused := refuse_untrusted(UserMessage.text(message), registry):
        raise refused[0]
    _refuse_planned(registry, agent.model_name, message, folder)


def refuse_untrusted_request(conversation: AsyncConversation, message: str) -> None:
    """Refuse a message for which the offline planner would choose a skill if the skill were trusted.

    A language model may do the job without the skill. The planner would claim that no skill fits, which is wrong.

    Raises:
        PermissionDenied: The planner would choose an untrusted skill.
    """
    _refuse_planned(conversation.skills, conversation.agent.model_name, message, conversation.workspace)


def _refuse_planned(registry: SkillRegistry, model: str | None, message: str, workspace: Path) -> None:
    from bough.skills.match.triggers import list_hidden

    hidden = list_hidden(registry)
    if not hidden or model != "offline":
        return
    from bough.agents.models.offline import list_folders
    from bough.agents.models.planner import mark_folders
    from bough.agents.models.planner.rank import RankedSkill, find_jobs

    message = mark_folders(message, list_folders(workspace))
    offered = [*registry.list_catalogued(), *(skill for skill in hidden if skill.catalogued)]
    jobs = find_jobs([RankedSkill(name=skill.name, text=skill.description) for skill in offered], message)
    for skill in hidden:
        if any(job.skill == skill.name for job in jobs):
            raise registry.explain_refusal(skill)
