"""Adding skill texts to a conversation: within bounds, each text once, and again if it changed.

Always-active skills are part of the instructions, which a conversation records at its start: their text is the same in
every request and every fork, whatever happens on disk, and condensation cannot remove it.

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
"""How many skills may be always active."""

MAX_ALWAYS_BYTES = 64 << 10
"""Total size of the texts of always-active skills."""

MAX_ACTIVE = 100
"""How many skills keywords and paths may activate in one conversation."""

_SILENT = frozenset(
    {"trigger-bad-regex", "trigger-bad-glob", "trigger-both", "field-misspelt", "bound-files", "bound-seconds"}
)
_MAX_TOLD = 20

CHANGED = "[This text has changed; it replaces the earlier one of this skill.]"
"""First line of a skill's text that replaces an earlier version."""

ActivatedBy: TypeAlias = Literal["keyword", "task", "path", "always", "slash", "tool"]


@dataclass(frozen=True, slots=True)
class Standing:
    """The always-active skills, as their files are now.

    Attributes:
        left_out: The skills that exceed a bound or cannot be read, with the reason.
    """

    activations: tuple[Activation, ...] = ()
    left_out: tuple[tuple[str, BoughError], ...] = ()

    @property
    def text(self) -> str:
        """Their text in the instructions; empty if there are none."""
        return "\n\n".join(activation.rendered for activation in self.activations)


def standing(
    registry: SkillRegistry,
    *,
    max_skills: int = MAX_ALWAYS_SKILLS,
    max_bytes: int = MAX_ALWAYS_BYTES,
    changed_rules: Collection[str] = (),
) -> Standing:
    """Return the always-active skills of a registry, sorted by name, within bounds. Reads their files.

    A skill that cannot be read or exceeds a bound is skipped, with the reason, and affects no other.

    Args:
        changed_rules: See `require_reviewed`.
    """
    done: list[Activation] = []
    left_out: list[tuple[str, BoughError]] = []
    bytes_left = max_bytes
    names = [skill.name for skill in registry.list_all() if _holds_always(skill)]
    for name in sorted(names, key=lambda name: name.count("/")):  # rules of outer folders before those of inner folders
        try:
            skill = registry.get(name)
            require_reviewed(registry, skill, changed_rules)
            activation = _always(activate(skill))
        except BoughError as error:
            left_out.append((name, error))
            continue
        size = len(activation.rendered.encode("utf-8", "replace"))
        if len(done) >= max_skills:
            left_out.append((name, make_count_error(f"at most {max_skills} skills can be always active")))
        elif size > bytes_left:
            left_out.append((name, make_size_error(f"the always-active skills exceed {max_bytes} bytes")))
        else:
            bytes_left -= size
            done.append(activation)
    left_out += [(_name_of(note), InvalidInput(note.message, hint=note.fix)) for note in _list_silent_faults(registry)]
    return Standing(tuple(done), tuple(left_out))


def _list_silent_faults(registry: SkillRegistry) -> list[Diagnostic]:
    """Return the diagnostics that change how skills behave and would otherwise be invisible in a run."""
    return [note for note in registry.diagnostics if note.code in _SILENT][:_MAX_TOLD]


def _name_of(note: Diagnostic) -> str:
    parts = note.path.rsplit("/", 2)
    return parts[-2] if is_skill_file(parts[-1]) and len(parts) > 1 else parts[-1]


def _holds_always(skill: SkillMetadata) -> bool:
    """Whether it is a repository skill; equal to `kind`, which takes a dozen times as long."""
    return skill.trigger is None and not is_skill_file(skill.file.rpartition("/")[2])


def _always(activation: Activation) -> Activation:
    marked = activation.rendered.replace("<skill name=", '<skill always="true" name=', 1)
    return Activation(activation.name, activation.content_hash, marked, activation.missing)


def is_current(registry: SkillRegistry, name: str, digest: str | None) -> bool:
    """Whether the hash `digest` is that of the skill's current text; True if the skill cannot be read any more."""
    if digest is None:
        return False
    try:
        return registry.get(name).content_hash == digest
    except BoughError:
        return True


def update_of(activation: Activation, previous_hash: str | None) -> str:
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

    Its text is empty if the conversation has it already; texts of tasks and texts with inputs are always repeated.

    Args:
        previous_hash: Hash of the skill's text in the conversation; None if there is none.
    """
    again = not inputs and trigger not in ("task", "slash") and previous_hash == activation.content_hash
    return SkillActivated(
        name=activation.name,
        content_hash=activation.content_hash,
        trigger=trigger,
        keyword=keyword,
        rendered="" if again else update_of(activation, previous_hash),
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
