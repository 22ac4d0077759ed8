"""What a user's message says: its content words, the arguments in it, and the command it may start with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from bough.agents.models.planner.needs import Need, read_needs, take_exclusions, take_options
from bough.agents.models.planner.words import (
    MARK,
    content_words,
    make_mark,
    normalise,
    phrases,
    read_kind,
    read_marks,
    word_list,
)

_QUOTED = re.compile(r"(?<![\w])(?:\"([^\"\n]+)\"|“([^”\n]+)”|`([^`\n]+)`|'([^'\n]+)'|‘([^’\n]+)’)(?!\w)")
_TOKEN = re.compile(r"https?://\S+|[^\s,;]+")
_FILE = re.compile(r"[^\s/\\]*[\w)\]*]\.[A-Za-z][A-Za-z0-9]{0,9}")
_DOTFILE = re.compile(r"\.[A-Za-z][\w-]*(\.[\w-]+)*")
_FOLDER = re.compile(
    r"\b(?P<before>[\w-]+)\s+(?:folder|directory)\b(?:\s+(?P<after>[\w-]+)(?=[^\w\s]|\s+(?P<next>\w+)|\s*$))?",
    re.IGNORECASE,
)
_PLACED = re.compile(
    r"\b(?:at|in|inside|within|under|below|from|across|through)\s+(?:the\s+)?(?P<name>[\w-]+)"
    r"(?![\w/\\.-]*[\w/\\-])(?!\s+(?:folder|directory|and\s+[\w-]+\s+(?:folder|director))\b)",
    re.IGNORECASE,
)
_JOINT = re.compile(r"[;.!?,]?(?:(?<=[;.!?])\s|\s(?:(?:and|then|also)\s)+)", re.IGNORECASE)
_SLASH = re.compile(r"/([A-Za-z0-9][\w-]*)(?=\s|$)")
_PAIR = re.compile(r"(?<![\w-])[A-Za-z_][\w-]*=\S*")
_MAX_ARGS = 10_000
BARE_FOLDER = "/./"
"""Ends the name of a folder that was written without a slash."""


@dataclass(frozen=True, kw_only=True)
class PromptCommand:
    """A message that starts with `/name`; `error` says why its arguments could not be read."""

    name: str
    args: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A message, taken apart.

    Attributes:
        words: Content words, normalised, each once, in order; arguments and stop words are left out.
        args: Quoted strings, paths, URLs and file names, in order, as they were written, without those to leave out.
        kinds: File types the arguments name, for example `csv`.
        needs: All that must be accounted for.
        options: Options of a script that the message asks for, with their values: `("--top", "5")`.
    """

    words: tuple[str, ...]
    args: tuple[str, ...]
    kinds: tuple[str, ...]
    needs: tuple[Need, ...]
    options: tuple[str, ...] = ()

    @property
    def strong(self) -> tuple[str, ...]:
        """The content words that say what is wanted, not merely that something is."""
        return tuple(word for word in self.words if word not in word_list("general") and not word.isdigit())

    @property
    def echoed(self) -> tuple[str, ...]:
        """The words within its arguments: "the meeting notes notes/meeting.md" asks for no skill about meetings."""
        return content_words(" ".join(self.args))


def read_command(message: str) -> PromptCommand | None:
    """Return the `/name args` that `message` starts with, its arguments split as a shell would; None without one."""
    match = _SLASH.match(message.lstrip())
    if match is None:
        return None
    arguments = message.lstrip()[match.end() :]
    try:
        return PromptCommand(name=match[1], args=tuple(shlex.split(arguments)))
    except ValueError as error:
        return PromptCommand(name=match[1], error=str(error).lower())


def read_prompt(message: str, documented: Mapping[str, bool] | None = None) -> Prompt:
    """Return what `message` says.

    Args:
        documented: The long options of the script, and whether each takes a value: `{"top": True}`.
    """
    text = re.sub(MARK, " ", message)
    spans = sorted(_spans(text))[:_MAX_ARGS]  # more than these are read as words, which nothing accounts for
    names = [name for _, _, name in spans]
    for i, (start, end, _) in reversed(list(enumerate(spans))):
        text = f"{text[:start]} {make_mark(i)} {text[end:]}"
    pairs = [Need(text=pair, kind="pair") for pair in _PAIR.findall(text)]
    text = take_exclusions(normalise(_PAIR.sub(" ", text)), names)
    text, options = take_options(text, names, documented or {})
    args = tuple(dict.fromkeys(read_marks(text, names)))
    return Prompt(
        words=content_words(phrases("idioms").sub(" ", text)),
        args=args,
        kinds=tuple(dict.fromkeys(filter(None, map(read_kind, args)))),
        needs=tuple(dict.fromkeys([*pairs, *read_needs(text, names, is_path=is_path)])),
        options=options,
    )


def mark_folders(message: str, folders: Collection[str]) -> str:
    """Return a message in which a folder named after "in", "from" or "under" is a path: "links in docs/./".

    Only scripts that take any path are run with such a path; see `find_surplus`.

    Args:
        folders: The names of the working folder's own folders. Any other word stays a word.
    """
    if _SLASH.match(message.lstrip()) or not folders:
        return message
    text = message
    blank = _QUOTED.sub(lambda quoted: "x" * len(quoted[0]), message)
    idioms = [match.span() for match in phrases("idioms").finditer(blank.lower())]
    for match in reversed(list(_PLACED.finditer(blank))):
        name, start = match["name"], match.start("name")
        is_word = any(name.lower() in word_list(words) for words in ("stop", "general", "times", "numbers"))
        if name in folders and not is_word and not any(low <= start < high for low, high in idioms):
            text = f"{text[: match.end()]}{BARE_FOLDER}{text[match.end() :]}"
    return text


def clauses(message: str) -> list[str]:
    """Return the parts of `message` between sentence ends and the words and, then, also; quotations stay whole."""
    blank = _QUOTED.sub(lambda match: "x" * len(match[0]), message)
    ends = [0, *(at for match in _JOINT.finditer(blank) for at in match.span()), len(message)]
    parts = (message[start:end].strip() for start, end in zip(ends[::2], ends[1::2], strict=True))
    return [part for part in parts if part]


def _spans(message: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, argument) of every argument in `message`; none overlaps another."""
    quoted = [(m.start(), m.end(), next(group for group in m.groups() if group)) for m in _QUOTED.finditer(message)]
    yield from quoted
    blank = message
    for start, end, _ in quoted:
        blank = f"{blank[:start]}{' ' * (end - start)}{blank[end:]}"
    used_spans: list[tuple[int, int]] = []
    for match in _TOKEN.finditer(blank):
        token = _strip(match[0])
        if is_path(token):
            start = match.start() + match[0].index(token)
            used_spans.append((start, start + len(token)))
            yield start, start + len(token), token
    for start, end, name in _folders(blank):
        if all(end <= low or high <= start for low, high in used_spans):
            yield start, end, name


def _folders(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the names in "the docs folder", "this folder" (the working one) and "the folder docs"."""
    function_words = (
        word_list("stop") | word_list("prepositions") | word_list("negations") | word_list("no_folders", "paths")
    )
    for match in _FOLDER.finditer(text):
        before, after = match["before"], match["after"]
        if before.lower() in {"current", "this", "working"}:
            yield *match.span("before"), "."
        elif before.lower() not in function_words:
            yield *match.span("before"), before
        elif after and after.lower() not in function_words and (match["next"] or "a").lower() in function_words:
            yield *match.span("after"), after


def _strip(token: str) -> str:
    """Return `token` without the punctuation and the possessive of the sentence around it."""
    if token in {".", ".."}:
        return token
    token = token.lstrip("([{<'\"").rstrip(".,:;!?)]}>'\"…")
    return re.sub(r"['’]s$", "", token)


def is_path(token: str) -> bool:
    """Whether `token` looks like a path, a URL or the name of a file."""
    if token.startswith(("http://", "https://")) or token in word_list("files", "paths") or token in {".", ".."}:
        return True
    if token.lower() in word_list("phrases", "paths") or "@" in token:
        return False
    if "/" in token or "\\" in token:
        return re.search(r"[A-Za-z]", token) is not None or token.strip("/\\") in {".", ".."}
    stem, _, extension = token.rpartition(".")
    return bool(_DOTFILE.fullmatch(token) or (_FILE.fullmatch(token) and len(stem) + len(extension) > 2))
