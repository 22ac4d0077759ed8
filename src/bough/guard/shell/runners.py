"""Rules for commands that run other commands or code: shells, interpreters, and prefixes such as `timeout`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from bough.guard.risk import Risk, RiskFinding, names
from bough.guard.shell.call import MAX_DEPTH, ShellCall, base_name
from bough.guard.shell.parse import ShellCommand
from bough.guard.shell.words import Word

_DANGEROUS = names(
    "rm rmdir shred truncate dd mkfs wipefs fdisk parted chmod chown chgrp kill killall pkill sudo doas su git crontab "
    "curl wget nc ncat socat bash sh zsh dash ksh eval mount umount shutdown reboot find mv tee ln"
)
"""Commands that raise the risk anywhere among the arguments of a command that may run its arguments."""


@dataclass(frozen=True)
class RunnerPrefix:
    """How to find the command among the arguments of a prefix such as `timeout`.

    Attributes:
        valued: Options whose value is the next word.
        operands: The number of operands that precede the command.
    """

    valued: frozenset[str] = frozenset()
    operands: int = 0


def _make_prefix(valued: str = "", operands: int = 0) -> RunnerPrefix:
    return RunnerPrefix(frozenset(valued.split()), operands)


PREFIXES: Mapping[str, RunnerPrefix] = {
    "nohup": _make_prefix(),
    "nice": _make_prefix("-n --adjustment"),
    "ionice": _make_prefix("-c -n -p -P -u"),
    "timeout": _make_prefix("-s -k --signal --kill-after", 1),
    "time": _make_prefix("-o -f --output --format"),
    "command": _make_prefix(),
    "builtin": _make_prefix(),
    "exec": _make_prefix("-a"),
    "setsid": _make_prefix(),
    "stdbuf": _make_prefix("-i -o -e"),
    "taskset": _make_prefix("", 1),
    "chrt": _make_prefix("", 1),
    "strace": _make_prefix("-o -e -p -s -u"),
    "ltrace": _make_prefix("-o -e -p -s -u"),
    "coproc": _make_prefix(),
    "then": _make_prefix(),
    "busybox": _make_prefix(),
    "toybox": _make_prefix(),
    "unbuffer": _make_prefix(),
    "fakeroot": _make_prefix(),
    "chronic": _make_prefix(),
    "flock": _make_prefix("-w -E --timeout", 1),
    "xargs": _make_prefix("-I -n -P -L -d -s -E -a -i -l --max-args --max-procs --replace --delimiter --arg-file"),
}


def find_command(call: ShellCall, prefix: RunnerPrefix) -> tuple[Word, ...]:
    """Return the words of the command that follows a prefix; empty if there is none."""
    position, remaining_operands = 0, prefix.operands
    args = call.args
    while position < len(args):
        text = args[position].text
        if text == "--":
            position += 1
        elif text.startswith("-") and len(text) > 1:
            position += 2 if text in prefix.valued else 1
        elif remaining_operands:
            remaining_operands, position = remaining_operands - 1, position + 1
        else:
            return args[position:]
    return ()


def assess_prefixed(call: ShellCall) -> Iterator[RiskFinding]:
    """nohup, timeout, xargs …: the findings about the command that follows, and dangerous names in all arguments."""
    words = find_command(call, PREFIXES[call.name])
    if call.name == "flock" and call.has("c"):
        yield from _assess_inline_text(call)
    if words:
        yield from assess_inner(call, words)
    if call.name == "xargs" and words and base_name(words[0]) not in ("echo", "printf"):
        yield RiskFinding(Risk.UNKNOWN, f"`{base_name(words[0])}` gets its arguments from a pipe")
    # If PREFIXES lacks an option, the command begins at another word. So all arguments are searched as well.
    yield from assess_dangerous_arguments(call)


def assess_inner(call: ShellCall, words: tuple[Word, ...]) -> Iterator[RiskFinding]:
    """Yield the findings about a command that is given as arguments."""
    command = ShellCommand(words, is_piped=call.command.is_piped, stdin=call.command.stdin)
    if call.context.depth >= MAX_DEPTH:  # each prefix recurses, and `nice nice nice …` must not exhaust the stack
        yield RiskFinding(Risk.UNKNOWN, "commands are nested too deeply")
    else:
        yield from call.context.assess_command(command, replace(call.context, depth=call.context.depth + 1))


def assess_dangerous_arguments(call: ShellCall) -> Iterator[RiskFinding]:
    """Yield the HIGH findings about dangerous names among the arguments, each assessed as a command with the rest."""
    if call.context.depth >= 2:  # every argument may begin a command, so the cost multiplies with each level
        return
    for position, word in enumerate(call.args[:200]):
        if word.is_known and base_name(word) in _DANGEROUS:
            yield from (finding for finding in assess_inner(call, call.args[position:]) if finding.risk is Risk.HIGH)


def assess_env(call: ShellCall) -> Iterator[RiskFinding]:
    """env: runs a command with other variables; without a command, it shows the environment."""
    args = list(call.args)
    while args and (args[0].text.startswith("-") or re.match(r"\w+=", args[0].text)):
        word = args.pop(0)
        yield from _assess_env_option(call, word, args)
    if args:
        yield from assess_inner(call, tuple(args))
        yield from assess_dangerous_arguments(call)
    elif not any(word.text.startswith(("-S", "--split")) for word in call.args):
        yield RiskFinding(Risk.MEDIUM, "shows the environment, which may contain secrets")


def _assess_env_option(call: ShellCall, word: Word, words: list[Word]) -> Iterator[RiskFinding]:
    """Yield the findings about an option or an assignment of `env`; remove the words of its value from `words`."""
    text = word.text
    if text in ("-u", "-C", "--unset", "--chdir") and words:
        words.pop(0)
    elif text in ("-S", "--split-string") and words:
        yield from call.context.assess_text(" ".join(item.text for item in words), call.context)
        words.clear()
    elif match := re.match(r"(-\w*S|--split-string=)(.+)", text, re.DOTALL):
        yield from call.context.assess_text(" ".join((match[2], *(item.text for item in words))), call.context)
        words.clear()
    elif "=" in text and not text.startswith("-"):
        # Assessed as a shell assignment: `env LD_PRELOAD=… ls` must have the findings of `LD_PRELOAD=… ls`.
        yield from call.context.assess_text(f"{text.split('=')[0]}=x", call.context)


def assess_as_root(call: ShellCall) -> Iterator[RiskFinding]:
    """sudo, doas, chroot …: always HIGH, and with the HIGH findings about the command that follows."""
    yield RiskFinding(Risk.HIGH, f"`{call.name}` uses another user's rights")
    yield from assess_dangerous_arguments(call)
    if call.has("c", "command"):
        yield from _assess_inline_text(call)


def assess_shell_command(call: ShellCall) -> Iterator[RiskFinding]:
    """sh, bash …: the findings about the text of `-c` or the standard input; script files are not read."""
    yield from _assess_stdin(call)
    if _has_inline_text(call):
        yield from _assess_inline_text(call)
    elif any(word.is_computed for word in call.operands):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` runs what another command prints")
    elif call.operands:
        yield RiskFinding(Risk.UNKNOWN, f"`{call.name}` runs a script whose content is not checked")
        yield from call.assess_reads()
    elif not call.command.stdin and not call.command.is_piped and not call.has("", "version", "help"):
        yield RiskFinding(Risk.UNKNOWN, f"`{call.name}` reads unknown commands")


def _has_inline_text(call: ShellCall) -> bool:
    """Whether a shell has the option `-c`, alone or among others such as `-ec`."""
    return any(re.fullmatch(r"[-+][A-Za-z]*c[A-Za-z]*", word.text) for word in call.args)


def _assess_inline_text(call: ShellCall) -> Iterator[RiskFinding]:
    """Yield the findings about the text that follows `-c`."""
    follows_option = False
    for word in call.args:
        # Other options may follow `-c`: `sh -c -x text`.
        if follows_option and not word.text.startswith(("-", "+")):
            yield from assess_word(call, word)
            return
        follows_option |= bool(re.fullmatch(r"[-+][A-Za-z]*c[A-Za-z]*|--command", word.text))
    yield RiskFinding(Risk.UNKNOWN, f"`{call.name}` has no text to run")


def assess_word(call: ShellCall, word: Word) -> Iterator[RiskFinding]:
    """Yield the findings about a word that is run as a command line."""
    if word.is_computed:
        yield RiskFinding(Risk.HIGH, f"`{call.name}` runs a text that another command computes")
    elif not word.is_known:
        yield RiskFinding(Risk.UNKNOWN, f"the text that `{call.name}` runs is not completely known")
    yield from call.context.assess_text(word.text, call.context)


def _assess_stdin(call: ShellCall) -> Iterator[RiskFinding]:
    """Yield the findings about commands from standard input: here-documents are assessed, a pipe is HIGH."""
    reads_stdin = not _has_inline_text(call) and (not call.operands or call.has("s"))
    if call.command.is_piped and reads_stdin:
        yield RiskFinding(Risk.HIGH, f"`{call.name}` runs its input from a pipe")
    if reads_stdin:
        for word in call.command.stdin:
            yield from assess_word(call, word)


def assess_eval(call: ShellCall) -> Iterator[RiskFinding]:
    """eval: the arguments form one command line."""
    if any(word.is_computed for word in call.args):
        yield RiskFinding(Risk.HIGH, "`eval` runs a text that another command computes")
    elif any(not word.is_known for word in call.args):
        yield RiskFinding(Risk.HIGH, "`eval` runs an unknown text")
    yield from call.context.assess_text(" ".join(word.text for word in call.args), call.context)


def assess_sourced_file(call: ShellCall) -> Iterator[RiskFinding]:
    """source: runs a file; with `<(…)`, the output of a command."""
    if any(word.is_computed for word in call.args):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` runs what another command prints")
    yield RiskFinding(Risk.UNKNOWN, f"`{call.name}` runs a script whose content is not checked")
    yield from call.assess_reads()


def assess_deferred_text(call: ShellCall) -> Iterator[RiskFinding]:
    """trap, alias, watch, parallel: arguments that become command lines later."""
    if call.name in ("watch", "parallel"):
        yield from call.context.assess_text(" ".join(word.text for word in call.operands), call.context)
        yield RiskFinding(Risk.UNKNOWN, f"`{call.name}` runs commands that it composes at run time")
        yield from assess_dangerous_arguments(call)
        return
    is_alias = call.name == "alias"
    if is_alias and call.operands:
        yield RiskFinding(Risk.UNKNOWN, "an alias changes the meaning of a command")
    for word in call.operands:
        body = word.text.split("=", 1)[1] if is_alias and "=" in word.text else word.text
        if is_alias or re.search(r"\W", body):
            yield from assess_word(call, Word(body, word.is_known, word.is_computed))


_CODE_OPTIONS: Mapping[str, str] = {
    "python": "c",
    "perl": "eE",
    "ruby": "e",
    "node": "ep",
    "php": "rBREF",
    "lua": "e",
    "Rscript": "e",
    "deno": "",
    "bun": "e",
    "tclsh": "",
}
_HARMFUL_CODE = re.compile(
    r"rmtree|\bunlink|os\.(remove|rmdir|system|popen|exec|kill|fork|chmod|chown)|subprocess|child_process|"
    r"\b(system|exec|spawn|popen|shell_exec|passthru)\b|rm\s+-|rmSync|socket|urllib|requests|http|b64decode|"
    r"\b(eval|compile|__import__)\b|/dev/sd"
)


def assess_interpreter(call: ShellCall) -> Iterator[RiskFinding]:
    """python, perl, node …: inline code is UNKNOWN, and HIGH if it contains harmful words."""
    family = re.sub(r"[\d.]+$", "", call.name).replace("pypy", "python").replace("nodejs", "node")
    code_letters = _CODE_OPTIONS.get(family, "")
    inline_words = [word for word in (*call.args, *call.command.stdin) if not re.match(r"--?\w+$", word.text)]
    if call.command.is_piped and not call.operands and not call.has("V", "version", "help"):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` runs its input from a pipe")
    elif call.has(code_letters, "eval", "print") or (call.command.stdin and not call.operands):
        yield from _assess_code(call, inline_words)
    elif any(word.is_computed for word in call.operands[:1]):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` runs what another command prints")
    elif family == "python" and call.has("m"):
        yield from _assess_module(call)
    elif call.operands:
        yield RiskFinding(Risk.MEDIUM, f"`{call.name}` runs a program of the workspace")
        yield from call.assess_reads()
    elif not call.has("V", "version", "help"):
        yield RiskFinding(Risk.UNKNOWN, f"`{call.name}` reads unknown code")


def is_harmful_code(text: str) -> bool:
    """Whether code in any language contains words that start programs, delete, decode or connect."""
    return _HARMFUL_CODE.search(text) is not None


def _assess_code(call: ShellCall, words: list[Word]) -> Iterator[RiskFinding]:
    if any(is_harmful_code(word.text) or word.is_computed for word in words):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` runs code that starts programs, deletes, decodes or connects")
    yield RiskFinding(Risk.UNKNOWN, f"`{call.name}` runs code that is not checked")


_READING_MODULES = names("json.tool calendar this platform sysconfig site tabnanny")
_PROJECT_MODULES = names("pytest unittest doctest venv compileall build mypy ruff black isort coverage tox")


def _assess_module(call: ShellCall) -> Iterator[RiskFinding]:
    """`python -m`: modules that check or build the project, and modules that use the network, are MEDIUM."""
    module = next((word.text for word in call.operands), "")
    if module in _PROJECT_MODULES:
        yield RiskFinding(Risk.MEDIUM, f"runs the module {module} on the workspace")
    elif module in ("pip", "ensurepip", "http.server", "smtpd"):
        yield RiskFinding(Risk.MEDIUM, f"the module {module} uses the network")
    elif module not in _READING_MODULES:
        yield RiskFinding(Risk.UNKNOWN, f"the module {module[:40]!r} is unknown")
    yield from call.assess_reads()
