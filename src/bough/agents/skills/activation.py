"""How a skill's text enters a conversation: within bounds, each text once, every change told.

What is always active stands in the instructions, which a conversation records at its start: the text is then the same
in every request and every fork, whatever happens on disk, and no summary can take its place.

Source: seed 002 (trigger `None` is active at every step; active skills are part of the agent's instructions).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bough.errors import BoughError, InvalidInput
from bough.events.model import SkillActivated, SkillSkipped
from bough.skills import SkillMetadata, SkillRegistry
from bough.skills.match.activation import Activation, activate, too_long, too_many
from bough.skills.model import Diagnostic, is_skill_file

MAX_ALWAYS_SKILLS = 32
"""How many skills may be always active."""

MAX_ALWAYS_BYTES = 64 << 10
"""How long the texts of always-active skills may be together."""

MAX_ACTIVE = 100
"""How many skills keywords and paths may bring into one conversation."""

_SILENT = frozenset(
    {"trigger-bad-regex", "trigger-bad-glob", "trigger-both", "field-misspelt", "bound-files", "bound-seconds"}
)
_MAX_TOLD = 20

CHANGED = "[This text has changed; it replaces the earlier one of this skill.]"
"""First line of a skill's text that takes the place of an older one."""

ActivatedBy: TypeAlias = Literal["keyword", "task", "path", "always", "slash", "tool"]


@dataclass(frozen=True, slots=True)
class Standing:
    """The skills that are always active, as their files are now.

    Attributes:
        left_out: Each that is over a bound or cannot be read, and why.
    """

    activations: tuple[Activation, ...] = ()
    left_out: tuple[tuple[str, BoughError], ...] = ()

    @property
    def text(self) -> str:
        """What belongs into the instructions; empty when nothing is always active."""
        return "\n\n".join(each.rendered for each in self.activations)


def standing(
    registry: SkillRegistry, *, max_skills: int = MAX_ALWAYS_SKILLS, max_bytes: int = MAX_ALWAYS_BYTES
) -> Standing:
    """Return the always-active skills of a registry, by name, within bounds. Reads their files.

    One that cannot be read, or would pass the bounds, is left out with the reason and harms no other.
    """
    done: list[Activation] = []
    left_out: list[tuple[str, BoughError]] = []
    left = max_bytes
    names = [skill.name for skill in registry.list_all() if _holds_always(skill)]
    for name in sorted(names, key=lambda name: name.count("/")):  # rules of outer folders before those of inner ones
        try:
            activation = _always(activate(registry.get(name)))
        except BoughError as error:
            left_out.append((name, error))
            continue
        size = len(activation.rendered.encode("utf-8", "replace"))
        if len(done) >= max_skills:
            left_out.append((name, too_many(f"more than {max_skills} skills are always active")))
        elif size > left:
            left_out.append((name, too_long(f"always-active skills have more than {max_bytes} bytes")))
        else:
            left -= size
            done.append(activation)
    left_out += [(_name_of(note), InvalidInput(note.message, hint=note.fix)) for note in _list_silent_faults(registry)]
    return Standing(tuple(done), tuple(left_out))


def _list_silent_faults(registry: SkillRegistry) -> list[Diagnostic]:
    """Return what keeps skills from being used as they were meant to, and would be seen nowhere else in a run."""
    return [note for note in registry.diagnostics if note.code in _SILENT][:_MAX_TOLD]


def _name_of(note: Diagnostic) -> str:
    parts = note.path.rsplit("/", 2)
    return parts[-2] if is_skill_file(parts[-1]) and len(parts) > 1 else parts[-1]


def _holds_always(skill: SkillMetadata) -> bool:
    """Whether it is a repository skill; `kind` says the same, a dozen times slower."""
    return skill.trigger is None and not is_skill_file(skill.file.rpartition("/")[2])


def _always(activation: Activation) -> Activation:
    marked = activation.rendered.replace("<skill name=", '<skill always="true" name=', 1)
    return Activation(activation.name, activation.content_hash, marked, activation.missing)


def is_current(registry: SkillRegistry, name: str, known: str | None) -> bool:
    """Whether the text with the hash `known` is still the skill's, as its file is now; yes where that has gone."""
    if known is None:
        return False
    try:
        return registry.get(name).content_hash == known
    except BoughError:
        return True


def update_of(activation: Activation, known: str | None) -> str:
    """Return the activation's text, saying that it is a new one where `known` is the hash of another."""
    if known is None or known == activation.content_hash:
        return activation.rendered
    head, line, rest = activation.rendered.partition("\n")
    return f"{head}{line}{CHANGED}\n{rest}"


def activated(
    activation: Activation,
    *,
    trigger: ActivatedBy,
    known: str | None,
    keyword: str | None = None,
    inputs: Mapping[str, str] | None = None,
    allowed_tools: tuple[str, ...] | None = None,
) -> SkillActivated:
    """Return the event that records an activation.

    Its text is empty where the conversation has it already; that of a task, or with inputs, always comes anew.

    Args:
        known: Hash of the skill's text that is in the conversation; None where none is.
    """
    again = not inputs and trigger not in ("task", "slash") and known == activation.content_hash
    return SkillActivated(
        name=activation.name,
        content_hash=activation.content_hash,
        trigger=trigger,
        keyword=keyword,
        rendered="" if again else update_of(activation, known),
        inputs=dict(inputs or {}),
        allowed_tools=allowed_tools,
        tree=activation.tree,
    )


def skipped(left_out: Iterable[tuple[str, BoughError]]) -> list[SkillSkipped]:
    """Return the events that tell which skills were left out, and why."""
    check = "`bough skills check` says what is wrong with it"
    return [
        SkillSkipped(name=name, code=error.code, message=error.message, hint=error.hint or check)
        for name, error in left_out
    ]
