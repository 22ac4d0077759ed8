"""What a model sees of a skill once it is active (tier 2): the instructions and the list of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from bough.errors import BoughError, LimitExceeded
from bough.skills.match.inputs import (
    ARGUMENTS,
    check_inputs,
    inputs_of,
    is_needed,
    missing_inputs,
    parse_arguments,
    substitute,
)
from bough.skills.model import InputMetadata, Resources, Skill

if TYPE_CHECKING:
    from bough.skills.match.triggers import TriggerMatch
    from bough.skills.registry import SkillRegistry

MAX_LISTED = 100
MAX_SKILLS = 5
MAX_INSTRUCTIONS = 64 << 10
MAX_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Activation:
    """A skill's text on its way into a conversation.

    Attributes:
        content_hash: sha256 of the skill's file, hexadecimal: the same text has the same hash.
        rendered: What the model sees.
        missing: Required inputs without a value; `rendered` asks for them by name.
        tree: Digest of the copy that its scripts and files are taken from; empty for one without files.
    """

    name: str
    content_hash: str
    rendered: str
    missing: tuple[str, ...] = ()
    tree: str = ""


@dataclass(frozen=True, slots=True)
class Activated:
    """What one message activated, and what was left out and why."""

    activations: tuple[tuple[TriggerMatch, Activation], ...]
    left_out: tuple[tuple[TriggerMatch, BoughError], ...] = ()


def activate(skill: Skill, inputs: Mapping[str, str] | None = None, *, tree: str = "") -> Activation:
    """Return what the model sees of `skill`, with `inputs` put in. Reads its file and lists its folder.

    Args:
        tree: Digest of the snapshot that belongs to it.

    Raises:
        InvalidInput: A name in `inputs` is not an input of the skill, or a value cannot be used.
        SkillRefused: Its file can no longer be read.
    """
    known = inputs_of(skill)
    given = dict(inputs or {})
    if not skill.inputs and ARGUMENTS in given:  # what was called did not know yet what the text asks for
        given = parse_arguments(given[ARGUMENTS], known) | given
    values = check_inputs(known, given)
    missing = missing_inputs(known, values)
    without = {each.name for each in known if each.name not in values and not is_needed(each)}
    parts = [
        _shorten_instructions(substitute(skill.content, values, without=without), skill),
        "[The instructions are longer than 1 MB; the rest was left out.]" if skill.document.truncated else "",
        _asking([each for each in known if each.name in missing]),
        _listing(skill.resources),
    ]
    body = "\n\n".join(part for part in parts if part)
    rendered = f'<skill name="{escape(skill.name)}">\n{_contained(body)}\n</skill>'
    return Activation(skill.name, skill.content_hash, rendered, missing, tree)


def activate_matches(
    registry: SkillRegistry,
    matches: Sequence[TriggerMatch],
    *,
    max_skills: int = MAX_SKILLS,
    max_bytes: int = MAX_BYTES,
) -> Activated:
    """Return what a message activates, within bounds; those named by `/name` come first. Reads each skill's file.

    A skill that cannot be read, or may not be used, is left out with the reason and harms no other.

    Args:
        max_skills: How many skills one message may activate.
        max_bytes: How long their texts may be together.
    """
    done: list[tuple[TriggerMatch, Activation]] = []
    left_out: list[tuple[TriggerMatch, BoughError]] = []
    left = max_bytes
    for match in sorted(matches, key=lambda each: each.kind != "slash"):
        if len(done) >= max_skills:
            left_out.append((match, too_many(f"more than {max_skills} skills in one message")))
            continue
        try:
            skill = registry.get(match.skill)
            taken = registry.snapshot(skill)
            activation = activate(skill, match.inputs, tree="" if taken is None else taken.digest)
        except BoughError as error:
            left_out.append((match, error))
            continue
        size = len(activation.rendered.encode("utf-8", "replace"))
        if size > left:
            left_out.append((match, too_long(f"more than {max_bytes} bytes of skills in one message")))
        else:
            left -= size
            done.append((match, activation))
    return Activated(tuple(done), tuple(left_out))


def too_many(reason: str) -> LimitExceeded:
    """Return why a skill is left out for which there is no place."""
    return LimitExceeded(reason, hint="select fewer skills")


def too_long(reason: str) -> LimitExceeded:
    """Return why a skill is left out whose text has no room."""
    return LimitExceeded(reason, hint="shorten it, or select fewer skills")


def _shorten_instructions(text: str, skill: Skill) -> str:
    """Return instructions of at most 64 KiB, with where the rest is read."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_INSTRUCTIONS:
        return text
    head = data[:MAX_INSTRUCTIONS].decode("utf-8", "ignore").rpartition("\n")[0] or text[: MAX_INSTRUCTIONS // 4]
    if skill.path is None or skill.folder is None:
        return f"{head}\n[cut: the instructions have {len(data)} bytes]"
    whole = skill.path.read_bytes().decode("utf-8", "replace")
    line = whole.count("\n", 0, max(0, whole.find(skill.content[:200]))) + head.count("\n") + 2
    return f"{head}\n[cut; read on with load_skill_resource({skill.name!r}, {skill.path.name!r}, start_line={line})]"


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
