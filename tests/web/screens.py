"""The screens that every general test visits, in each of their states: add a line for each new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from .site import Site

Stories: TypeAlias = Mapping[str, str]
"""Ids of conversations by name: `done`, `fork`, `waiting`, `failed`, `running`, `blank`; `call` is that of `waiting`.

`empty` is the address of a server without conversations.
"""

SCREENS: Mapping[str, Callable[[Stories], str]] = {
    "conversations": lambda stories: "/",
    "filtered": lambda stories: "/?text=profile&status=done",
    "no match": lambda stories: "/?text=nothing-has-this",
    "no conversations": lambda stories: f"{stories['empty']}/",
    "new": lambda stories: "/new",
    "timeline": lambda stories: f"/c/{stories['done']}",
    "timeline of a fork": lambda stories: f"/c/{stories['fork']}?at=2",
    "timeline that waits": lambda stories: f"/c/{stories['waiting']}",
    "timeline that failed": lambda stories: f"/c/{stories['failed']}",
    "timeline that runs": lambda stories: f"/c/{stories['running']}",
    "timeline without events of a kind": lambda stories: f"/c/{stories['done']}?kinds=errors",
    "timeline without a match": lambda stories: f"/c/{stories['done']}?find=nowhere",
    "timeline without messages": lambda stories: f"/c/{stories['blank']}",
    "event": lambda stories: f"/c/{stories['done']}/e/2",
    "fork": lambda stories: f"/c/{stories['done']}/fork?at=1",
    "fork that asks about calls": lambda stories: f"/c/{stories['waiting']}/fork",
    "files": lambda stories: f"/c/{stories['fork']}/files?from=0",
    "files without changes": lambda stories: f"/c/{stories['blank']}/files",
    "restore": lambda stories: f"/c/{stories['fork']}/restore?from=0",
    "restore of nothing": lambda stories: f"/c/{stories['done']}/restore",
    "limits": lambda stories: f"/c/{stories['failed']}/limits",
    "tree": lambda stories: f"/c/{stories['fork']}/tree",
    "compare": lambda stories: f"/c/{stories['done']}/compare/{stories['fork']}",
    "compare without differences": lambda stories: f"/c/{stories['done']}/compare/{stories['copy']}?only=differences",
    "approvals": lambda stories: "/approvals",
    "no approvals": lambda stories: f"{stories['empty']}/approvals",
    "review": lambda stories: f"/approvals/{stories['waiting']}/{stories['call']}",
    "sign-in": lambda stories: "/enter/nothing",
    "not found": lambda stories: "/nothing/is/here",
    "no such conversation": lambda stories: "/c/0199c0de-0000-7000-8000-000000000404",
    "wrong address": lambda stories: f"/c/{stories['done']}?at=x",
}
"""The address of each screen, by name."""


def find_address(site: Site, stories: Stories, name: str) -> str:
    """Return the whole address of a screen."""
    address = SCREENS[name](stories)
    return site.url + address if address.startswith("/") else address


def tell_stories(site: Site, empty: Site) -> Stories:
    """Make the conversations that the screens show; one of them runs until it is interrupted."""
    done = site.start("write notes.txt", title="Profile sales.csv", tags={"team": "retail"})
    site.say(done, "and what is in it?")
    fork = site.fork(done, title="Fix in the loader instead")
    site.say(fork, "edit notes.txt")
    waiting = site.start_waiting(title="Move the nightly import")
    (ask,) = site.client.get(f"/api/approvals?conversation={waiting}").json()["items"]
    return {
        "done": done,
        "fork": fork,
        "copy": site.fork(done, title="The same"),
        "waiting": waiting,
        "call": ask["tool_call_id"],
        "failed": site.start("fail now", title="Port the settings module"),
        "running": site.start_running("wait for the others", title="Rewrite the nightly job"),
        "blank": site.start(title="Nothing yet"),
        "empty": empty.url,
    }
