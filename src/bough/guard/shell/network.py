"""Rules for commands that connect to other machines, and for package managers, which run downloaded code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bough.guard.risk import Risk, RiskFinding, names
from bough.guard.shell.call import ShellCall
from bough.guard.shell.runners import RunnerPrefix, find_command


def assess_connection(call: ShellCall) -> Iterator[RiskFinding]:
    """Commands that query or fetch."""
    yield RiskFinding(Risk.MEDIUM, f"`{call.name}` uses the network")
    yield from call.assess_reads(word for word in call.values if word.is_known)


def assess_curl(call: ShellCall) -> Iterator[RiskFinding]:
    """curl, wget …: fetching is MEDIUM; sending data or changing something remotely is HIGH."""
    yield RiskFinding(Risk.MEDIUM, f"`{call.name}` uses the network")
    sending_letters = "dFT" if call.name == "curl" else ""
    sending_options = ("upload-file", "form", "json", "post-data", "post-file", "body-data", "body-file")
    if call.has(sending_letters, *sending_options) or any(word.text.startswith("--data") for word in call.args):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` sends data to another machine")
    if any(re.fullmatch(r"(-X|--request=?|--method=?)?(POST|PUT|PATCH|DELETE)", word.text) for word in call.args):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` changes something on another machine")
    if any("169.254.169.254" in word.text or "metadata.google" in word.text for word in call.args):
        yield RiskFinding(Risk.HIGH, "asks the metadata service of the cloud, which returns keys")
    has_output_option = call.has(
        "oOPDc", "output", "output-document", "output-dir", "remote-name", "directory-prefix", "cookie-jar"
    )
    # wget and aria2c write a file without any option.
    if has_output_option or call.name in ("wget", "aria2c"):
        yield from call.assess_writes(call.values)
    else:
        yield from call.assess_reads()


def assess_ssh(call: ShellCall) -> Iterator[RiskFinding]:
    """ssh: a command on another machine is HIGH, and has the findings of a local one."""
    yield RiskFinding(Risk.MEDIUM, "`ssh` uses the network")
    # These options make ssh itself start a local program.
    if any(re.search(r"(?i)proxycommand|localcommand|permitlocal|knownhostscommand", word.text) for word in call.args):
        yield RiskFinding(Risk.HIGH, "`ssh` starts another local program")
    words = find_command(call, RunnerPrefix(names("-p -i -l -o -L -R -D -J -F -E -S -W -b -c -m"), 1))
    if words:
        yield RiskFinding(Risk.HIGH, "`ssh` runs a command on another machine")
        yield from call.context.assess_text(" ".join(word.text for word in words), call.context)
    yield from call.assess_unknown_words()


def assess_transfer(call: ShellCall) -> Iterator[RiskFinding]:
    """scp, sftp, rsync: send, receive or delete files."""
    yield RiskFinding(Risk.MEDIUM, f"`{call.name}` writes files")
    if call.has("", "delete", "remove-source-files") or any(word.text.startswith("--delete") for word in call.args):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` deletes files that the source lacks")
    if call.has("eS", "rsh", "rsync-path"):
        yield RiskFinding(Risk.UNKNOWN, f"`{call.name}` starts another program")
    # The last operand is the target. Unlike a local path, `host:path` has a colon before the first slash.
    if call.operands and re.match(r"[^/]+:", call.operands[-1].text):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` sends files to another machine")
    elif call.operands:
        yield from call.assess_reads(call.values[:-1])
        yield from call.assess_writes(call.operands[-1:])


def assess_raw_connection(call: ShellCall) -> Iterator[RiskFinding]:
    """nc, socat, telnet: raw connections, which may send any data or serve a shell."""
    texts = " ".join(word.text for word in call.args)
    if call.has("ecl", "exec", "sh-exec", "listen") or re.search(r"(?i)exec:|system:|listen", texts):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` accepts connections, or connects a program to another machine")
    if call.command.is_piped or call.command.redirects or call.command.stdin:
        yield RiskFinding(Risk.HIGH, f"`{call.name}` sends data to another machine")
    yield RiskFinding(Risk.MEDIUM, f"`{call.name}` uses the network")


_PUBLISHING = names("publish upload unpublish deprecate yank owner login adduser token release")
_INSTALLING = names("install i add ci update upgrade sync get download lock fetch uninstall remove restore")
_READING = names("list ls show freeze view info search outdated tree --version version check why help metadata")
_RUNNING_PROJECT = names(
    "test t build lint format fmt vet clippy typecheck compile bench doc init new run run-script start clean vendor"
)
_FETCHING_AND_RUNNING = names("x dlx exec create tool")


def assess_package_manager(call: ShellCall) -> Iterator[RiskFinding]:
    """pip, npm, cargo, uv …: the risk depends on the subcommand."""
    operands = [word.text for word in call.operands] or ["help"]
    is_uv_pip = call.name == "uv" and operands[0] == "pip" and len(operands) > 1
    verb = operands[1] if is_uv_pip else operands[0]
    if verb in _PUBLISHING:
        yield RiskFinding(Risk.HIGH, f"`{call.name} {verb}` publishes or signs in")
    elif verb in _INSTALLING:
        yield RiskFinding(Risk.MEDIUM, f"`{call.name} {verb}` installs or removes packages")
    elif verb in _FETCHING_AND_RUNNING:
        yield RiskFinding(Risk.UNKNOWN, f"`{call.name} {verb}` runs a program that it fetches")
    elif verb in _RUNNING_PROJECT or (call.name == "uv" and verb == "venv"):
        yield RiskFinding(Risk.MEDIUM, f"`{call.name} {verb}` runs commands of the project")
    elif verb not in _READING:
        yield RiskFinding(Risk.UNKNOWN, f"`{call.name} {verb[:40]}` is unknown")
    yield from call.assess_unknown_words()
    yield from call.assess_reads(word for word in call.values if word.is_known)


def assess_fetched_program(call: ShellCall) -> Iterator[RiskFinding]:
    """npx, uvx, pipx: run a program from the network, whatever its name."""
    yield RiskFinding(Risk.UNKNOWN, f"`{call.name}` runs a program that it fetches")
