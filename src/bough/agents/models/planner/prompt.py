"""What a user's message says: its content words, the arguments in it, and the command it may start with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


STOP_WORDS = _words(
    """
    a about actually after again all already also although always am an and another any anyone anything are aren as
    at be because been before being between bigger both but by can cannot could currently did do does doesn doing
    don done down each either else even ever every everyone everything exactly for from further get gets getting go
    going got had has have having he hello help hence her here hers hey hi him his how however i if in into is isn
    it its itself just kindly let lets like ll longer made mainly maybe me might mine more most much must my near
    need needs never no nor not nothing now of off often oh ok okay on once one only onto or other our out over own
    per perhaps please probably quick quickly rather re really same several shall she shorter should simply since so
    some someone something still such sure t than thank thanks that the their them then there these they thing
    things this those though through to together too try under until up upon us various ve very via want wants was
    we well were what whatever whats when where whether which while who whom whose why will with within without won
    would yes yet you your yours
    """
)
"""Words that say nothing about what is wanted."""

WEAK_WORDS = _words(
    """
    amount analyse analysis analyze ask basic bit build calculate call called change check common compute contain
    contained containing contains content contents count create current data day days describe detail details
    different directories directory do doc docs document documents during easy eight end evening example examples
    explain extract figure file filename files find first five folder folders four full general generate give good
    great handle happen happened happening help hold hour hours important include includes including info
    information input inside instance item items keep kind know last latest length list load look looking looks lot
    main make makes making many mean means minute minutes month months morning name named names new next nine number
    numbers old open output overview part parts people place point print process produce program project provide
    question read recent recently report return review right run running say says see set seven short show simple
    six size small start state stuff summaries summarise summarize summary take tell ten test text three time times
    today tomorrow tonight tool tools topic total two type understand use used user uses using value view way week
    weeks whole work working works world write writing wrong year years yesterday
    """
)
"""Words so general that, alone, they fit no skill: "check my email" is not a request to check links."""

ACTIONS = _words(
    """
    add append compress convert copy correct crop delete deploy download draw drop edit email encrypt erase fix format
    insert install mail merge move plot post publish push refactor remove rename replace resize rewrite send sort split
    translate transpose uninstall update upload zip
    """
)
"""Words that ask for something to be changed or sent. A skill that does not speak of it must not be run for it."""

_ROOT_FILES = _words(
    "README LICENSE LICENCE CHANGELOG Makefile Dockerfile AUTHORS NOTICE CONTRIBUTING COPYING INSTALL VERSION"
)
_NOT_PATHS = _words("and/or either/or he/she his/her n/a w/o yes/no on/off true/false tcp/ip he/him she/her")
_HERE = _words("current this working")
_NOT_FOLDERS = _words("whole full main new old entire single root called named folder directory")
_QUOTED = re.compile(r"(?<![\w])(?:\"([^\"\n]+)\"|“([^”\n]+)”|`([^`\n]+)`|'([^'\n]+)'|‘([^’\n]+)’)(?!\w)")
_TOKEN = re.compile(r"https?://\S+|[^\s,;]+")
_FILE = re.compile(r"[^\s/\\]*[\w)\]]\.[A-Za-z][A-Za-z0-9]{0,9}")
_DOTFILE = re.compile(r"\.[A-Za-z][\w-]*(\.[\w-]+)*")
_FOLDER = re.compile(
    r"\b(?P<before>[\w-]+)\s+(?:folder|directory)\b(?:\s+(?P<after>[\w-]+)(?=[^\w\s]|\s+(?P<next>\w+)|\s*$))?",
    re.IGNORECASE,
)
_JOINT = re.compile(r"[;.!?,]?(?:(?<=[;.!?])\s|\s(?:(?:and|then|also)\s)+)", re.IGNORECASE)
_SLASH = re.compile(r"/([A-Za-z0-9][\w-]*)(?=\s|$)")
_PAIR = re.compile(r"(?<![\w-])[A-Za-z_][\w-]*=\S*")
_WORD = re.compile(r"[^\W_]+")
_SPELLING = re.compile(r"(?<=\w\w\w)([iy])s(?=(?:e|ed|es|er|ers|ing|ation|ations)\b)")
_KINDS = {"md": "markdown", "yml": "yaml", "py": "python", "js": "javascript"}


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
        args: Quoted strings, paths, URLs and file names, in order, as they were written.
        kinds: File types the arguments name, for example `csv`.
    """

    words: tuple[str, ...]
    args: tuple[str, ...]
    kinds: tuple[str, ...]

    @property
    def strong(self) -> tuple[str, ...]:
        """The content words that say what is wanted, not merely that something is."""
        return tuple(word for word in self.words if not is_weak(word))

    @property
    def echoed(self) -> tuple[str, ...]:
        """The words within its arguments: "the meeting notes notes/meeting.md" asks for no skill about meetings."""
        return content_words(" ".join(self.args))


def is_weak(word: str) -> bool:
    """Whether `word` is too general, alone, to point at a skill."""
    return word in _WEAK or word.isdigit()


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


def read_prompt(message: str) -> Prompt:
    """Return the content words, arguments and file types of `message`."""
    found = sorted(_spans(message))
    rest = message
    for start, end, _ in reversed(found):
        rest = f"{rest[:start]} {rest[end:]}"
    args = tuple(dict.fromkeys(text for _, _, text in found))
    rest = _PAIR.sub(" ", rest)  # a value of an input, `issue=42`, asks for nothing itself
    return Prompt(words=content_words(rest), args=args, kinds=tuple(dict.fromkeys(_kinds(args))))


def clauses(message: str) -> list[str]:
    """Return the parts of `message` between sentence ends and the words and, then, also; quotations stay whole."""
    blank = _QUOTED.sub(lambda found: "x" * len(found[0]), message)
    ends = [0, *(at for found in _JOINT.finditer(blank) for at in found.span()), len(message)]
    parts = (message[start:end].strip() for start, end in zip(ends[::2], ends[1::2], strict=True))
    return [part for part in parts if part]


def content_words(text: str) -> tuple[str, ...]:
    """Return the words of `text` that are not stop words: lower case, one spelling, each once, in order."""
    words = _WORD.findall(normalise(text))
    return tuple(dict.fromkeys(word for word in words if word not in STOP_WORDS and len(word) > 1))


def normalise(text: str) -> str:
    """Return `text` in lower case with British `-ise` and `-yse` spelt as `-ize` and `-yze`."""
    return _SPELLING.sub(r"\1z", text.casefold())


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
    for match in _FOLDER.finditer(text):
        before, after = match["before"], match["after"]
        if before.lower() in _HERE:
            yield *match.span("before"), "."
        elif before.lower() not in STOP_WORDS | _NOT_FOLDERS:
            yield *match.span("before"), before
        elif after and after.lower() not in STOP_WORDS | _NOT_FOLDERS and (match["next"] or "a").lower() in STOP_WORDS:
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


def _kinds(args: tuple[str, ...]) -> Iterator[str]:
    for arg in args:
        last = re.split(r"[/\\]", arg)[-1]
        stem, _, extension = last.rpartition(".")
        if stem and re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,9}", extension):
            yield _KINDS.get(extension.lower(), extension.lower())


_WEAK = frozenset(normalise(word) for word in WEAK_WORDS)
