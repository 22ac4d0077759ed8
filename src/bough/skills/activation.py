"""What a model sees of a skill once it is active (tier 2): the instructions and the list of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from bough.skills.inputs import check_inputs, missing_inputs, substitute
from bough.skills.model import InputMetadata, Resources, Skill

MAX_LISTED = 100


@dataclass(frozen=True, slots=True)
class Activation:
    """A skill's text on its way into a conversation.

    Attributes:
        content_hash: sha256 of the skill's file, hexadecimal: the same text has the same hash.
        rendered: What the model sees.
        missing: Required inputs without a value; `rendered` asks for them by name.
    """

    name: str
    content_hash: str
    rendered: str
    missing: tuple[str, ...] = ()


def activate(skill: Skill, inputs: Mapping[str, str] | None = None) -> Activation:
    """Return what the model sees of `skill`, with `inputs` put in. Reads its file and lists its folder.

    Raises:
        InvalidInput: A name in `inputs` is no input of the skill, or a value cannot be used.
        SkillRefused: Its file can no longer be read.
    """
    values = check_inputs(skill.inputs, inputs or {})
    missing = missing_inputs(skill.inputs, values)
    parts = [
        substitute(skill.content, values),
        "[The instructions are longer than 1 MB; the rest was left out.]" if skill.document.truncated else "",
        _asking([each for each in skill.inputs if each.name in missing]),
        _listing(skill.resources),
    ]
    body = "\n\n".join(part for part in parts if part)
    rendered = f'<skill name="{escape(skill.name)}">\n{_contained(body)}\n</skill>'
    return Activation(skill.name, skill.content_hash, rendered, missing)


def _contained(body: str) -> str:
    """The body may not end the element it stands in."""
    return re.sub(r"<(/?skill[\s>])", r"&lt;\1", body, flags=re.IGNORECASE)


def _asking(missing: list[InputMetadata]) -> str:
    if not missing:
        return ""
    lines = [f"- {each.name}: {each.description}" if each.description else f"- {each.name}" for each in missing]
    return "Before you begin, ask the user for these inputs of the skill, by name:\n" + "\n".join(lines)


def _listing(resources: Resources) -> str:
    shown = resources.all[:MAX_LISTED]
    if not shown:
        return ""
    lines = [f"<file>{escape(name, quote=False)}</file>" for name in shown]
    if len(resources.all) > len(shown) or not resources.complete:
        lines.append("<more/>")
    return "<skill_resources>\n" + "\n".join(lines) + "\n</skill_resources>"
