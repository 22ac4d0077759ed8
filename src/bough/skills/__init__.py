"""Agent skills: finding and parsing them, matching them to messages, showing them to a model, running their scripts.

Start with `SkillRegistry.open`. Submodules are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bough.skills.find.catalog import Catalog as Catalog
    from bough.skills.find.catalog import render_catalog as render_catalog
    from bough.skills.find.check import CheckedSkill as CheckedSkill
    from bough.skills.match.activation import Activation as Activation
    from bough.skills.match.activation import activate as activate
    from bough.skills.match.triggers import TriggerIndex as TriggerIndex
    from bough.skills.match.triggers import TriggerMatch as TriggerMatch
    from bough.skills.model import Diagnostic as Diagnostic
    from bough.skills.model import InputMetadata as InputMetadata
    from bough.skills.model import KeywordTrigger as KeywordTrigger
    from bough.skills.model import PathTrigger as PathTrigger
    from bough.skills.model import Resources as Resources
    from bough.skills.model import Skill as Skill
    from bough.skills.model import SkillMetadata as SkillMetadata
    from bough.skills.model import TaskTrigger as TaskTrigger
    from bough.skills.read.parse import SkillRefused as SkillRefused
    from bough.skills.read.parse import read_skill as read_skill
    from bough.skills.registry import SkillRegistry as SkillRegistry
    from bough.skills.run.scripts import ScriptResult as ScriptResult
    from bough.skills.run.scripts import run_script as run_script
    from bough.skills.run.tools import SkillSandbox as SkillSandbox
    from bough.skills.run.tools import create_skill_sandbox_manager as create_skill_sandbox_manager
    from bough.skills.run.tools import get_all_tools as get_all_tools
    from bough.skills.run.tools import get_skill_instructions as get_skill_instructions
    from bough.skills.run.tools import list_available_skills as list_available_skills
    from bough.skills.run.tools import run_skill_script as run_skill_script
    from bough.skills.trust.trust import TrustStore as TrustStore
else:
    from bough.lazy import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "bough.skills.find.catalog": "Catalog render_catalog",
            "bough.skills.find.check": "CheckedSkill",
            "bough.skills.match.activation": "Activation activate",
            "bough.skills.match.triggers": "TriggerIndex TriggerMatch",
            "bough.skills.model": (
                "Diagnostic InputMetadata KeywordTrigger PathTrigger Resources Skill SkillMetadata TaskTrigger"
            ),
            "bough.skills.read.parse": "SkillRefused read_skill",
            "bough.skills.registry": "SkillRegistry",
            "bough.skills.run.scripts": "ScriptResult run_script",
            "bough.skills.run.tools": (
                "SkillSandbox create_skill_sandbox_manager get_all_tools get_skill_instructions list_available_skills "
                "run_skill_script"
            ),
            "bough.skills.trust.trust": "TrustStore",
        },
    )
