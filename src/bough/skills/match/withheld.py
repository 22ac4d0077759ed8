"""Untrusted skills that a message asks for, so that they are reported instead of silently ignored."""

from __future__ import annotations

from bough.skills.find.search import SkillSearch
from bough.skills.match.triggers import TriggerIndex, TriggerMatch
from bough.skills.model import SkillMetadata
from bough.skills.registry import SkillRegistry


def list_hidden(registry: SkillRegistry) -> list[SkillMetadata]:
    """Return the untrusted skills whose name no usable skill has."""
    return [skill for skill in registry.withheld if skill.name not in registry]


def match_withheld(registry: SkillRegistry, text: str) -> list[TriggerMatch]:
    """Return the untrusted skills that a message would activate if they were trusted. O(untrusted skills + length)."""
    hidden = list_hidden(registry)
    return TriggerIndex(hidden).match(text) if hidden else []


def find_withheld(registry: SkillRegistry, text: str) -> list[SkillMetadata]:
    """Return the untrusted skills that a message asks for by name, trigger or words.

    By words: the one that matches the message better than every usable skill.
    """
    hidden = list_hidden(registry)
    names = {match.skill for match in match_withheld(registry, text)}
    if not names and hidden:
        names = {skill.name for skill in SkillSearch([*registry.list_all(), *hidden]).search(text, 1)}
    return [skill for skill in hidden if skill.name in names]
