"""Rules for commands that change the machine or stop processes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bough.guard.risk import Risk, RiskFinding
from bough.guard.shell.call import ShellCall


def assess_machine_change(call: ShellCall) -> Iterator[RiskFinding]:
    """A command that changes the machine itself, whatever its arguments."""
    yield RiskFinding(Risk.HIGH, f"`{call.name}` changes the machine")


def assess_services(call: ShellCall) -> Iterator[RiskFinding]:
    """systemctl, service: queries are LOW, everything else changes the machine."""
    verbs = [word.text for word in call.operands]
    if not any(verb in ("status", "is-active", "is-enabled", "list-units", "show", "cat") for verb in verbs):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` changes the services of the machine")
    yield from call.assess_unknown_words()


def assess_mount(call: ShellCall) -> Iterator[RiskFinding]:
    """mount: lists mounts if it has no arguments."""
    if call.args:
        yield RiskFinding(Risk.HIGH, "mounts a file system")


def assess_crontab(call: ShellCall) -> Iterator[RiskFinding]:
    """crontab: `-l` lists the scheduled commands; everything else changes them."""
    if [word.text for word in call.args] != ["-l"]:
        yield RiskFinding(Risk.HIGH, "changes the scheduled commands")


def assess_kill(call: ShellCall) -> Iterator[RiskFinding]:
    """kill: one process is MEDIUM; a process group, all processes, or process 1 is HIGH."""
    texts = [word.text for word in call.args]
    if texts[:1] in (["-l"], ["-L"]):
        return
    # As the first argument `-1` is a signal, as a target it is every process.
    signal_words = 0
    if texts[:1] in (["-s"], ["-n"]):
        signal_words = 2
    elif texts and texts[0].startswith("-"):
        signal_words = 1
    targets = texts[signal_words:]
    if any(re.fullmatch(r"-\d+|0|1", target) for target in targets):
        yield RiskFinding(Risk.HIGH, "stops a group of processes, or all processes")
    yield RiskFinding(Risk.MEDIUM, "stops a process")
    yield from call.assess_unknown_words()


def assess_kill_by_name(call: ShellCall) -> Iterator[RiskFinding]:
    """pkill, killall: stop all processes with a name, including those that the agent has not started."""
    yield RiskFinding(Risk.HIGH, f"`{call.name}` stops every process with a name")


def assess_unset(call: ShellCall) -> Iterator[RiskFinding]:
    """unset: without HISTFILE, the shell records no history."""
    if any(word.text.startswith("HIST") for word in call.args):
        yield RiskFinding(Risk.HIGH, "prevents the shell from recording its history")


def assess_project_tool(call: ShellCall) -> Iterator[RiskFinding]:
    """make, pytest, tsc …: run code and configuration of the project."""
    if not (len(call.args) == 1 and call.has("", "version", "help")):
        yield RiskFinding(Risk.MEDIUM, f"`{call.name}` runs code of the project")
    yield from call.assess_unknown_words()
    yield from call.assess_reads(word for word in call.values if word.is_known)
