"""Adding skill texts to a conversation, up to limits: each text once, and again after it has changed.

Always-active skills are part of the instructions, which a conversation records at its start. So their text is the same
in every request and every fork, even if the files change, and condensation does not remove it.

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

_REPORTED_CODES = frozenset(
    {"trigger-bad-regex", "trigger-bad-glob", "trigger-both", "field-misspelt", "bound-files", "bound-seconds"}
)
"""Codes of diagnostics about changed behaviour of a skill that a run would not show otherwise."""

_MAX_REPORTED = 20

CHANGED = "[This text has changed; it replaces the earlier one of this skill.]"
"""First line of a skill's text that replaces an earlier version of the text."""

ActivatedBy: TypeAlias = Literal["keyword", "task", "path", "always", "slash", "tool"]


@dataclass(frozen=True, slots=True)
class AlwaysActiveSkills:
    """The always-active skills, in the current state of their files.

    Attributes:
        omitted: Names of skills that exceed a limit or cannot be read, each with the error.
    """

    activations: tuple[Activation, ...] = ()
    omitted: tuple[tuple[str, BoughError], ...] = ()

    @property
    def text(self) -> str:
        """The texts of the skills, as they are in the instructions; empty if there are none."""
        return "\n\n".join(activation.rendered for activation in self.activations)


def find_always_active(
    registry: SkillRegistry,
    *,
    max_skills: int = MAX_ALWAYS_SKILLS,
    max_bytes: int = MAX_ALWAYS_BYTES,
    changed_rules: Collection[str] = (),
) -> AlwaysActiveSkills:
    """Return the always-active skills of a registry, up to the limits; those of outer folders first. Reads their files.

    A skill that cannot be read or exceeds a limit is omitted, with the error.

    Args:
        changed_rules: Digests of the rule files that changed while tools of the conversation ran.
    """
    activations: list[Activation] = []
    omitted: list[tuple[str, BoughError]] = []
    bytes_left = max_bytes
    names = [skill.name for skill in registry.list_all() if _is_always_active(skill)]
    # Rules of outer folders first, so that rules of inner folders can refine them.
    for name in sorted(names, key=lambda name: name.count("/")):
        try:
            skill = registry.get(name)
            require_reviewed(registry, skill, changed_rules)
            activation = _mark_always_active(activate(skill))
        except BoughError as error:
            omitted.append((name, error))
            continue
        size = len(activation.rendered.encode("utf-8", "replace"))
        if len(activations) >= max_skills:
            omitted.append((name, make_count_error(f"at most {max_skills} skills can be always active")))
        elif size > bytes_left:
            omitted.append((name, make_size_error(f"the always-active skills exceed {max_bytes} bytes")))
        else:
            bytes_left -= size
            activations.append(activation)
    diagnostics = [diagnostic for diagnostic in registry.diagnostics if diagnostic.code in _REPORTED_CODES][
        :_MAX_REPORTED
    ]
    omitted += [(_get_skill_name(item), InvalidInput(item.message, hint=item.fix)) for item in diagnostics]
    return AlwaysActiveSkills(tuple(activations), tuple(omitted))


def _get_skill_name(diagnostic: Diagnostic) -> str:
    """Return the name of a diagnostic's skill: the folder of a `SKILL.md`, or the name of a flat file."""
    parts = diagnostic.path.rsplit("/", 2)
    return parts[-2] if is_skill_file(parts[-1]) and len(parts) > 1 else parts[-1]


def _is_always_active(skill: SkillMetadata) -> bool:
    """Whether a skill is always active, which means that its `kind` is `repository`."""
    # Without calling `kind`, which is twelve times as slow: this runs for every skill of every conversation.
    return skill.trigger is None and not is_skill_file(skill.file.rpartition("/")[2])


def _mark_always_active(activation: Activation) -> Activation:
    marked_text = activation.rendered.replace("<skill name=", '<skill always="true" name=', 1)
    return Activation(activation.name, activation.content_hash, marked_text, activation.missing)


def is_current(registry: SkillRegistry, name: str, digest: str | None) -> bool:
    """Whether `digest` is the hash of the skill's current text; True if the skill can no longer be read."""
    if digest is None:
        return False
    try:
        return registry.get(name).content_hash == digest
    except BoughError:
        return True  # without a newer text, the one in the conversation remains in use


def render_update(activation: Activation, previous_hash: str | None) -> str:
    """Return the activation's text; if `previous_hash` is the hash of another text, marked as a new version."""
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

    Its text is empty if the conversation already contains the text. Texts of tasks and texts with inputs are always
    repeated.

    Args:
        previous_hash: Hash of the skill's text in the conversation; None if the conversation does not contain it.
    """
    # The hash covers only the file: with inputs, texts with equal hashes may differ.
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


def make_skip_events(omitted: Iterable[tuple[str, BoughError]]) -> list[SkillSkipped]:
    """Return the events that record which skills were skipped, and why."""
    default_hint = "run `bough skills check` for details"
    return [
        SkillSkipped(name=name, code=error.code, message=error.message, hint=error.hint or default_hint)
        for name, error in omitted
    ]
