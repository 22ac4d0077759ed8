"""The pattern languages of triggers: RE2 regular expressions and path globs."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

MAX_PATTERN = 1_000
_MAX_EXPANSIONS = 200


def explain_bad_pattern(source: str) -> str:
    """Return why a regular expression is not a valid trigger; empty if it is valid."""
    if not source:
        return "it is empty"
    if len(source) > MAX_PATTERN:
        return f"it is longer than {MAX_PATTERN} characters"
    try:
        return "it matches the empty string, so every message" if _compile(source).search("") else ""
    except _import_re2().error as error:
        return str(error)


def explain_bad_glob(glob: str) -> str:
    """Return why a path glob is invalid; empty if it is valid."""
    source = translate_glob(glob)
    if source is None:
        return "it is empty, too long, or has too many alternatives"
    try:
        _compile(source)
    except _import_re2().error as error:
        return str(error)
    return ""


def _import_re2() -> Any:
    return import_module("re2")  # untyped, and slow to import: most skills have no patterns


def _compile(source: str) -> Any:
    options = _import_re2().Options()
    options.log_errors = False
    return _import_re2().compile(source, options)


def translate_glob(glob: str) -> str | None:
    """Return the regular expression of a glob; None for an invalid glob.

    `*` and `?` match within a folder, `**` across folders, `{a,b}` either alternative, `[…]` a character class. A
    pattern without a slash matches in every folder; with a trailing slash, it matches everything below that folder.
    """
    glob = glob.strip().removeprefix("./")
    if not glob or len(glob) > MAX_PATTERN or "\0" in glob:
        return None
    if glob.endswith("/"):
        glob += "**"
    if "/" not in glob and not glob.startswith("**"):
        glob = f"**/{glob}"
    variants = _expand_braces(glob.removeprefix("/"))
    return None if variants is None else "|".join(f"(?:{_translate_pattern(variant)})" for variant in variants)


def _expand_braces(glob: str) -> list[str] | None:
    """Return the patterns without braces that a glob stands for; None if there are too many."""
    # Counted in every step: each further `{a,b}` of a pattern doubles the number of expansions.
    expanded: list[str] = []
    pending = [glob]
    while pending:
        pattern = pending.pop(0)
        match = re.search(r"\{([^{}]*,[^{}]*)\}", pattern)
        if match is None:
            expanded.append(pattern)
        else:
            pending += [pattern[: match.start()] + part + pattern[match.end() :] for part in match[1].split(",")]
        if len(expanded) + len(pending) > _MAX_EXPANSIONS:
            return None
    return expanded


def _translate_pattern(glob: str) -> str:
    """Return the regular expression of a glob without braces."""
    expression, position = "", 0
    while position < len(glob):
        if match := re.compile(r"\*\*/|/\*\*$|\*+|\?|\[[!^]?\]?[^\]/]+\]").match(glob, position):
            expression += _translate_token(match[0])
            position = match.end()
        else:
            expression += re.escape(glob[position])
            position += 1
    return expression


def _translate_token(token: str) -> str:
    """Return the regular expression of a wildcard or a character class."""
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
            characters = token[1:-1].replace("\\", "\\\\").replace("[", "\\[")
            return f"[^{characters[1:]}/]" if characters[0] in "!^" else f"[{characters}]"
        case _:
            return "[^/]*"
