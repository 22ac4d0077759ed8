"""The screens that every general test visits: add a line for each new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from .site import Site

Stories: TypeAlias = Mapping[str, str]
"""Ids of conversations by name: `done`, `fork`, `waiting`, `failed`."""

SCREENS: Mapping[str, Callable[[Stories], str]] = {
    "conversations": lambda stories: "/",
    "filtered": lambda stories: "/?text=profile&status=done",
    "no match": lambda stories: "/?text=nothing-has-this",
    "new": lambda stories: "/new",
    "fork": lambda stories: f"/c/{stories['done']}/fork?at=1",
    "tree": lambda stories: f"/c/{stories['fork']}/tree",
    "compare": lambda stories: f"/c/{stories['done']}/compare/{stories['fork']}",
    "approvals": lambda stories: "/approvals",
    "not found": lambda stories: "/nothing/is/here",
}
"""The address of each screen, by name."""


def tell_stories(site: Site) -> Stories:
    """Make the conversations that the screens show."""
    done = site.start("write notes.txt", title="Profile sales.csv", tags={"team": "retail"})
    site.say(done, "and what is in it?")
    fork = site.fork(done, title="Fix in the loader instead")
    site.say(fork, "edit notes.txt")
    return {
        "done": done,
        "fork": fork,
        "waiting": site.start_waiting(title="Move the nightly import"),
        "failed": site.start("fail now", title="Port the settings module"),
    }
