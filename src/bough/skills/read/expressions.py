"""What triggers are written in: regular expressions of RE2's dialect, and patterns of paths."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

MAX_PATTERN = 1_000
_MAX_BRACES = 200


def refuse_pattern(source: str) -> str:
    """Return why a regular expression is not a trigger; empty where it is one."""
    if not source:
        return "it is empty"
    if len(source) > MAX_PATTERN:
        return f"it is longer than {MAX_PATTERN} characters"
    try:
        return "it matches the empty text, so every message" if _compile(source).search("") else ""
    except _re2().error as error:
        return str(error)


def refuse_glob(glob: str) -> str:
    """Return why a pattern of paths cannot be used; empty where it can."""
    source = pattern_of(glob)
    if source is None:
        return "it is empty, too long, or stands for too many"
    try:
        _compile(source)
    except _re2().error as error:
        return str(error)
    return ""


def _re2() -> Any:
    return import_module("re2")  # it carries no types, and most libraries need it for nothing


def _compile(source: str) -> Any:
    options = _re2().Options()
    options.log_errors = False
    return _re2().compile(source, options)


def pattern_of(glob: str) -> str | None:
    """Return the regular expression of a glob; None when it cannot be one.

    `*` and `?` stay within a folder, `**` does not, `{a,b}` is either, `[…]` a class. A pattern without a slash
    matches in every folder, one with a trailing slash everything below.
    """
    glob = glob.strip().removeprefix("./")
    if not glob or len(glob) > MAX_PATTERN or "\0" in glob:
        return None
    if glob.endswith("/"):
        glob += "**"
    if "/" not in glob and not glob.startswith("**"):
        glob = f"**/{glob}"
    variants = _braces(glob.removeprefix("/"))
    return None if variants is None else "|".join(f"(?:{_regex(each)})" for each in variants)


def _braces(glob: str) -> list[str] | None:
    """The patterns without braces that a pattern with braces stands for; None when there are too many."""
    done: list[str] = []
    waiting = [glob]
    while waiting:
        each = waiting.pop(0)
        match = re.search(r"\{([^{}]*,[^{}]*)\}", each)
        if match is None:
            done.append(each)
        else:
            waiting += [each[: match.start()] + part + each[match.end() :] for part in match[1].split(",")]
        if len(done) + len(waiting) > _MAX_BRACES:
            return None
    return done


def _regex(glob: str) -> str:
    out, i = "", 0
    while i < len(glob):
        if match := re.compile(r"\*\*/|/\*\*$|\*+|\?|\[[!^]?\]?[^\]/]+\]").match(glob, i):
            out += _token(match[0])
            i = match.end()
        else:
            out += re.escape(glob[i])
            i += 1
    return out


def _token(token: str) -> str:
    match token:
        case "**/":
            return "(?:.*/)?"
        case "/**":
            return "/.*"
        case "**":
            return ".*"
        case "?":
            return "[^/]"
        case _ if token.startswith("["):
            inside = token[1:-1].replace("\\", "\\\\").replace("[", "\\[")
            return f"[^{inside[1:]}/]" if inside[0] in "!^" else f"[{inside}]"
        case _:
            return "[^/]*"
