"""Rules for commands that change the machine or stop processes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bough.guard.risk import Risk, RiskFinding
from bough.guard.shell.call import ShellCall


def machine(call: ShellCall) -> Iterator[RiskFinding]:
    """A command that changes the machine itself, whatever its arguments."""
    yield RiskFinding(Risk.HIGH, f"`{call.name}` changes the machine")


def service(call: ShellCall) -> Iterator[RiskFinding]:
    """systemctl, service: queries are LOW, everything else changes the machine."""
    verbs = [word.text for word in call.operands]
    if not any(verb in ("status", "is-active", "is-enabled", "list-units", "show", "cat") for verb in verbs):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` changes what runs on the machine")
    yield from call.unknown()


def mount(call: ShellCall) -> Iterator[RiskFinding]:
    """mount: lists mounts if it has no arguments."""
    if call.args:
        yield RiskFinding(Risk.HIGH, "changes what is mounted")


def crontab(call: ShellCall) -> Iterator[RiskFinding]:
    """crontab: `-l` lists; everything else changes what runs later."""
    if [word.text for word in call.args] != ["-l"]:
        yield RiskFinding(Risk.HIGH, "makes commands run later, or takes them away")


def kill(call: ShellCall) -> Iterator[RiskFinding]:
    """kill: one process is MEDIUM; a process group, all processes or process 1 are HIGH."""
    texts = [word.text for word in call.args]
    if texts[:1] in (["-l"], ["-L"]):
        return
    # `-1` as a target is every process, but as the first argument it is a signal.
    targets = texts if texts and not texts[0].startswith("-") else texts[2 if texts[:1] in (["-s"], ["-n"]) else 1 :]
    if any(re.fullmatch(r"-\d+|0|1", target) for target in targets):
        yield RiskFinding(Risk.HIGH, "stops a whole group of processes, or all of them")
    yield RiskFinding(Risk.MEDIUM, "stops a process")
    yield from call.unknown()


def kill_by_name(call: ShellCall) -> Iterator[RiskFinding]:
    """pkill, killall: stop all processes of a name, not only those that the agent started."""
    yield RiskFinding(Risk.HIGH, f"`{call.name}` stops every process of a name")


def unset(call: ShellCall) -> Iterator[RiskFinding]:
    """unset: without HISTFILE, the shell records no history."""
    if any(word.text.startswith("HIST") for word in call.args):
        yield RiskFinding(Risk.HIGH, "keeps what is done out of the shell's history")


def run_project_tool(call: ShellCall) -> Iterator[RiskFinding]:
    """make, pytest, tsc …: run code and configuration of the project."""
    if not (len(call.args) == 1 and call.has("", "version", "help")):
        yield RiskFinding(Risk.MEDIUM, f"`{call.name}` runs what the project says")
    yield from call.unknown()
    yield from call.reads(word for word in call.values if word.is_known)
