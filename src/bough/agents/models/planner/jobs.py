"""What a message asks for: one job, or several when its clauses fit different skills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bough.agents.models.planner.prompt import Prompt, clauses, read_prompt
from bough.agents.models.planner.rank import RankedSkill, best_fit


@dataclass(frozen=True, kw_only=True)
class Job:
    """A skill, and the part of the message that asks for it."""

    skill: str
    prompt: Prompt


def find_jobs(entries: Sequence[RankedSkill], message: str) -> list[Job]:
    """Return the jobs of `message` in order; none when nothing fits. No part that asks for something is passed over."""
    prompt = read_prompt(message)
    several = _split(entries, message)
    if len(several) > 1:
        return [job if job.prompt.args else replace(job, prompt=_add_arguments(job.prompt, prompt)) for job in several]
    found = best_fit(entries, prompt)
    return [Job(skill=found.name, prompt=prompt)] if found else []


def _split(entries: Sequence[RankedSkill], message: str) -> list[Job]:
    """Return one job a skill; none when a clause asks for what fits nothing, or the first asks for nothing."""
    parts: dict[str, list[str]] = {}
    skill = ""
    for clause in clauses(message):
        prompt = read_prompt(clause)
        found = best_fit(entries, prompt) if prompt.strong else None
        if prompt.strong and found is None:
            return []
        skill = found.name if found else skill
        parts.setdefault(skill, []).append(clause)
    if "" in parts:
        return []
    return [Job(skill=skill, prompt=read_prompt(" ; ".join(part))) for skill, part in parts.items()]


def _add_arguments(prompt: Prompt, whole: Prompt) -> Prompt:
    """Return `prompt` with the arguments of the whole message: "links and words in a.md" names the file once."""
    return replace(prompt, args=whole.args, kinds=whole.kinds)
