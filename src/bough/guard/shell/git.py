"""The rule for git: global options, then one rule for each group of subcommands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from bough.guard.risk import Risk, RiskFinding, names
from bough.guard.shell.call import ShellCall
from bough.guard.shell.words import Word

_READING = names(
    "status log diff show rev-parse ls-files ls-tree blame annotate describe shortlog grep cat-file rev-list name-rev "
    "merge-base for-each-ref show-ref whatchanged count-objects check-ignore var version help diff-tree diff-index "
    "diff-files range-diff cherry fsck verify-commit verify-tag show-branch"
)
_CHANGING = names(
    "add commit merge cherry-pick revert init mv apply am notes format-patch bundle archive sparse-checkout write-tree "
    "commit-tree hash-object update-index read-tree maintenance pack-refs repack bisect rerere"
)
_CONNECTING = names("fetch pull clone ls-remote submodule remote-update lfs")
_LOSING = names("filter-branch filter-repo prune update-ref replace fast-import reflog gc")
_OPTIONS_WITH_VALUE = names("-C -c --git-dir --work-tree --namespace --exec-path --config-env --super-prefix")
# An allow-list, because every section has settings that start programs, and git adds new ones.
_HARMLESS_SETTINGS = re.compile(
    r"(user|color|advice|init|push|pull|log|diff|status|core)\.(name|email|ui|quotepath|default\w*|"
    r"rebase|autocrlf|decorate|date|abbrev|\w+hint\w*|detachedhead|noprefix|short|eol)",
    re.IGNORECASE,
)


def assess_git(call: ShellCall) -> Iterator[RiskFinding]:
    """git: global options first, then the subcommand."""
    words = list(call.args)
    while words and words[0].text.startswith("-"):
        option = words.pop(0)
        name, _, attached = option.text.partition("=")
        value = words.pop(0) if option.text in _OPTIONS_WITH_VALUE and words else Word(attached, option.is_known)
        yield from _assess_global_option(call, name, value)
    if not words or any(word.text == "--help" for word in words):
        return
    subcommand, args = words[0], tuple(words[1:])
    if not subcommand.is_known:
        yield RiskFinding(Risk.UNKNOWN, "the git command is unknown")
    else:
        yield from _assess_subcommand(subcommand.text, replace(call, args=args))


def _assess_global_option(call: ShellCall, option: str, value: Word) -> Iterator[RiskFinding]:
    """Yield the findings about an option that precedes the subcommand."""
    if option == "-C":
        yield from call.assess_reads([value])
    elif option in ("-c", "--config-env"):
        key, _, setting = value.text.partition("=")
        yield from _assess_setting(key, setting)
    elif option in ("--git-dir", "--work-tree", "--exec-path"):
        # Counts as writing: git writes objects and refs there, and runs hooks or programs from these folders.
        yield from call.assess_writes([value])


def _assess_setting(key: str, value: str) -> Iterator[RiskFinding]:
    """Yield the finding about a setting of git; none for a harmless one."""
    # `!command` runs a shell command in aliases and credential helpers.
    if value.startswith("!") or re.match(
        r"(?i)alias\.|core\.(hookspath|sshcommand|pager|editor|fsmonitor|askpass)|"
        r"\w+\.(pager|editor|program|textconv|command|helper|clean|smudge)",
        key,
    ):
        yield RiskFinding(Risk.HIGH, "the git setting starts programs")
    elif not _HARMLESS_SETTINGS.fullmatch(key):
        yield RiskFinding(Risk.UNKNOWN, f"the git setting {key[:40]!r} is unknown")


def _assess_subcommand(name: str, call: ShellCall) -> Iterator[RiskFinding]:
    """Yield the findings about a subcommand; `call` has only the arguments that follow it."""
    yield from call.assess_unknown_words()
    yield from call.assess_reads(word for word in call.values if word.is_known)
    if (
        any(
            re.match(r"--(upload-pack|receive-pack|exec|ext-diff|open-files-in-pager|extcmd)|-x$|-O", word.text)
            for word in call.args
        )
        and name != "clean"  # its `-x` only selects ignored files
    ):
        yield RiskFinding(Risk.UNKNOWN, f"`git {name}` starts another program")
    if any(word.text.startswith("ext::") for word in call.args):  # the remote helper `ext` runs a command
        yield RiskFinding(Risk.HIGH, "git starts a program instead of connecting")
    if name in _RULES:
        yield from _RULES[name](call)
    elif name in _READING:
        yield from _assess_output(call)
    elif name in _CHANGING:
        yield RiskFinding(Risk.MEDIUM, f"`git {name}` changes the repository or the files")
    elif name in _CONNECTING:
        yield RiskFinding(Risk.MEDIUM, f"`git {name}` uses the network")
    elif name in _LOSING:
        yield RiskFinding(Risk.HIGH, f"`git {name}` can lose commits")
    else:
        yield RiskFinding(Risk.UNKNOWN, f"`git {name[:40]}` is unknown")


def _assess_output(call: ShellCall) -> Iterator[RiskFinding]:
    for word in call.args:
        if word.text.startswith("--output="):
            yield RiskFinding(Risk.MEDIUM, "git writes a file")
            yield from call.assess_writes([Word(word.text.partition("=")[2], word.is_known)])


def _assess_push(call: ShellCall) -> Iterator[RiskFinding]:
    yield RiskFinding(Risk.MEDIUM, "`git push` sends commits to another machine")
    if call.has("fd", "force", "force-with-lease", "force-if-includes", "delete", "mirror", "prune"):
        yield RiskFinding(Risk.HIGH, "`git push` overwrites or deletes remote branches")
    if any(re.match(r"[+:]", word.text) for word in call.operands):  # `+branch` forces, `:branch` deletes
        yield RiskFinding(Risk.HIGH, "`git push` overwrites or deletes remote branches")


def _assess_reset(call: ShellCall) -> Iterator[RiskFinding]:
    if call.has("", "hard", "merge", "keep"):
        yield RiskFinding(Risk.HIGH, "`git reset` discards uncommitted work")
    yield RiskFinding(Risk.MEDIUM, "`git reset` moves the branch")


def _assess_clean(call: ShellCall) -> Iterator[RiskFinding]:
    if call.has("n", "dry-run") and not call.has("f", "force"):
        return
    yield RiskFinding(Risk.HIGH, "`git clean` deletes files that were never committed")


def _assess_checkout(call: ShellCall) -> Iterator[RiskFinding]:
    texts = {word.text for word in call.args}
    if call.has("fB", "force", "discard-changes") or texts & {"--", ".", "./", "*", ":/"}:
        yield RiskFinding(Risk.HIGH, "discards uncommitted work")
    yield RiskFinding(Risk.MEDIUM, "changes the files of the workspace")


def _assess_restore(call: ShellCall) -> Iterator[RiskFinding]:
    if call.has("SW", "worktree") or not call.has("", "staged"):
        yield RiskFinding(Risk.HIGH, "`git restore` discards uncommitted work")
    yield RiskFinding(Risk.MEDIUM, "changes the staged files")


def _assess_branch(call: ShellCall) -> Iterator[RiskFinding]:
    if call.has("D") or (call.has("d", "delete") and call.has("f", "force")):
        yield RiskFinding(Risk.HIGH, "deletes a branch even if it is not merged")
    elif call.operands or call.has("dmMcCfu", "delete", "move", "copy", "force", "set-upstream-to"):
        yield RiskFinding(Risk.MEDIUM, "changes branches or tags")


def _assess_stash(call: ShellCall) -> Iterator[RiskFinding]:
    verb = call.operands[0].text if call.operands else "push"
    if verb in ("drop", "clear"):
        yield RiskFinding(Risk.HIGH, "deletes stashed work")
    elif verb not in ("list", "show"):
        yield RiskFinding(Risk.MEDIUM, "moves work to or from the stash")


def _assess_config(call: ShellCall) -> Iterator[RiskFinding]:
    if call.has("l", "list", "get", "get-all", "get-regexp", "show-origin") or call.operands[:1] == (Word("list"),):
        return
    if call.has("e", "global", "system", "edit"):
        yield RiskFinding(Risk.HIGH, "changes git's settings outside the workspace")
    values = [word.text for word in call.operands if word.text not in ("set", "get", "unset")]
    if len(values) > 1:
        yield RiskFinding(Risk.MEDIUM, "changes git's settings")
        yield from _assess_setting(values[0], values[1])


def _assess_remote(call: ShellCall) -> Iterator[RiskFinding]:
    if call.operands and call.operands[0].text not in ("show", "get-url"):
        yield RiskFinding(Risk.MEDIUM, "changes the remotes of the repository")


def _assess_rebase(call: ShellCall) -> Iterator[RiskFinding]:
    yield RiskFinding(Risk.MEDIUM, "`git rebase` rewrites commits")
    if call.has("x", "exec"):
        yield RiskFinding(Risk.HIGH, "`git rebase --exec` starts commands")


def _assess_worktree(call: ShellCall) -> Iterator[RiskFinding]:
    verb = call.operands[0].text if call.operands else "list"
    if verb == "remove" and call.has("f", "force"):
        yield RiskFinding(Risk.HIGH, "deletes a working tree with its uncommitted work")
    elif verb != "list":
        yield RiskFinding(Risk.MEDIUM, "changes working trees")
        yield from call.assess_writes(call.operands[1:])


def _assess_remove(call: ShellCall) -> Iterator[RiskFinding]:
    yield RiskFinding(Risk.MEDIUM, "deletes files")
    if call.has("rf", "force"):
        yield RiskFinding(Risk.HIGH, "deletes folders or changed files")


_RULES: Mapping[str, Callable[[ShellCall], Iterator[RiskFinding]]] = {
    "push": _assess_push,
    "reset": _assess_reset,
    "clean": _assess_clean,
    "checkout": _assess_checkout,
    "switch": _assess_checkout,
    "restore": _assess_restore,
    "branch": _assess_branch,
    "tag": _assess_branch,
    "stash": _assess_stash,
    "config": _assess_config,
    "remote": _assess_remote,
    "rebase": _assess_rebase,
    "worktree": _assess_worktree,
    "rm": _assess_remove,
}
