"""Adding skill texts to a conversation: within bounds, each text once, and again if it changed.

Always-active skills are part of the instructions, which a conversation records at its start. Their text is therefore
the same in every request and every fork, even if the files change, and condensation cannot remove it.

Source: OpenHands (trigger `None` is active at every step; active skills are part of the agent's instructions).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bough.errors import BoughError, InvalidInput
from bough.events.model import SkillActivated, SkillSkipped
from bough.skills import SkillMetadata, SkillRegistry
from bough.skills.match.activation import Activation, activate, make_count_error, make_size_error, require_reviewed
from bough.skills.model import Diagnostic, is_skill_file

MAX_ALWAYS_SKILLS = 32
"""Maximum number of always-active skills."""

MAX_ALWAYS_BYTES = 64 << 10
"""Total size of the texts of always-active skills."""

MAX_ACTIVE = 100
"""Maximum number of skills that keywords and paths activate in one conversation."""

_SILENT = frozenset(
    {"trigger-bad-regex", "trigger-bad-glob", "trigger-both", "field-misspelt", "bound-files", "bound-seconds"}
)
"""Diagnostics that change how a skill behaves, but that a run would not show."""

_MAX_REPORTED = 20

CHANGED = "[This text has changed; it replaces the earlier one of this skill.]"
"""First line of a skill's text that replaces an earlier version."""

ActivatedBy: TypeAlias = Literal["keyword", "task", "path", "always", "slash", "tool"]


@dataclass(frozen=True, slots=True)
class Standing:
    """The always-active skills, in the current state of their files.

    Attributes:
        left_out: The omitted skills, which exceed a bound or cannot be read, with the reason.
    """

    activations: tuple[Activation, ...] = ()
    left_out: tuple[tuple[str, BoughError], ...] = ()

    @property
    def text(self) -> str:
        """Their texts in the instructions; empty without such skills."""
        return "\n\n".join(activation.rendered for activation in self.activations)


def find_always_active(
    registry: SkillRegistry,
    *,
    max_skills: int = MAX_ALWAYS_SKILLS,
    max_bytes: int = MAX_ALWAYS_BYTES,
    changed_rules: Collection[str] = (),
) -> Standing:
    """Return the always-active skills of a registry, within bounds; outer folders first. Reads their files.

    A skill that cannot be read or exceeds a bound is omitted, with the reason, and affects no other.

    Args:
        changed_rules: Digests of the rule files that changed while tools of the conversation ran.
    """
    activations: list[Activation] = []
    left_out: list[tuple[str, BoughError]] = []
    bytes_left = max_bytes
    names = [skill.name for skill in registry.list_all() if _holds_always(skill)]
    # Rules of outer folders first, so that those of inner folders can refine them.
    for name in sorted(names, key=lambda name: name.count("/")):
        try:
            skill = registry.get(name)
            require_reviewed(registry, skill, changed_rules)
            activation = _always(activate(skill))
        except BoughError as error:
            left_out.append((name, error))
            continue
        size = len(activation.rendered.encode("utf-8", "replace"))
        if len(activations) >= max_skills:
            left_out.append((name, make_count_error(f"at most {max_skills} skills can be always active")))
        elif size > bytes_left:
            left_out.append((name, make_size_error(f"the always-active skills exceed {max_bytes} bytes")))
        else:
            bytes_left -= size
            activations.append(activation)
    silent = [diagnostic for diagnostic in registry.diagnostics if diagnostic.code in _SILENT][:_MAX_REPORTED]
    left_out += [(_name_skill(item), InvalidInput(item.message, hint=item.fix)) for item in silent]
    return Standing(tuple(activations), tuple(left_out))


def _name_skill(diagnostic: Diagnostic) -> str:
    """Return the folder of a `SKILL.md`, and the file's own name for a flat skill."""
    parts = diagnostic.path.rsplit("/", 2)
    return parts[-2] if is_skill_file(parts[-1]) and len(parts) > 1 else parts[-1]


def _holds_always(skill: SkillMetadata) -> bool:
    """Whether it is a repository skill."""
    # Not by `kind`, which gives the same answer but takes a dozen times as long for every skill of every conversation.
    return skill.trigger is None and not is_skill_file(skill.file.rpartition("/")[2])


def _always(activation: Activation) -> Activation:
    marked = activation.rendered.replace("<skill name=", '<skill always="true" name=', 1)
    return Activation(activation.name, activation.content_hash, marked, activation.missing)


def is_current(registry: SkillRegistry, name: str, digest: str | None) -> bool:
    """Whether `digest` is the hash of the skill's current text; True if the skill can no longer be read."""
    if digest is None:
        return False
    try:
        return registry.get(name).content_hash == digest
    except BoughError:
        return True  # nothing newer can be shown, so the text in the conversation stays


def render_update(activation: Activation, previous_hash: str | None) -> str:
    """Return the activation's text, marked as a new version if `previous_hash` is the hash of another text."""
    if previous_hash is None or previous_hash == activation.content_hash:
        return activation.rendered
    head, line, body = activation.rendered.partition("\n")
    return f"{head}{line}{CHANGED}\n{body}"


def make_activation_event(
    activation: Activation,
    *,
    trigger: ActivatedBy,
    previous_hash: str | None,
    keyword: str | None = None,
    inputs: Mapping[str, str] | None = None,
    allowed_tools: tuple[str, ...] | None = None,
) -> SkillActivated:
    """Return the event that records an activation.

    Its text is empty if the conversation has it already. Texts of tasks and texts with inputs are always repeated.

    Args:
        previous_hash: Hash of the skill's text in the conversation; None if the conversation has no text of it.
    """
    # The hash covers the file alone: with inputs, two equal hashes can stand for two different texts.
    is_repeated = not inputs and trigger not in ("task", "slash") and previous_hash == activation.content_hash
    return SkillActivated(
        name=activation.name,
        content_hash=activation.content_hash,
        trigger=trigger,
        keyword=keyword,
        rendered="" if is_repeated else render_update(activation, previous_hash),
        inputs=dict(inputs or {}),
        allowed_tools=allowed_tools,
        tree=activation.tree,
    )


def make_skip_events(left_out: Iterable[tuple[str, BoughError]]) -> list[SkillSkipped]:
    """Return the events that record which skills were skipped, and why."""
    check = "run `bough skills check` for details"
    return [
        SkillSkipped(name=name, code=error.code, message=error.message, hint=error.hint or check)
        for name, error in left_out
    ]
