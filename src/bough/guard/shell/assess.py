"""Assesses the risk of a command line, without running it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bough.guard.paths import leads_outside
from bough.guard.risk import Risk, RiskFinding
from bough.guard.shell.call import (
    MAX_DEPTH,
    BudgetExceededError,
    ShellCall,
    ShellContext,
    WorkBudget,
    base_name,
    word_findings,
)
from bough.guard.shell.command_rules import RULES, prefix_rule
from bough.guard.shell.parse import Redirect, Script, ShellCommand, parse_shell
from bough.guard.shell.runners import suffix_findings
from bough.guard.shell.words import Word

_STEERING_VARIABLES = re.compile(
    r"LD_\w+|DYLD_\w+|BASH_ENV|ENV|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|HISTFILE|HISTSIZE|GIT_SSH\w*|GIT_EXEC_PATH|"
    r"GIT_EXTERNAL_DIFF|GIT_CONFIG\w*|\w*PAGER|\w*EDITOR|PYTHONSTARTUP|PYTHONPATH|PERL5OPT|PERL5LIB|RUBYOPT|"
    r"NODE_OPTIONS|PATH|PS4|SUDO_ASKPASS|SSH_ASKPASS|GIT_ASKPASS|BROWSER|VISUAL"
)


def assess_shell(text: str, *, workspace: Path) -> tuple[RiskFinding, ...]:
    """Return the findings about a command line that would run in `workspace`; never empty, never raises.

    Follows links on disk, runs nothing. O(length), bounded by `parse.MAX_BYTES` and `WorkBudget`.
    """
    context = ShellContext(
        workspace=workspace,
        bases=(workspace,),
        variables={"HOME": ("~",), "PWD": (str(workspace),)},
        functions=frozenset(),
        depth=0,
        budget=WorkBudget(),
        assess_text=_assess_nested,
        assess_command=_assess_command,
    )
    findings = tuple(dict.fromkeys(_within_budget(_assess_text(text, context))))
    return findings or (RiskFinding(Risk.LOW, "it only looks and computes"),)


def _within_budget(findings: Iterator[RiskFinding]) -> Iterator[RiskFinding]:
    try:
        yield from findings
    except BudgetExceededError:  # findings so far count: the part that was not assessed could be anything
        yield RiskFinding(Risk.UNKNOWN, "there is too much in it to look at")


def _assess_nested(text: str, context: ShellContext) -> Iterator[RiskFinding]:
    if context.depth >= MAX_DEPTH:
        yield RiskFinding(Risk.UNKNOWN, "commands are nested too deeply to be read")
    else:
        context.budget.spend(1 + len(text) // 100)
        yield from _assess_text(text, replace(context, depth=context.depth + 1))


def _assess_text(text: str, context: ShellContext) -> Iterator[RiskFinding]:
    script = parse_shell(text, context.variables)
    if script.problem:
        yield RiskFinding(Risk.UNKNOWN, script.problem)
    if script.is_fork_bomb:
        yield RiskFinding(Risk.HIGH, "a function starts itself without end")
    # `[ -v 'a[$(x)]' ]`: the shell runs an array index even inside single quotes, where the grammar sees plain text.
    if re.search(r"\w\[[^\]\n]{0,99}(\$\(|`)", text):
        yield RiskFinding(Risk.UNKNOWN, "the index of an array is computed by a command")
    for name in script.assignments:
        if _STEERING_VARIABLES.fullmatch(name):
            yield RiskFinding(Risk.HIGH, f"setting {name} changes what other commands do")
    # All assignments and functions apply to all commands: branches, loops and functions may run in another order than
    # they are written in.
    derived = _derive_context(script, context)
    for command in script.commands:
        yield from _assess_command(command, derived)


def _derive_context(script: Script, context: ShellContext) -> ShellContext:
    return replace(
        context,
        variables={**context.variables, **script.assignments},
        functions=context.functions | script.functions,
        bases=tuple(dict.fromkeys((*context.bases, *_folders(script, context)))),
    )


def _folders(script: Script, context: ShellContext) -> Iterator[Path]:
    """Yield the folders that `cd` may enter. Relative paths are judged from each of them as well."""
    for command in script.commands:
        if command.words and base_name(command.words[0]) in ("cd", "pushd", "chdir"):
            targets = [word for word in command.args if word.is_known and not word.text.startswith("-")]
            for target in targets or ([] if command.args else [Word("~")]):
                # A home folder that does not exist counts as `/`, so that nothing relative to it seems inside.
                yield context.workspace / Path(target.text).expanduser() if _expandable(target.text) else Path("/")


def _expandable(path: str) -> bool:
    try:
        Path(path).expanduser()
    except RuntimeError:  # `~name` without such a user
        return False
    return True


def _assess_command(command: ShellCommand, context: ShellContext) -> Iterator[RiskFinding]:
    context.budget.spend(1 + len(command.words) // 16)
    for redirect in command.redirects:
        yield from _assess_redirect(redirect, context)
    if not command.words:
        return
    name = command.words[0]
    if name.is_known and not name.is_pattern and not name.is_computed:
        yield from _assess_named(
            ShellCall(name=base_name(name), args=command.args, command=command, context=context), name.text
        )
    elif name.is_computed or name.is_pattern:  # HIGH, not UNKNOWN: this is how a command line hides what it runs
        yield RiskFinding(Risk.HIGH, "which command runs is only computed when it runs")
    else:
        yield RiskFinding(Risk.UNKNOWN, f"which command runs depends on {name.text[:60]!r}")


def _assess_named(call: ShellCall, written: str) -> Iterator[RiskFinding]:
    rule = RULES.get(call.name) or prefix_rule(call.name)
    if rule is not None:
        yield from rule(call)
        # `/tmp/ls` is not `ls`: a program from a folder that anybody can write may do anything.
        if "/" in written and leads_outside(written, workspace=call.context.workspace) and not _is_system(written):
            yield RiskFinding(Risk.UNKNOWN, f"{written[:60]!r} is a program from outside the workspace")
    elif call.name in call.context.functions and "/" not in written:
        return  # the body of the function is among the commands
    else:
        yield RiskFinding(Risk.UNKNOWN, f"nothing is known about the command {written[:60]!r}")
        yield from suffix_findings(call)
        # Its arguments may be paths. Credentials among them raise the risk; unknown words add nothing to UNKNOWN.
        yield from (finding for finding in call.reads() if finding.risk is not Risk.UNKNOWN)


def _is_system(written: str) -> bool:
    return bool(re.match(r"(/usr(/local)?)?/s?bin/[^/]+$", written))


def _assess_redirect(redirect: Redirect, context: ShellContext) -> Iterator[RiskFinding]:
    target, operator = redirect.target, redirect.operator
    # `2>&1` copies a descriptor; `>& name` without digits writes a file.
    if operator.endswith("&") and re.fullmatch(r"\d+|-|\d+-", target.text):
        return
    if re.match(r"/dev/(tcp|udp)/", target.text):  # not files: bash itself connects to the host in the path
        yield RiskFinding(Risk.HIGH, "opens a network connection from the shell itself")
        return
    write = not operator.startswith("<") or operator == "<>"
    if not target.is_known:
        yield RiskFinding(Risk.UNKNOWN, f"where it {'writes' if write else 'reads'} depends on {target.text[:60]!r}")
    yield from word_findings(target, context, write=write)
    if write and not target.text.startswith("/dev/"):
        yield RiskFinding(Risk.MEDIUM, f"writes {target.text[:60]!r}")
