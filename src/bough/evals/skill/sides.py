"""The two sides of a skill eval: the same agent with the skill and without it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from bough.agents.spec import AgentSpec
from bough.evals.run.folder import RunFolder
from bough.evals.run.plan import PlannedAttempt

WITH_SKILL = "with_skill"
WITHOUT_SKILL = "without_skill"
SIDES = (WITH_SKILL, WITHOUT_SKILL)


class SkillSides:
    """Gives each side its agent.

    Attributes:
        skill: Folder of the skill that is tried.
        others: Folders of skills that both sides have.
    """

    def __init__(self, skill: Path, others: Sequence[Path] = ()) -> None:
        self.skill = skill.absolute()
        self.others = tuple(root.absolute() for root in others)

    def begin(self, folder: RunFolder) -> None:
        """Copy the skill into the run's folder, its evals left out: no answer can be read from `evals.json`."""
        target = self._root(folder) / self.skill.name
        if not target.exists():
            part = target.with_name(f".{target.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            left_out = shutil.ignore_patterns("evals", "eval_queries.json", ".git", "__pycache__")
            shutil.copytree(self.skill, part, symlinks=True, ignore=left_out)
            part.rename(target)

    def agent_for(self, planned: PlannedAttempt, spec: AgentSpec, folder: RunFolder) -> AgentSpec:
        """Return the agent of an attempt: exactly the skills of its side, none from the usual places."""
        roots = self.others if planned.side == WITHOUT_SKILL else (self._root(folder), *self.others)
        return spec.model_copy(update={"skills": None, "discover_skills": False, "skill_roots": roots})

    def _root(self, folder: RunFolder) -> Path:
        return folder.path / "skill"
