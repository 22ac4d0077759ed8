"""Rules for commands that connect to other machines, and for package managers, which run what they fetch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bough.guard.risk import Risk, RiskFinding, names
from bough.guard.shell.call import ShellCall
from bough.guard.shell.runners import RunnerPrefix, find_command


def connect(call: ShellCall) -> Iterator[RiskFinding]:
    """Commands that query or fetch."""
    yield RiskFinding(Risk.MEDIUM, f"`{call.name}` uses the network")
    yield from call.reads(word for word in call.values if word.is_known)


def curl(call: ShellCall) -> Iterator[RiskFinding]:
    """curl, wget …: fetching is MEDIUM; sending data or changing something remotely is HIGH."""
    yield RiskFinding(Risk.MEDIUM, f"`{call.name}` uses the network")
    sends = "dFT" if call.name == "curl" else ""
    if call.has(sends, "upload-file", "form", "json", "post-data", "post-file", "body-data", "body-file") or any(
        re.match(r"--data", word.text) for word in call.args
    ):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` sends data to another machine")
    if any(re.fullmatch(r"(-X|--request=?|--method=?)?(POST|PUT|PATCH|DELETE)", word.text) for word in call.args):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` changes something on another machine")
    if any("169.254.169.254" in word.text or "metadata.google" in word.text for word in call.args):
        yield RiskFinding(Risk.HIGH, "asks the cloud's metadata service, which gives out keys")
    writes = call.has(
        "oOPDc", "output", "output-document", "output-dir", "remote-name", "directory-prefix", "cookie-jar"
    )
    # wget and aria2c write a file without any option.
    if writes or call.name in ("wget", "aria2c"):
        yield from call.writes(call.values)
    else:
        yield from call.reads()


def ssh(call: ShellCall) -> Iterator[RiskFinding]:
    """ssh: a command on another machine is assessed like a local one, and is HIGH anyway."""
    yield RiskFinding(Risk.MEDIUM, "`ssh` uses the network")
    # These options make ssh itself start a local program.
    if any(re.search(r"(?i)proxycommand|localcommand|permitlocal|knownhostscommand", word.text) for word in call.args):
        yield RiskFinding(Risk.HIGH, "`ssh` starts another program here")
    words = find_command(call, RunnerPrefix(names("-p -i -l -o -L -R -D -J -F -E -S -W -b -c -m"), 1))
    if words:
        yield RiskFinding(Risk.HIGH, "`ssh` runs a command on another machine")
        yield from call.context.assess_text(" ".join(word.text for word in words), call.context)
    yield from call.unknown()


def transfer(call: ShellCall) -> Iterator[RiskFinding]:
    """scp, sftp, rsync: send, receive or delete files."""
    yield RiskFinding(Risk.MEDIUM, f"`{call.name}` writes files")
    if call.has("", "delete", "remove-source-files") or any(w.text.startswith("--delete") for w in call.args):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` deletes files that are not on the other side")
    if call.has("eS", "rsh", "rsync-path"):
        yield RiskFinding(Risk.UNKNOWN, f"`{call.name}` starts another program")
    # The last operand is the target. `host:path` has a colon before the first slash, a local path has not.
    if call.operands and re.match(r"[^/]+:", call.operands[-1].text):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` sends files to another machine")
    elif call.operands:
        yield from call.reads(call.values[:-1])
        yield from call.writes(call.operands[-1:])


def raw_connection(call: ShellCall) -> Iterator[RiskFinding]:
    """nc, socat, telnet: raw connections, which may send any data or serve a shell."""
    texts = " ".join(word.text for word in call.args)
    if call.has("ecl", "exec", "sh-exec", "listen") or re.search(r"(?i)exec:|system:|listen", texts):
        yield RiskFinding(Risk.HIGH, f"`{call.name}` lets another machine in, or hands it a program")
    if call.command.is_piped or call.command.redirects or call.command.stdin:
        yield RiskFinding(Risk.HIGH, f"`{call.name}` sends data to another machine")
    yield RiskFinding(Risk.MEDIUM, f"`{call.name}` uses the network")


_PUBLISHES = names("publish upload unpublish deprecate yank owner login adduser token release")
_INSTALLS = names("install i add ci update upgrade sync get download lock fetch uninstall remove restore")
_LOOKS = names("list ls show freeze view info search outdated tree --version version check why help metadata")
_RUNS_PROJECT = names(
    "test t build lint format fmt vet clippy typecheck compile bench doc init new run run-script start clean vendor"
)
_FETCHES_AND_RUNS = names("x dlx exec create tool")


def package(call: ShellCall) -> Iterator[RiskFinding]:
    """pip, npm, cargo, uv …: the risk depends on the subcommand."""
    verbs = [word.text for word in call.operands]
    verb = verbs[1] if call.name == "uv" and verbs[:1] == ["pip"] and len(verbs) > 1 else (verbs or ["help"])[0]
    if verb in _PUBLISHES:
        yield RiskFinding(Risk.HIGH, f"`{call.name} {verb}` publishes or signs in")
    elif verb in _INSTALLS:
        yield RiskFinding(Risk.MEDIUM, f"`{call.name} {verb}` fetches packages, or takes them away")
    elif verb in _FETCHES_AND_RUNS:
        yield RiskFinding(Risk.UNKNOWN, f"`{call.name} {verb}` runs a program that it fetches")
    elif verb in _RUNS_PROJECT or (call.name == "uv" and verb == "venv"):
        yield RiskFinding(Risk.MEDIUM, f"`{call.name} {verb}` runs what the project says")
    elif verb not in _LOOKS:
        yield RiskFinding(Risk.UNKNOWN, f"nothing is known about `{call.name} {verb[:40]}`")
    yield from call.unknown()
    yield from call.reads(word for word in call.values if word.is_known)


def fetch_and_run(call: ShellCall) -> Iterator[RiskFinding]:
    """npx, uvx, pipx: run a program from the network, whatever its name."""
    yield RiskFinding(Risk.UNKNOWN, f"`{call.name}` runs a program that it fetches")
