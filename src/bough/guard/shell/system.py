"""Commands that change the machine, and those that stop processes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bough.guard.risk import Finding, Risk
from bough.guard.shell.call import Call


def machine(call: Call) -> Iterator[Finding]:
    """A command that changes the machine itself, whatever its arguments."""
    yield Finding(Risk.HIGH, f"`{call.name}` changes the machine")


def service(call: Call) -> Iterator[Finding]:
    """systemctl, service: asking is LOW, everything else changes the machine."""
    verbs = [word.text for word in call.operands]
    if not any(verb in ("status", "is-active", "is-enabled", "list-units", "show", "cat") for verb in verbs):
        yield Finding(Risk.HIGH, f"`{call.name}` changes what runs on the machine")
    yield from call.unknown()


def mount(call: Call) -> Iterator[Finding]:
    """mount: alone it only shows."""
    if call.args:
        yield Finding(Risk.HIGH, "changes what is mounted")


def crontab(call: Call) -> Iterator[Finding]:
    """crontab: `-l` shows; all else makes something run later."""
    if [word.text for word in call.args] != ["-l"]:
        yield Finding(Risk.HIGH, "makes commands run later, or takes them away")


def kill(call: Call) -> Iterator[Finding]:
    """kill: one process is MEDIUM; a group, everything, or the first process is HIGH."""
    texts = [word.text for word in call.args]
    if texts[:1] in (["-l"], ["-L"]):
        return
    targets = texts if texts and not texts[0].startswith("-") else texts[2 if texts[:1] in (["-s"], ["-n"]) else 1 :]
    if any(re.fullmatch(r"-\d+|0|1", target) for target in targets):
        yield Finding(Risk.HIGH, "stops a whole group of processes, or all of them")
    yield Finding(Risk.MEDIUM, "stops a process")
    yield from call.unknown()


def kill_by_name(call: Call) -> Iterator[Finding]:
    """pkill, killall: whoever has that name."""
    yield Finding(Risk.HIGH, f"`{call.name}` stops every process of a name")


def unset(call: Call) -> Iterator[Finding]:
    """unset: taking the history file away hides what is done."""
    if any(word.text.startswith("HIST") for word in call.args):
        yield Finding(Risk.HIGH, "keeps what is done out of the shell's history")


def works(call: Call) -> Iterator[Finding]:
    """make, pytest, tsc …: runs what the project says."""
    if not (len(call.args) == 1 and call.has("", "version", "help")):
        yield Finding(Risk.MEDIUM, f"`{call.name}` runs what the project says")
    yield from call.unknown()
    yield from call.reads(word for word in call.values if word.known)
