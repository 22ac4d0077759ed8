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
    assess_path_word,
    base_name,
)
from bough.guard.shell.command_rules import RULES, find_prefix_rule
from bough.guard.shell.parse import Redirect, Script, ShellCommand, parse_shell
from bough.guard.shell.runners import assess_dangerous_arguments
from bough.guard.shell.words import Word

_CONTROL_VARIABLES = re.compile(
    r"LD_\w+|DYLD_\w+|BASH_ENV|ENV|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|HISTFILE|HISTSIZE|GIT_SSH\w*|GIT_EXEC_PATH|"
    r"GIT_EXTERNAL_DIFF|GIT_CONFIG\w*|\w*PAGER|\w*EDITOR|PYTHONSTARTUP|PYTHONPATH|PERL5OPT|PERL5LIB|RUBYOPT|"
    r"NODE_OPTIONS|PATH|PS4|SUDO_ASKPASS|SSH_ASKPASS|GIT_ASKPASS|BROWSER|VISUAL"
)


def assess_shell(text: str, *, workspace: Path) -> tuple[RiskFinding, ...]:
    """Return the findings about a command line in `workspace`; at least one. Never raises.

    Follows links on disk and runs nothing. O(length), limited by `parse.MAX_BYTES` and `WorkBudget`.
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
    findings = tuple(dict.fromkeys(_limit_work(_assess_text(text, context))))
    return findings or (RiskFinding(Risk.LOW, "it only reads and computes"),)


def _limit_work(findings: Iterator[RiskFinding]) -> Iterator[RiskFinding]:
    try:
        yield from findings
    except BudgetExceededError:  # the earlier findings count, and the rest is UNKNOWN
        yield RiskFinding(Risk.UNKNOWN, "the command is too complex to assess")


def _assess_nested(text: str, context: ShellContext) -> Iterator[RiskFinding]:
    """Yield the findings about a command line that a command runs, one level deeper."""
    if context.depth >= MAX_DEPTH:
        yield RiskFinding(Risk.UNKNOWN, "commands are nested too deeply")
    else:
        context.budget.spend(1 + len(text) // 100)
        yield from _assess_text(text, replace(context, depth=context.depth + 1))


def _assess_text(text: str, context: ShellContext) -> Iterator[RiskFinding]:
    script = parse_shell(text, context.variables)
    if script.problem:
        yield RiskFinding(Risk.UNKNOWN, script.problem)
    if script.is_fork_bomb:
        yield RiskFinding(Risk.HIGH, "a function calls itself without end")
    # In `[ -v 'a[$(x)]' ]` the shell runs `x`, although the grammar sees a plain text in single quotes.
    if re.search(r"\w\[[^\]\n]{0,99}(\$\(|`)", text):
        yield RiskFinding(Risk.UNKNOWN, "a command computes the index of an array")
    for name in script.assignments:
        if _CONTROL_VARIABLES.fullmatch(name):
            yield RiskFinding(Risk.HIGH, f"setting {name} changes the effects of other commands")
    # All assignments and functions apply to all commands, because branches, loops and functions may run in an order
    # that differs from the text.
    script_context = _derive_context(script, context)
    for command in script.commands:
        yield from _assess_command(command, script_context)


def _derive_context(script: Script, context: ShellContext) -> ShellContext:
    """Return the context with the variables, functions and folders that a script adds."""
    return replace(
        context,
        variables={**context.variables, **script.assignments},
        functions=context.functions | script.functions,
        bases=tuple(dict.fromkeys((*context.bases, *_list_cd_targets(script, context)))),
    )


def _list_cd_targets(script: Script, context: ShellContext) -> Iterator[Path]:
    """Yield the folders that `cd` may enter. Relative paths may start from each of them."""
    for command in script.commands:
        if command.words and base_name(command.words[0]) in ("cd", "pushd", "chdir"):
            targets = [word for word in command.args if word.is_known and not word.text.startswith("-")]
            if not command.args:
                targets = [Word("~")]
            for target in targets:
                # An unknown home folder counts as `/`, so that no path relative to it seems inside the workspace.
                is_known = _can_expand_user(target.text)
                yield context.workspace / Path(target.text).expanduser() if is_known else Path("/")


def _can_expand_user(path: str) -> bool:
    try:
        Path(path).expanduser()
    except RuntimeError:  # in `~name`, no user has this name
        return False
    return True


def _assess_command(command: ShellCommand, context: ShellContext) -> Iterator[RiskFinding]:
    """Yield the findings about a command: about its redirections, and those of the rule for its name."""
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
    elif name.is_computed or name.is_pattern:  # HIGH and not UNKNOWN, because this is how commands are hidden
        yield RiskFinding(Risk.HIGH, "another command computes which command runs")
    else:
        yield RiskFinding(Risk.UNKNOWN, f"which command runs depends on {name.text[:60]!r}")


def _assess_named(call: ShellCall, typed_name: str) -> Iterator[RiskFinding]:
    """Yield the findings about a command with a known name; `typed_name` includes its folder."""
    rule = RULES.get(call.name) or find_prefix_rule(call.name)
    if rule is not None:
        yield from rule(call)
        # `/tmp/ls` is not `ls`: a program outside of the system's folders may do anything.
        is_outside = "/" in typed_name and leads_outside(typed_name, workspace=call.context.workspace)
        if is_outside and not _is_system_program(typed_name):
            yield RiskFinding(Risk.UNKNOWN, f"{typed_name[:60]!r} is a program from outside the workspace")
    elif call.name in call.context.functions and "/" not in typed_name:
        return  # the commands of the function's body are assessed separately
    else:
        yield RiskFinding(Risk.UNKNOWN, f"the command {typed_name[:60]!r} is unknown")
        yield from assess_dangerous_arguments(call)
        # Arguments may be paths, and those of credentials raise the risk. UNKNOWN findings about them add nothing.
        yield from (finding for finding in call.assess_reads() if finding.risk is not Risk.UNKNOWN)


def _is_system_program(typed_name: str) -> bool:
    return bool(re.match(r"(/usr(/local)?)?/s?bin/[^/]+$", typed_name))


def _assess_redirect(redirect: Redirect, context: ShellContext) -> Iterator[RiskFinding]:
    """Yield the findings about the target of a redirection."""
    target, operator = redirect.target, redirect.operator
    # `2>&1` copies a descriptor; `>& name` without digits writes a file.
    if operator.endswith("&") and re.fullmatch(r"\d+|-|\d+-", target.text):
        return
    if re.match(r"/dev/(tcp|udp)/", target.text):  # not a file: bash connects to the host in the path
        yield RiskFinding(Risk.HIGH, "the shell opens a network connection")
        return
    writes = not operator.startswith("<") or operator == "<>"
    if not target.is_known:
        verb = "written" if writes else "read"
        yield RiskFinding(Risk.UNKNOWN, f"the {verb} file depends on {target.text[:60]!r}")
    yield from assess_path_word(target, context, write=writes)
    if writes and not target.text.startswith("/dev/"):
        yield RiskFinding(Risk.MEDIUM, f"writes {target.text[:60]!r}")
