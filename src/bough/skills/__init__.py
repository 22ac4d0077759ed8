"""Agent skills: finding and parsing them, matching them to messages, showing them to a model, running their scripts.

Start with `SkillRegistry.open`. Submodules are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.skills.find.catalog import Catalog, render_catalog
    from bough.skills.find.check import CheckedSkill
    from bough.skills.match.activation import Activation, activate
    from bough.skills.match.triggers import TriggerIndex, TriggerMatch
    from bough.skills.model import (
        Diagnostic,
        InputMetadata,
        KeywordTrigger,
        PathTrigger,
        Resources,
        Skill,
        SkillMetadata,
        TaskTrigger,
    )
    from bough.skills.read.parse import SkillRefused, read_skill
    from bough.skills.registry import SkillRegistry
    from bough.skills.run.scripts import ScriptResult, run_script
    from bough.skills.run.tools import (
        SkillSandbox,
        create_skill_sandbox_manager,
        get_all_tools,
        get_skill_instructions,
        list_available_skills,
        run_skill_script,
    )
    from bough.skills.trust.trust import TrustStore

_HOMES = {
    "Activation": "match.activation",
    "Catalog": "find.catalog",
    "CheckedSkill": "find.check",
    "Diagnostic": "model",
    "InputMetadata": "model",
    "KeywordTrigger": "model",
    "PathTrigger": "model",
    "Resources": "model",
    "ScriptResult": "run.scripts",
    "Skill": "model",
    "SkillMetadata": "model",
    "SkillRefused": "read.parse",
    "SkillRegistry": "registry",
    "SkillSandbox": "run.tools",
    "TaskTrigger": "model",
    "TriggerIndex": "match.triggers",
    "TriggerMatch": "match.triggers",
    "TrustStore": "trust.trust",
    "activate": "match.activation",
    "create_skill_sandbox_manager": "run.tools",
    "get_all_tools": "run.tools",
    "get_skill_instructions": "run.tools",
    "list_available_skills": "run.tools",
    "read_skill": "read.parse",
    "render_catalog": "find.catalog",
    "run_script": "run.scripts",
    "run_skill_script": "run.tools",
}

__all__ = [
    "Activation",
    "Catalog",
    "CheckedSkill",
    "Diagnostic",
    "InputMetadata",
    "KeywordTrigger",
    "PathTrigger",
    "Resources",
    "ScriptResult",
    "Skill",
    "SkillMetadata",
    "SkillRefused",
    "SkillRegistry",
    "SkillSandbox",
    "TaskTrigger",
    "TriggerIndex",
    "TriggerMatch",
    "TrustStore",
    "activate",
    "create_skill_sandbox_manager",
    "get_all_tools",
    "get_skill_instructions",
    "list_available_skills",
    "read_skill",
    "render_catalog",
    "run_script",
    "run_skill_script",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
