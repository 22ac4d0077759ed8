"""A request that asks for a skill of a project that nobody has trusted: said before anything is run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bough.conversation import AsyncConversation


def refuse_untrusted_request(conversation: AsyncConversation, message: str) -> None:
    """Check that the offline planner would not choose a skill that is not trusted, were it there.

    A language model may do the job by other means; the planner would say that nothing fits, which is not so.

    Raises:
        PermissionDenied: It would.
    """
    from bough.skills.match.triggers import list_hidden

    registry = conversation.skills
    hidden = list_hidden(registry)
    if not hidden or conversation.agent.model_name != "offline":
        return
    from bough.agents.models.planner.rank import RankedSkill, find_jobs

    offered = [*registry.list_catalogued(), *(skill for skill in hidden if skill.catalogued)]
    jobs = find_jobs([RankedSkill(name=skill.name, text=skill.description) for skill in offered], message)
    for skill in hidden:
        if any(job.skill == skill.name for job in jobs):
            raise registry.explain_refusal(skill)
