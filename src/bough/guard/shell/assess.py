"""The findings about a text that a shell would run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bough.guard.paths import leads_outside
from bough.guard.risk import Risk, RiskFinding
from bough.guard.shell.call import Setting, ShellCall, TooMuchError, Work, base_name, word_findings
from bough.guard.shell.command_rules import RULES, prefix_rule
from bough.guard.shell.parse import Redirect, Script, ShellCommand, parse_shell
from bough.guard.shell.runners import suffix_findings
from bough.guard.shell.words import Word

MAX_DEPTH = 6
"""Texts within texts (`sh -c "sh -c …"`) beyond this are UNKNOWN."""

_STEERING_VARIABLES = re.compile(
    r"LD_\w+|DYLD_\w+|BASH_ENV|ENV|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|HISTFILE|HISTSIZE|GIT_SSH\w*|GIT_EXEC_PATH|"
    r"GIT_EXTERNAL_DIFF|GIT_CONFIG\w*|\w*PAGER|\w*EDITOR|PYTHONSTARTUP|PYTHONPATH|PERL5OPT|PERL5LIB|RUBYOPT|NODE_OPTIONS|"
    r"PATH|PS4|SUDO_ASKPASS|SSH_ASKPASS|GIT_ASKPASS|BROWSER|VISUAL"
)


def assess_shell(text: str, *, workspace: Path) -> tuple[RiskFinding, ...]:
    """Return what a shell would do with `text` if it ran in `workspace`; never empty, never raises.

    Links in the workspace are looked at; nothing is run. O(length), bounded by `parse.MAX_BYTES`.
    """
    setting = Setting(
        workspace=workspace,
        bases=(workspace,),
        variables={"HOME": ("~",), "PWD": (str(workspace),)},
        functions=frozenset(),
        depth=0,
        work=Work(),
        nested=_assess_nested,
        command=_command,
    )
    findings = tuple(dict.fromkeys(_within_bounds(_text(text, setting))))
    return findings or (RiskFinding(Risk.LOW, "it only looks and computes"),)


def _within_bounds(findings: Iterator[RiskFinding]) -> Iterator[RiskFinding]:
    try:
        yield from findings
    except TooMuchError:
        yield RiskFinding(Risk.UNKNOWN, "there is too much in it to look at")


def _assess_nested(text: str, setting: Setting) -> Iterator[RiskFinding]:
    if setting.depth >= MAX_DEPTH:
        yield RiskFinding(Risk.UNKNOWN, "commands are nested too deeply to be read")
    else:
        setting.work.spend(1 + len(text) // 100)
        yield from _text(text, replace(setting, depth=setting.depth + 1))


def _text(text: str, setting: Setting) -> Iterator[RiskFinding]:
    script = parse_shell(text, setting.variables)
    if script.problem:
        yield RiskFinding(Risk.UNKNOWN, script.problem)
    if script.fork_bomb:
        yield RiskFinding(Risk.HIGH, "a function starts itself without end")
    if re.search(r"\w\[[^\]\n]{0,99}(\$\(|`)", text):  # `[ -v 'a[$(x)]' ]`: an index is run even when it is quoted
        yield RiskFinding(Risk.UNKNOWN, "the index of an array is computed by a command")
    for name in script.assigned:
        if _STEERING_VARIABLES.fullmatch(name):
            yield RiskFinding(Risk.HIGH, f"setting {name} changes what other commands do")
    inner = _derive_setting(script, setting)
    for command in script.commands:
        yield from _command(command, inner)


def _derive_setting(script: Script, setting: Setting) -> Setting:
    return replace(
        setting,
        variables={**setting.variables, **script.assigned},
        functions=setting.functions | script.functions,
        bases=tuple(dict.fromkeys((*setting.bases, *_folders(script, setting)))),
    )


def _folders(script: Script, setting: Setting) -> Iterator[Path]:
    """Where `cd` may go; a text that goes out of the workspace is judged from there as well."""
    for command in script.commands:
        if command.words and base_name(command.words[0]) in ("cd", "pushd", "chdir"):
            targets = [word for word in command.args if word.known and not word.text.startswith("-")]
            for target in targets or ([] if command.args else [Word("~")]):
                yield setting.workspace / Path(target.text).expanduser() if _expandable(target.text) else Path("/")


def _expandable(path: str) -> bool:
    try:
        Path(path).expanduser()
    except RuntimeError:  # a home folder nobody has
        return False
    return True


def _command(command: ShellCommand, setting: Setting) -> Iterator[RiskFinding]:
    setting.work.spend(1 + len(command.words) // 16)
    for redirect in command.redirects:
        yield from _redirect(redirect, setting)
    if not command.words:
        return
    name = command.words[0]
    if name.known and not name.pattern and not name.computed:
        yield from _assess_named(
            ShellCall(name=base_name(name), args=command.args, command=command, setting=setting), name.text
        )
    elif name.computed or name.pattern:
        yield RiskFinding(Risk.HIGH, "which command runs is only computed when it runs")
    else:
        yield RiskFinding(Risk.UNKNOWN, f"which command runs depends on {name.text[:60]!r}")


def _assess_named(call: ShellCall, written: str) -> Iterator[RiskFinding]:
    rule = RULES.get(call.name) or prefix_rule(call.name)
    if rule is not None:
        yield from rule(call)
        if "/" in written and leads_outside(written, workspace=call.setting.workspace) and not _system(written):
            yield RiskFinding(Risk.UNKNOWN, f"{written[:60]!r} is a program from outside the workspace")
    elif call.name in call.setting.functions and "/" not in written:
        return
    else:
        yield RiskFinding(Risk.UNKNOWN, f"nothing is known about the command {written[:60]!r}")
        yield from suffix_findings(call)
        yield from (finding for finding in call.reads() if finding.risk is not Risk.UNKNOWN)


def _system(written: str) -> bool:
    return bool(re.match(r"(/usr(/local)?)?/s?bin/[^/]+$", written))


def _redirect(redirect: Redirect, setting: Setting) -> Iterator[RiskFinding]:
    target, operator = redirect.target, redirect.operator
    if operator.endswith("&") and re.fullmatch(r"\d+|-|\d+-", target.text):
        return
    if re.match(r"/dev/(tcp|udp)/", target.text):
        yield RiskFinding(Risk.HIGH, "opens a network connection from the shell itself")
        return
    write = not operator.startswith("<") or operator == "<>"
    if not target.known:
        yield RiskFinding(Risk.UNKNOWN, f"where it {'writes' if write else 'reads'} depends on {target.text[:60]!r}")
    yield from word_findings(target, setting, write=write)
    if write and not target.text.startswith("/dev/"):
        yield RiskFinding(Risk.MEDIUM, f"writes {target.text[:60]!r}")
