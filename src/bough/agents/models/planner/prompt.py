"""What a user's message says: its arguments, its words, and all that must be accounted for before a script runs."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_ROOT_FILES = frozenset(
    "README LICENSE LICENCE CHANGELOG Makefile Dockerfile AUTHORS NOTICE CONTRIBUTING COPYING INSTALL VERSION".split()
)
_NOT_PATHS = frozenset("and/or either/or he/she his/her n/a w/o yes/no on/off true/false tcp/ip he/him she/her".split())
_HERE = frozenset({"current", "this", "working"})
_NOT_FOLDERS = frozenset("whole full main new old entire single root called named folder directory".split())
_QUOTED = re.compile(r"(?<![\w])(?:\"([^\"\n]+)\"|“([^”\n]+)”|`([^`\n]+)`|'([^'\n]+)'|‘([^’\n]+)’)(?!\w)")
_TOKEN = re.compile(r"https?://\S+|[^\s,;]+")
_FILE = re.compile(r"[^\s/\\]*[\w)\]*]\.[A-Za-z][A-Za-z0-9]{0,9}")
_DOTFILE = re.compile(r"\.[A-Za-z][\w-]*(\.[\w-]+)*")
_FOLDER = re.compile(
    r"\b(?P<before>[\w-]+)\s+(?:folder|directory)\b(?:\s+(?P<after>[\w-]+)(?=[^\w\s]|\s+(?P<next>\w+)|\s*$))?",
    re.IGNORECASE,
)
_JOINT = re.compile(r"[;.!?,]?(?:(?<=[;.!?])\s|\s(?:(?:and|then|also)\s)+)", re.IGNORECASE)
_SLASH = re.compile(r"/([A-Za-z0-9][\w-]*)(?=\s|$)")
_PAIR = re.compile(r"(?<![\w-])[A-Za-z_][\w-]*=\S*")
_FIRST_MARK = 0xF0000
_MARK = "[\U000f0000-\U0010ffff]"
_MAX_ARGS = 10_000
_WORD = re.compile(r"[^\W_]+")
_PIECE = re.compile(rf"{_MARK}|[^\W_]+|[^\w\s]")
_SPELLING = re.compile(r"(?<=\w\w\w)([iy])s(?=(?:e|ed|es|er|ers|ing|ation|ations)\b)")
_NOT = re.compile(r"\b(do|does|did|is|are|was|were|ca|wo|should|could|would|must|need|has|have|had|ai|sha)n['’]?t\b|\bcan(?:not|['’]t)\b")
_PUNCTUATION = frozenset("&.,;:!?()'\"…-–—/’‘“”`[]\\")
_EXCLUSION = re.compile(
    rf"\b(?:and |but )?(?:(?:do )?(?:not|never)(?: (?:touch|include|use|read|open))?|except(?: for)?|excluding|exclude|ignoring|ignore"
    rf"|without|skip|skipping|leaving out|leave out)\s+{_MARK}(?:[\s,;&]*(?:\b(?:and|or)\b)?[\s,;&]*{_MARK})*"
    rf"|\bleave\s+{_MARK}\s+(?:alone|out)\b"
)
_COMPARISON = re.compile(
    r"^\W*(?:is|are|does|do|has|have|did)\b.*?(\b(?:(?:more|fewer|less|longer|shorter) than|at least|at most|exactly|over|under)"
    r" [\d,.]*\d)(?= \w)"
)
_UNIT = r"(?:hour|day|week|month|year)s?"
_NUMBER = r"(?:\d+|one|two|three|four|five|six|seven|eight|nine|ten|twelve)"
_TIME = (
    rf"(?:{_NUMBER} {_UNIT} ago|last {_UNIT}|yesterday|today|(?:last )?(?:mon|tues|wednes|thurs|fri|satur|sun)day"
    r"|\d{4}-\d\d-\d\d)"
)
_PERIOD = re.compile(rf"\b(?:(?:in|over|during|from|of|for) )?(?:the )?(?:last|past) (?:({_NUMBER}) )?({_UNIT})\b")
_TOP = re.compile(rf"\b({_NUMBER}) (?=most )")


@dataclass(frozen=True, kw_only=True)
class PromptCommand:
    """A message that starts with `/name`; `error` says why its arguments could not be read."""

    name: str
    args: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something in a message that must be accounted for before a script runs.

    Attributes:
        text: The words of the message.
        query: What a skill must match to account for it, in the language of FTS5; empty if no skill can.
        kind: `word` and `value` (a number, a time, a quotation) may still be accounted for by an option of the script; `not` (a negation), `role` (a
            verb, a target, a type of file) and `phrase` may not. `pair` is a `name=value`.
    """

    text: str
    query: str
    kind: str = "word"


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


@cache
def _read_data() -> Mapping[str, Any]:
    return tomllib.loads(files(__package__).joinpath("words.toml").read_text(encoding="utf-8"))


@cache
def word_list(name: str, table: str = "") -> frozenset[str]:
    """Return a list of `words.toml`."""
    data = _read_data()[table] if table else _read_data()
    return frozenset(data.get(name, "").split())


@cache
def _compile(name: str) -> re.Pattern[str]:
    return re.compile("|".join(_read_data()[name]))


def read_command(message: str) -> PromptCommand | None:
    """Return the `/name args` that `message` starts with, its arguments split as a shell would; None without one."""
    found = _SLASH.match(message.lstrip())
    if found is None:
        return None
    rest = message.lstrip()[found.end() :]
    try:
        return PromptCommand(name=found[1], args=tuple(shlex.split(rest)))
    except ValueError as error:
        return PromptCommand(name=found[1], error=str(error).lower())


def read_prompt(message: str, documented: Mapping[str, bool] | None = None) -> Prompt:
    """Return what `message` says.

    Args:
        documented: The long options of the script, and whether each takes a value: `{"top": True}`.
    """
    rest = re.sub(_MARK, " ", message)
    spans = sorted(_spans(rest))[:_MAX_ARGS]
    names = [name for _, _, name in spans]
    for i, (start, end, _) in reversed(list(enumerate(spans))):
        rest = f"{rest[:start]} {chr(_FIRST_MARK + i)} {rest[end:]}"
    pairs = [Need(text=pair, query="", kind="pair") for pair in _PAIR.findall(rest)]
    rest = _take_exclusions(normalise(_PAIR.sub(" ", rest)), names)
    rest, options = _take_options(rest, names, documented or {})
    args = tuple(dict.fromkeys(_read_mark(mark, names) for mark in re.findall(_MARK, rest)))
    return Prompt(
        words=content_words(_compile("idioms").sub(" ", rest)),
        args=args,
        kinds=tuple(dict.fromkeys(filter(None, map(read_kind, args)))),
        needs=tuple(dict.fromkeys([*pairs, *_read_needs(rest, names)])),
        options=options,
    )


def clauses(message: str) -> list[str]:
    """Return the parts of `message` between sentence ends and the words and, then, also; quotations stay whole."""
    blank = _QUOTED.sub(lambda found: "x" * len(found[0]), message)
    ends = [0, *(at for found in _JOINT.finditer(blank) for at in found.span()), len(message)]
    parts = (message[start:end].strip() for start, end in zip(ends[::2], ends[1::2], strict=True))
    return [part for part in parts if part]


def content_words(text: str) -> tuple[str, ...]:
    """Return the words of `text` that are not stop words: lower case, one spelling, each once, in order."""
    words = _WORD.findall(normalise(text))
    return tuple(dict.fromkeys(word for word in words if word not in word_list("stop") and len(word) > 1))


def normalise(text: str) -> str:
    """Return `text` in lower case with one spelling of `-ise` and `-yse`, of `n't` and of `'s`."""
    text = _NOT.sub(lambda found: f"{found[1] or 'can'} not", text.casefold())
    text = re.sub(r"\b(what|who|that|it|there|how|where)['’]s\b", r"\1 is", text)
    return _SPELLING.sub(r"\1z", re.sub(r"['’](?:s|d|m|re|ll|ve)\b", "", text))


def _take_exclusions(text: str, names: Sequence[str]) -> str:
    """Take the arguments that are to be left out off `text`, where plain files remain: a folder may hold them."""
    excluded = {_read_mark(mark, names) for found in _EXCLUSION.finditer(text) for mark in re.findall(_MARK, found[0])}
    rest = re.sub(_MARK, lambda mark: "" if _read_mark(mark[0], names) in excluded else mark[0], _EXCLUSION.sub(" ", text))
    remaining = [_read_mark(mark, names) for mark in re.findall(_MARK, rest)]
    return rest if remaining and all(read_kind(name) and "*" not in name for name in remaining) else text


def _take_options(text: str, names: Sequence[str], documented: Mapping[str, bool]) -> tuple[str, tuple[str, ...]]:
    """Take the documented options that are asked for off `text`, in the words that people have for them."""
    options: list[str] = []

    def take(name: str, write: Callable[[re.Match[str]], str]) -> Callable[[re.Match[str]], str]:
        def replace(found: re.Match[str]) -> str:
            options.extend([f"--{name}", write(found)] if documented[name] else [f"--{name}"])
            return " "

        return replace

    for name, takes_value in documented.items():
        text = re.sub(rf"--{name}\b(?!-)", name if takes_value else take(name, str), text)
        if takes_value:
            value = rf"\b{name}(?: of)?[ =]+({_MARK}|{_TIME}\b|{_NUMBER}\b)"
            text = re.sub(value, take(name, lambda found: _read_value(found[1], names)), text)
    if documented.get("since"):
        text = _PERIOD.sub(take("since", lambda found: f"{_read_value(found[1] or '1', names)} {found[2]} ago"), text)
    if documented.get("top"):
        text = _TOP.sub(take("top", lambda found: _read_value(found[1], names)), text)
    return text, tuple(options)


def _read_mark(mark: str, names: Sequence[str]) -> str:
    return names[ord(mark) - _FIRST_MARK]


def _read_value(text: str, names: Sequence[str]) -> str:
    """Return the value of an option as its script takes it: an argument as it was written, a number in digits."""
    if re.fullmatch(_MARK, text):
        return _read_mark(text, names)
    first, _, rest = text.partition(" ")
    numbers = "zero one two three four five six seven eight nine ten eleven twelve".split()
    return f"{numbers.index(first) if first in numbers else first} {rest}".strip()


def _read_needs(text: str, names: Sequence[str]) -> Iterator[Need]:
    """Yield what must be accounted for in `text`, a normalised message with a mark for each argument."""
    if found := _COMPARISON.search(text):
        text = f"{text[: found.start(1)]} {text[found.end(1) :]}"
    yield from (Need(text=found[0].strip(), query="", kind="phrase") for found in _compile("refused").finditer(text))
    text = _compile("idioms").sub(" ", text)
    pieces = [piece for piece in _PIECE.findall(text) if piece not in _PUNCTUATION or piece in ".,;:!?"]
    starts = True
    for i, piece in enumerate(pieces):
        before, after = pieces[i - 1] if i else "", pieces[i + 1 : i + 9]
        if re.fullmatch(_MARK, piece):
            yield from _read_argument(_read_mark(piece, names), is_named=_is_named(before, after, names))
        elif piece not in _PUNCTUATION:
            yield from _read_word(piece, before, after, names, starts=starts)
        starts = piece in _PUNCTUATION or (starts and piece in word_list("lead")) or piece in {"and", "then"}


def _is_named(before: str, after: Sequence[str], names: Sequence[str]) -> bool:
    """Whether an argument that does not look like a file is one by its place: "the folder 'a b'", "words in 'my notes'"."""
    is_alone = len(names) == 1 and before in word_list("prepositions")
    return is_alone or not word_list("places").isdisjoint((before, *after[:1]))


def _read_argument(name: str, *, is_named: bool) -> Iterator[Need]:
    kind = read_kind(name)
    if name.startswith(("http://", "https://")):
        yield Need(text=name, query=_any(*word_list("url", "formats")), kind="role")
    elif not kind and not _is_path(name) and not is_named:
        yield Need(text=f"'{name}'", query="", kind="word" if re.search(r"\w", name) else "value")
    elif kind in word_list("names", "formats"):
        yield Need(text=name, query=f'formats : ("{kind}" OR "any")', kind="file")


def _read_word(word: str, before: str, after: Sequence[str], names: Sequence[str], *, starts: bool) -> Iterator[Need]:
    """Yield what `word` needs where it stands; nothing for a word that asks for nothing."""
    following = after[0] if after else ""
    is_free = word in word_list("stop") or word in word_list("general")
    argument = _read_mark(following, names) if re.fullmatch(_MARK, following) else ""
    text = f"{word} {argument or following}" if argument or following.isalnum() else word
    if word in word_list("negations"):
        yield Need(text=text, query=_any(f"{word} {following}") if word.isalpha() and following.isalpha() else "", kind="not")
    elif word.isdigit() or not word.isalnum() or word in word_list("numbers"):
        phrase = f"{word} {following}" if word.isalpha() and following.isalpha() else ""
        yield Need(text=phrase or word, query=_any(phrase) if phrase else "", kind="value")
    elif word in word_list("targets"):
        if argument or (following.isalpha() and (word != "to" or following not in word_list("stop") | word_list("general"))):
            said = _any(*(f"{target} {read_kind(argument) or following}" for target in word_list("targets")))
            yield Need(text=text, query=said if argument or word != "to" else f'verbs : "{following}" OR {said}', kind="role")
    elif word in word_list("produce"):
        head = _find_head(after)
        if head not in word_list("general") - word_list("places"):
            yield Need(text=text, query=f'verbs : ("{word}" OR "{head or word}")', kind="role")
    elif word in {"each", "every", "per"}:
        if (before in word_list("prepositions") or word == "per") and following not in word_list("places"):
            yield Need(text=text, query=_any(*(f"{each} {following}" for each in ("each", "every", "per"))), kind="role")
    elif starts and not is_free and (argument or following in word_list("determiners")):
        yield Need(text=word, query=f'verbs : "{word}"', kind="role")
    elif is_free and before in word_list("determiners") and following in {"column", "field", "section"}:
        yield Need(text=text, query="")
    elif not is_free and before not in word_list("targets") and not (argument and word in word_list("prepositions")):
        kind = "value" if word in word_list("times") else "word"
        yield Need(text=word, query=_any(word, *word_list(word, "synonyms")), kind=kind)


def _find_head(after: Sequence[str]) -> str:
    """Return the noun that a verb of making has: `digest` in "a git digest of the repository"."""
    head = ""
    for word in after:
        if not word.isalnum() or word in word_list("prepositions"):
            break
        if word not in word_list("stop"):
            head = word
    return head


def _any(*phrases: str) -> str:
    return " OR ".join(f'"{phrase}"' for phrase in phrases)


def _spans(message: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, argument) of every argument in `message`; none overlaps another."""
    quoted = [(m.start(), m.end(), next(group for group in m.groups() if group)) for m in _QUOTED.finditer(message)]
    yield from quoted
    blank = message
    for start, end, _ in quoted:
        blank = f"{blank[:start]}{' ' * (end - start)}{blank[end:]}"
    taken: list[tuple[int, int]] = []
    for match in _TOKEN.finditer(blank):
        token = _strip(match[0])
        if _is_path(token):
            start = match.start() + match[0].index(token)
            taken.append((start, start + len(token)))
            yield start, start + len(token), token
    for start, end, name in _folders(blank):
        if all(end <= low or high <= start for low, high in taken):
            yield start, end, name


def _folders(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the names in "the docs folder", "this folder" (the working one) and "the folder docs"."""
    function_words = word_list("stop") | word_list("prepositions") | word_list("negations") | _NOT_FOLDERS
    for match in _FOLDER.finditer(text):
        before, after = match["before"], match["after"]
        if before.lower() in _HERE:
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


def _is_path(token: str) -> bool:
    if token.startswith(("http://", "https://")) or token in _ROOT_FILES or token in {".", ".."}:
        return True
    if token.lower() in _NOT_PATHS or "@" in token:
        return False
    if "/" in token or "\\" in token:
        return re.search(r"[A-Za-z]", token) is not None or token.strip("/\\") in {".", ".."}
    stem, _, extension = token.rpartition(".")
    return bool(_DOTFILE.fullmatch(token) or (_FILE.fullmatch(token) and len(stem) + len(extension) > 2))


def read_kind(name: str) -> str:
    """Return the type of a file by its ending, as skills call it; empty without one."""
    stem, _, extension = re.split(r"[/\\]", name)[-1].rpartition(".")
    if not stem or not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,9}", extension):
        return ""
    return str(_read_data()["kinds"].get(extension.lower(), extension.lower()))
