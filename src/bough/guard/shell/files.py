"""Rules for commands that read, create, change or delete files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bough.guard.risk import Risk, RiskFinding
from bough.guard.shell.call import ShellCall
from bough.guard.shell.runners import assess_dangerous_arguments, assess_inner
from bough.guard.shell.words import Word


def assess_read(call: ShellCall) -> Iterator[RiskFinding]:
    """Yield the findings about commands that only read the files among their arguments."""
    yield from call.assess_reads()


def ignore_arguments(_: ShellCall) -> Iterator[RiskFinding]:
    """Yield nothing: these commands compute and print, and their arguments are not files."""
    return iter(())


def assess_search(call: ShellCall) -> Iterator[RiskFinding]:
    """grep, rg …: the first operand is a pattern, not a file."""
    has_pattern_option = call.has("ef", "regexp", "file")
    yield from call.assess_reads(call.values if has_pattern_option else _without(call.values, call.operands[:1]))
    if call.name == "rg" and call.has("", "pre", "hostname-bin"):
        yield RiskFinding(Risk.UNKNOWN, "`rg --pre` runs another program")


def _without(words: tuple[Word, ...], omitted: tuple[Word, ...]) -> tuple[Word, ...]:
    # By identity: of the pattern and the file in `grep a a`, only the pattern must be omitted.
    return tuple(word for word in words if not any(word is other for other in omitted))


def assess_read_or_write(call: ShellCall) -> Iterator[RiskFinding]:
    """Commands that read, and write with an option (`sort -o`, `tree -o`)."""
    yield from call.assess_reads()
    if call.has("o", "output"):
        yield RiskFinding(Risk.MEDIUM, f"`{call.name}` writes a file")
        yield from call.assess_writes(call.values)
    if call.has("", "compress-program"):
        yield RiskFinding(Risk.UNKNOWN, f"`{call.name}` runs another program")


def assess_write_to_second(call: ShellCall) -> Iterator[RiskFinding]:
    """uniq, xxd: the second operand is a file to write."""
    yield from call.assess_reads()
    if len(call.operands) > 1:
        yield RiskFinding(Risk.MEDIUM, f"`{call.name}` may write a file")
        yield from call.assess_writes(call.operands[1:])


def assess_removal(call: ShellCall) -> Iterator[RiskFinding]:
    """rm, rmdir, unlink."""
    if call.name == "rm" and call.has("rR", "recursive"):
        yield RiskFinding(Risk.HIGH, "deletes folders with their contents")
    if any(word.is_pattern and word.text.rsplit("/", 1)[-1] in ("*", ".*", "*.*") for word in call.operands):
        yield RiskFinding(Risk.HIGH, "deletes every file of a folder")
    yield RiskFinding(Risk.MEDIUM, "deletes files")
    yield from call.assess_unknown_words()
    yield from call.assess_writes()


def assess_destruction(call: ShellCall) -> Iterator[RiskFinding]:
    """shred, truncate …: overwrite files, which cannot be undone."""
    yield RiskFinding(Risk.HIGH, f"`{call.name}` destroys the content of files")
    yield from call.assess_writes()


def assess_creation(call: ShellCall) -> Iterator[RiskFinding]:
    """mkdir, touch …: create files and folders without changing existing content."""
    yield from call.assess_writes(call.values)


def assess_change(call: ShellCall) -> Iterator[RiskFinding]:
    """Commands that change every file among their arguments."""
    yield RiskFinding(Risk.MEDIUM, f"`{call.name}` changes files")
    if call.has("", "filter"):
        yield RiskFinding(Risk.UNKNOWN, f"`{call.name}` starts another program")
    yield from call.assess_writes(call.values)


def assess_move(call: ShellCall) -> Iterator[RiskFinding]:
    """mv, rename: sources count as written, since they disappear from their folder."""
    yield RiskFinding(Risk.MEDIUM, "moves files")
    if any(word.text.startswith("/dev/") for word in call.operands):
        yield RiskFinding(Risk.HIGH, "moves files to a device")
    yield from call.assess_writes(call.values)


def assess_copy(call: ShellCall) -> Iterator[RiskFinding]:
    """cp, install: write the last operand; with `-t`, any of them may be the target."""
    yield RiskFinding(Risk.MEDIUM, f"`{call.name}` writes files")
    if call.has("t", "target-directory"):
        yield from call.assess_writes(call.values)
    else:
        yield from call.assess_reads(_without(call.values, call.operands[-1:]))
        yield from call.assess_writes(call.operands[-1:])


def assess_link(call: ShellCall) -> Iterator[RiskFinding]:
    """ln: the target counts as written, since later writes may go through the link."""
    yield RiskFinding(Risk.MEDIUM, "makes a link")
    yield from call.assess_writes(call.values)


def assess_dd(call: ShellCall) -> Iterator[RiskFinding]:
    """dd: reads `if=` and writes `of=`."""
    for word in call.args:
        key, _, value = word.text.partition("=")
        file_word = Word(value, word.is_known, word.is_computed)
        if key == "of":
            yield RiskFinding(
                Risk.HIGH if value.startswith("/dev/") and value != "/dev/null" else Risk.MEDIUM, "`dd` writes a file"
            )
            yield from call.assess_writes([file_word])
        elif key == "if":
            yield from call.assess_reads([file_word])
    yield from call.assess_unknown_words()


def assess_mode_change(call: ShellCall) -> Iterator[RiskFinding]:
    """chmod: write permission for everybody, set-user-id bits and recursion are HIGH."""
    if any(_grants_too_much(word.text) for word in call.args):
        yield RiskFinding(Risk.HIGH, "lets everybody write, or sets a set-user-id bit")
    elif call.has("R", "recursive"):
        yield RiskFinding(Risk.HIGH, "changes the rights of a folder with its contents")
    yield RiskFinding(Risk.MEDIUM, "changes rights of files")
    yield from call.assess_unknown_words()
    yield from call.assess_writes(call.operands[1:])


def _grants_too_much(text: str) -> bool:
    """Whether a mode lets everybody write, or sets the set-user-id or set-group-id bit."""
    if re.fullmatch(r"[0-7]{3,5}", text):
        return int(text[-1], 8) & 2 != 0 or (len(text) > 3 and int(text[:-3], 8) & 6 != 0)
    return bool(re.search(r"(^|,)[ugo]*[ao][ugoa]*[+=][rxX]*w|(^|,)\+[rxX]*w|\+[rwxX]*s|=[rwxX]*s", text))


def assess_owner_change(call: ShellCall) -> Iterator[RiskFinding]:
    """chown, chgrp."""
    yield RiskFinding(Risk.HIGH, "changes the owner of files")
    yield from call.assess_writes(call.operands[1:])


_FIND_RUNS = ("-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch")
_FIND_WRITES = ("-fprint", "-fprint0", "-fprintf", "-fls")


def assess_find(call: ShellCall) -> Iterator[RiskFinding]:
    """find, fd: search; some options delete, write lists or run commands."""
    texts = [word.text for word in call.args]
    is_expression = [text.startswith(("-", "(", "!")) for text in texts]
    first_expression = is_expression.index(True) if True in is_expression else len(texts)
    yield from call.assess_reads(call.args[:first_expression])
    if "-delete" in texts:
        yield RiskFinding(Risk.HIGH, "`find -delete` deletes all matches")
    for position, text in enumerate(texts):
        if text in _FIND_WRITES:
            yield RiskFinding(Risk.MEDIUM, "`find` writes its list to a file")
            yield from call.assess_writes(call.args[position + 1 : position + 2])
        elif text in _FIND_RUNS:
            yield from _assess_exec(call, position + 1)
    yield from call.assess_unknown_words()


def _assess_exec(call: ShellCall, start: int) -> Iterator[RiskFinding]:
    """Yield the findings about the command of `find -exec`. A command that deletes is HIGH: it deletes every match."""
    words = call.args[start:]
    end = next((position for position, word in enumerate(words) if word.text in (";", "+")), len(words))
    command = tuple(word for word in words[:end] if word.text != "{}")
    if not command:
        yield RiskFinding(Risk.UNKNOWN, "`find` runs an unknown command")
        return
    yield from assess_inner(call, command)
    if command[0].text.rsplit("/", 1)[-1] in ("rm", "rmdir", "unlink", "mv"):
        yield RiskFinding(Risk.HIGH, "`find` deletes or moves all matches")
    yield from assess_dangerous_arguments(call)


_SED_PRINTS = re.compile(r"[\d$,;\s~]*(/[^/]*/)?(,(/[^/]*/|\d+|\$))?[\d$,;\s]*[pdqPDnN=]?[\s;]*")
_SED_REPLACES = re.compile(r"(\d+|\$)?(,(\d+|\$))?\s*[sy]([/|#,:@!%])(?:\\.|(?!\4).)*\4(?:\\.|(?!\4).)*\4[gpiIm\d]*")


def assess_sed(call: ShellCall) -> Iterator[RiskFinding]:
    """sed: only prints and plain substitutions are known; other programs may run commands or write files."""
    yield from call.assess_unknown_words()
    in_place = call.has("i", "in-place")
    if in_place:
        yield RiskFinding(Risk.MEDIUM, "`sed -i` changes files")
    programs = call.operands[:1]
    for program in programs:
        # A single substitution is not split, because its text may contain `;`.
        lines = re.split(r"[;\n]", program.text) if not _SED_REPLACES.fullmatch(program.text) else [program.text]
        if not all(_SED_PRINTS.fullmatch(line) or _SED_REPLACES.fullmatch(line.strip()) for line in lines):
            yield RiskFinding(Risk.UNKNOWN, "the program of `sed` is not checked")
    # With `-f` or `-e`, any operand may be a file or a program, so all of them count as files.
    if call.has("f", "file") or (call.has("e", "expression") and len(call.operands) > 1):
        yield from call.assess_writes(call.values) if in_place else call.assess_reads()
    else:
        yield from call.assess_writes(call.operands[1:]) if in_place else call.assess_reads(call.operands[1:])
    if call.has("f", "file"):
        yield RiskFinding(Risk.UNKNOWN, "the program of `sed` is not checked")


def assess_awk(call: ShellCall) -> Iterator[RiskFinding]:
    """awk: a program that starts commands is HIGH; a program that writes, or that is in a file, is UNKNOWN."""
    yield from call.assess_unknown_words()
    if call.has("f", "file", "include", "load", "exec"):
        yield RiskFinding(Risk.UNKNOWN, "the program of `awk` is not checked")
    programs = [word for word in call.args if re.search(r"[{}()/|]", word.text)][:3]
    for program in programs:
        if re.search(r'system\s*\(|\|\s*(getline|")|"\s*\|', program.text):
            yield RiskFinding(Risk.HIGH, "`awk` starts other commands")
        elif re.search(r"print[^;}]*>|getline|\||@load|close\(", program.text):
            yield RiskFinding(Risk.UNKNOWN, "`awk` may write files or run commands")
    yield from call.assess_reads(_without(call.operands, tuple(programs) or call.operands[:1]))


def assess_archive(call: ShellCall) -> Iterator[RiskFinding]:
    """tar, zip, unzip …: read and write files; options that start programs are HIGH."""
    if any(
        re.match(
            r"--(to-command|checkpoint-action|use-compress-program|rsh-command|info-script|unzip-command)|-I|-TT",
            word.text,
        )
        for word in call.args
    ):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` starts another program")
    if any(re.match(r"--(remove-files|absolute-names)|-P", word.text) for word in call.args):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` deletes archived files, or writes to absolute paths")
    is_list = call.name == "tar" and call.args and re.match(r"-?[a-zA-Z]*t[a-zA-Z]*$", call.args[0].text)
    if is_list:
        yield from call.assess_reads()
    else:
        yield RiskFinding(Risk.MEDIUM, f"`{call.name}` writes files")
        yield from call.assess_writes(call.values)


def assess_folder_change(call: ShellCall) -> Iterator[RiskFinding]:
    """cd, pushd: entering a folder counts as reading it."""
    yield from call.assess_reads(call.operands or (() if call.args else (Word("~"),)))


def assess_history(call: ShellCall) -> Iterator[RiskFinding]:
    """history: showing it is harmless; clearing it hides earlier commands."""
    if call.has("cdwanr"):
        yield RiskFinding(Risk.HIGH, "changes the shell's history")


def assess_printenv(_: ShellCall) -> Iterator[RiskFinding]:
    """printenv: shows the environment."""
    yield RiskFinding(Risk.MEDIUM, "shows the environment, which may contain secrets")


def assess_date(call: ShellCall) -> Iterator[RiskFinding]:
    """date: shows the time; `-s` sets it."""
    yield from call.assess_reads(word for word in call.values if "/" in word.text)
    if call.has("s", "set"):
        yield RiskFinding(Risk.HIGH, "sets the clock of the machine")
