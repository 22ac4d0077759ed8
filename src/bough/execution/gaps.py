"""The promises that a rung does not keep, quoted in `docs/concepts/isolation.md`; `bough doctor` prints them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Condition: TypeAlias = Literal["root", "mounts", "groups"]
"""A condition of a machine: the caller is root, the rung can create mounts, control groups can be created."""


@dataclass(frozen=True)
class Gap:
    """A promise that a rung does not keep.

    Attributes:
        text: The actual behaviour.
        promise: The promise; empty for a difference from the strongest rung that breaks no promise.
        unless: The condition under which the gap does not exist; None if it always exists.
    """

    text: str
    promise: str = ""
    unless: Condition | None = None

    def __str__(self) -> str:
        """Return the promise and the actual behaviour in one line."""
        return f"{self.promise}: {self.text}" if self.promise else self.text


_HOST_FILES_READ_ONLY: Final = "host files outside of what is shown cannot be written"
_FIRST_PROCESS_UNCHANGED: Final = "the first process cannot be changed, stopped or made to lie"
_FIRST_PROCESS_UNREADABLE: Final = "the first process cannot be read"
_GUARDED_NAMES_UNCHANGED: Final = "guarded names that exist cannot be changed"
_MOUNTS_CHECKED: Final = "a mount shows what was checked, or nothing is run"
_NETWORK_BY_DOMAIN: Final = "no network but named domains"
_OTHER_ARCHITECTURES_REFUSED: Final = "a call of another architecture is refused"
_RESOURCES_BOUNDED: Final = "processes and memory are bounded"
_CHANNELS_HARMLESS: Final = (
    "a persistent interpreter cannot stop the timeout, or fill the host with open descriptors, through its channels"
)
_INOTIFY_GAP: Final = Gap(
    "a run can use them up while it lasts where the caller is not root",
    "the caller's `inotify` instances cannot be used up",
    "root",
)
_NO_DOMAINS_GAP: Final = Gap("not even named domains can be reached", _NETWORK_BY_DOMAIN)
_NO_SESSIONS_GAP: Final = Gap("persistent interpreters and warm sandboxes are not available", _CHANNELS_HARMLESS)
_UNCOUNTED_MEMORY_GAP: Final = Gap(
    "shared memory that is no longer mapped is not counted where no control group can be made",
    _RESOURCES_BOUNDED,
    "groups",
)

GAPS: Final[Mapping[str, tuple[Gap, ...]]] = {
    "bubblewrap": (
        Gap(
            "settings of a warm one, such as `oom_score_adj`, can be changed where the caller is not root",
            _FIRST_PROCESS_UNCHANGED,
            "root",
        ),
        _INOTIFY_GAP,
        _UNCOUNTED_MEMORY_GAP,
    ),
    "sandlock": (
        Gap(
            "modes and attributes below `/tmp` and `/work` can be changed where no mounts can be made",
            _HOST_FILES_READ_ONLY,
            "mounts",
        ),
        Gap("it can be read, and holds only that run's request", _FIRST_PROCESS_UNREADABLE),
        _NO_DOMAINS_GAP,
        Gap(
            "they can be changed through a link or in a moved folder where no mounts can be made",
            _GUARDED_NAMES_UNCHANGED,
            "mounts",
        ),
        Gap("it can show something else where no mounts can be made", _MOUNTS_CHECKED, "mounts"),
        Gap("it ends the program with signal 31", _OTHER_ARCHITECTURES_REFUSED),
        _UNCOUNTED_MEMORY_GAP,
        _NO_SESSIONS_GAP,
        Gap("names at the root of the file system can be listed"),
        Gap("whether a path exists on the host can be found out, and where a symbolic link leads"),
        Gap("folders cannot be watched by `inotify`; programs poll them, or fail"),
        Gap("ids of other processes can be seen in `/proc`"),
        Gap("named pipes cannot be made; a program that needs them fails"),
        Gap("the supervisor runs outside of the sandbox, as the script's user"),
        Gap("a run that exceeds its memory ends by signal 9, and `killed_by` does not say why"),
        Gap(
            "a root without the right to make mounts cannot show a folder that others cannot enter: "
            "such a run is refused",
            unless="mounts",
        ),
        Gap(
            "a root or user without the right to make mounts cannot set the mode or owner of an open file by its "
            "descriptor, which `cp -p` and `install` do; by name it works",
            unless="mounts",
        ),
        Gap("files whose names are not UTF-8 cannot be opened"),
        Gap("a file cannot be opened with `O_PATH`: `cp FILE FOLDER/` fails, `cp FILE FOLDER/FILE` works"),
    ),
    "container": (
        _NO_DOMAINS_GAP,
        _INOTIFY_GAP,
        _NO_SESSIONS_GAP,
        Gap("whoever may talk to the engine is effectively root"),
        Gap("the image's files are visible, not the host's `/usr`"),
    ),
}
"""The gaps of each rung, by its name: first the broken promises, then other differences."""


def list_gaps(rung: str, *, conditions: Collection[Condition] = ()) -> tuple[str, ...]:
    """Return the gaps of a rung on a machine, one line each.

    Args:
        rung: The rung's name.
        conditions: The conditions that the machine meets.
    """
    return tuple(str(gap) for gap in GAPS[rung] if gap.unless is None or gap.unless not in conditions)
