"""The text of an active skill that the model sees (tier 2): its instructions and the list of its files."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from bough.errors import BoughError, LimitExceeded, PermissionDenied
from bough.skills.match.inputs import (
    ARGUMENTS,
    check_inputs,
    is_needed,
    list_inputs,
    list_missing_inputs,
    parse_arguments,
    substitute,
)
from bough.skills.model import InputMetadata, Resources, Skill

if TYPE_CHECKING:
    from bough.skills.match.triggers import TriggerMatch
    from bough.skills.registry import SkillRegistry

MAX_LISTED_FILES = 100
MAX_SKILLS = 5
MAX_INSTRUCTIONS = 64 << 10
MAX_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Activation:
    """A skill's text, ready to be added to a conversation.

    Attributes:
        content_hash: sha256 of the skill's file, hexadecimal.
        rendered: The text that the model sees.
        missing: Required inputs without a value; `rendered` tells the model to ask for them.
        tree: Digest of the snapshot that contains its scripts and files; empty if it has none.
        allowed_tools: The only tools that the conversation may use; None for all tools.
    """

    name: str
    content_hash: str
    rendered: str
    missing: tuple[str, ...] = ()
    tree: str = ""
    allowed_tools: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Activated:
    """The skills that a message activated, and the skills that were skipped, each with the error."""

    activations: tuple[tuple[TriggerMatch, Activation], ...]
    skipped: tuple[tuple[TriggerMatch, BoughError], ...] = ()


def activate(skill: Skill, inputs: Mapping[str, str] | None = None, *, tree: str = "") -> Activation:
    """Return the text of `skill` for the model, with `inputs` substituted. Reads the skill's file and lists its folder.

    Args:
        tree: Digest of the skill's snapshot.

    Raises:
        InvalidInput: The skill does not have one of the inputs, or a value is invalid.
        SkillRefused: The skill's file can no longer be read.
    """
    declared_inputs = list_inputs(skill)
    raw_values = dict(inputs or {})
    if not skill.inputs and ARGUMENTS in raw_values:  # undeclared inputs become known when the text is read
        raw_values = parse_arguments(raw_values[ARGUMENTS], declared_inputs) | raw_values
    values = check_inputs(declared_inputs, raw_values)
    missing = list_missing_inputs(declared_inputs, values)
    omitted = {entry.name for entry in declared_inputs if entry.name not in values and not is_needed(entry)}
    sections = [
        _shorten_instructions(substitute(skill.content, values, omitted=omitted), skill),
        "[Truncated: only the first 1 MB of the instructions was read.]" if skill.document.truncated else "",
        _ask_for_inputs([entry for entry in declared_inputs if entry.name in missing]),
        _list_files(skill.resources),
    ]
    body = "\n\n".join(part for part in sections if part)
    rendered = f'<skill name="{escape(skill.name)}">\n{_escape_skill_tags(body)}\n</skill>'
    return Activation(skill.name, skill.content_hash, rendered, missing, tree, skill.allowed_tools)


def activate_matches(
    registry: SkillRegistry,
    matches: Sequence[TriggerMatch],
    *,
    max_skills: int = MAX_SKILLS,
    max_bytes: int = MAX_BYTES,
    changed_rules: Collection[str] = (),
) -> Activated:
    """Activate the skills that match a message, up to the limits, `/name` calls first. Reads each skill's file.

    A skill that cannot be read or used is skipped, with the error; it does not stop the others.

    Args:
        max_skills: How many skills one message may activate.
        max_bytes: Limit for the total size of their texts.
        changed_rules: See `require_reviewed`.
    """
    activations: list[tuple[TriggerMatch, Activation]] = []
    skipped: list[tuple[TriggerMatch, BoughError]] = []
    bytes_left = max_bytes
    # Calls by `/name` first: if a limit is reached, keyword matches must not displace skills that the user called.
    for match in sorted(matches, key=lambda candidate: candidate.kind != "slash"):
        if len(activations) >= max_skills:
            skipped.append((match, make_count_error(f"one message can activate at most {max_skills} skills")))
            continue
        try:
            skill = registry.get(match.skill)
            require_reviewed(registry, skill, changed_rules)
            snapshot = registry.snapshot(skill)
            activation = activate(skill, match.inputs, tree="" if snapshot is None else snapshot.digest)
        except BoughError as error:
            skipped.append((match, error))
            continue
        size = len(activation.rendered.encode("utf-8", "replace"))
        if size > bytes_left:
            skipped.append((match, make_size_error(f"the skills of one message exceed {max_bytes} bytes")))
        else:
            bytes_left -= size
            activations.append((match, activation))
    return Activated(tuple(activations), tuple(skipped))


def require_reviewed(registry: SkillRegistry, rule: Skill, changed_rules: Collection[str]) -> None:
    """Check that a rule did not change while tools of the conversation ran, or that a person has trusted it since.

    Args:
        changed_rules: Digests of the rule files that changed while tools of the conversation ran.

    Raises:
        PermissionDenied: The rule changed, and no person has trusted it.
    """
    if not registry.may_follow(rule, changed_rules):
        raise make_rule_refusal(rule.name)


def make_rule_refusal(name: str) -> PermissionDenied:
    """Return the error for a rule that does not apply because it changed while a tool of the conversation ran."""
    return PermissionDenied(
        f"{name} changed while a tool of this conversation ran; the rules in it are not followed here",
        hint="review it, then run `bough skills trust --rules`, or start another conversation",
    )


def make_count_error(reason: str) -> LimitExceeded:
    """Return the error for a skill that exceeds a limit on the number of skills."""
    return LimitExceeded(reason, hint="select fewer skills")


def make_size_error(reason: str) -> LimitExceeded:
    """Return the error for a skill that exceeds a limit on the size of texts."""
    return LimitExceeded(reason, hint="shorten it, or select fewer skills")


def _shorten_instructions(text: str, skill: Skill) -> str:
    """Return the first 64 KiB of instructions. If they are longer, a last line names the call that reads the rest."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_INSTRUCTIONS:
        return text
    head = data[:MAX_INSTRUCTIONS].decode("utf-8", "ignore").rpartition("\n")[0] or text[: MAX_INSTRUCTIONS // 4]
    if skill.path is None or skill.folder is None:
        return f"{head}\n[truncated: the instructions have {len(data)} bytes]"
    # The call counts the lines of the file, which also has a frontmatter.
    file_text = skill.path.read_bytes().decode("utf-8", "replace")
    next_line = file_text.count("\n", 0, max(0, file_text.find(skill.content[:200]))) + head.count("\n") + 2
    call = f"load_skill_resource({skill.name!r}, {skill.path.name!r}, start_line={next_line})"
    return f"{head}\n[truncated; continue with {call}]"


def _escape_skill_tags(body: str) -> str:
    """Escape `skill` tags in a body, so that it cannot end the element that contains it."""
    return re.sub(r"<(/?skill[\s>])", r"&lt;\1", body, flags=re.IGNORECASE)


def _ask_for_inputs(missing: list[InputMetadata]) -> str:
    """Return the sentence that makes the model ask for missing inputs; empty if none is missing."""
    if not missing:
        return ""
    lines = [f"- {entry.name}: {entry.description}" if entry.description else f"- {entry.name}" for entry in missing]
    return "Before you start, ask the user for these inputs by name:\n" + "\n".join(lines)


def _list_files(resources: Resources) -> str:
    """Return the XML list of a skill's files; empty if it has none."""
    listed_files = resources.all[:MAX_LISTED_FILES]
    if not listed_files:
        return ""
    lines = [f"<file>{escape(name, quote=False)}</file>" for name in listed_files]
    if len(resources.all) > len(listed_files) or not resources.complete:
        lines.append("<more/>")
    return "<skill_resources>\n" + "\n".join(lines) + "\n</skill_resources>"
