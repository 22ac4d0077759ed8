"""What a loaded skill says: its scripts, the one that fits a prompt, the section that fits it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from pathlib import PurePosixPath

from bough.agents.models.planner.prompt import BARE_FOLDER, Prompt
from bough.agents.models.planner.rank import RankedSkill, best_of
from bough.agents.models.planner.words import content_words, read_kind
from bough.types import Json

_SCRIPT = re.compile(r"(?<![\w/.-])(?:\./)?(scripts/[\w./-]*\w)")
_LISTING = re.compile(r"<(\w*resources\w*)\b[^>]*>.*?</\1>", re.DOTALL)
_MARKUP = re.compile(r"^\s*</?\w*skill\w*\b[^>]*>\s*$", re.MULTILINE)
_FILE = re.compile(r"<file>([^<]+)</file>")
_SHOW = re.compile(r"\b(?:show|read|see|open|display|print|say|says)\b", re.IGNORECASE)
_WANTED = re.compile(r"^.*\bask the user for these inputs\b.*:\n((?:- .+\n?)+)", re.MULTILINE)
_OPTION = re.compile(r"`--([a-z][\w-]*)([^`\n]*)`")
_HEADING = re.compile(r"^(?=#{1,6} )", re.MULTILINE)
_RUNNABLE = frozenset({"", ".py", ".sh", ".bash", ".js", ".mjs"})


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A skill as its tool returned it.

    Attributes:
        text: Its instructions.
        scripts: What it can run: those the instructions name, else all there are.
        required_inputs: Inputs it asks the user for, one a line; empty when it has what it needs.
        files: Everything it lists that is not a script.
        options: The long options it documents, and whether each takes a value.
    """

    text: str
    scripts: tuple[str, ...]
    required_inputs: str = ""
    files: tuple[str, ...] = ()
    options: Mapping[str, bool] = field(default_factory=dict[str, bool])


def read_skill(result: Json) -> Loaded:
    """Return what `load_skill` answered, or the text of an activated skill, in one shape."""
    whole = "\n".join(_strings(result))
    text = _LISTING.sub("", whole)
    named, there = _scripts(text), _scripts(whole)
    listed = "\n".join(found[0] for found in _LISTING.finditer(whole))
    listing = _scripts(listed)
    scripts = [script for script in named if not listing or script in listing] or there
    match = _WANTED.search(text)
    files = (unescape(name) for name in _FILE.findall(listed))
    return Loaded(
        text=_MARKUP.sub("", text).strip(),
        scripts=tuple(scripts),
        required_inputs=match[1] if match else "",
        files=tuple(file for file in files if file not in listing),
        options={name: bool(value.strip()) for name, value in _OPTION.findall(text)},
    )


def pick_file(loaded: Loaded, message: str) -> str:
    """Return the listed file that the message asks to see, by its whole path; empty when it asks for none."""
    if not _SHOW.search(message):
        return ""
    candidates = (file for file in loaded.files if re.search(rf"(?<![\w/.-]){re.escape(file)}(?![\w/-])", message))
    return max(candidates, key=len, default="")


def pick_script(loaded: Loaded, prompt: Prompt) -> str:
    """Return the script whose path and surrounding text are nearest to `prompt`; the first named one on a tie."""
    words = (*prompt.words, *prompt.kinds)
    return best_of(
        [RankedSkill(name=script, text=read_around(loaded.text, script)) for script in loaded.scripts], words
    ).name


def find_surplus(loaded: Loaded, script: str, args: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments that the script does not take, as its text says: `script FILE`, `script [FOLDER]`.

    A folder that was written as a bare word is for scripts that take a `PATH`: another word may have been meant.
    """
    usage = re.search(rf"{re.escape(script)}((?: \[?[A-Z_]+(?:\.\.\.)?\]?)+)`", loaded.text)
    places = [] if usage is None else re.findall(r"[A-Z_]+", usage[1])
    if "PATH" not in places and (folders := tuple(arg for arg in args if arg.endswith(BARE_FOLDER))):
        return folders
    if usage is None:
        return ()
    if all(place in {"DIR", "DIRECTORY", "FOLDER", "REPOSITORY"} for place in places):
        args_of_files = tuple(arg for arg in args if read_kind(arg))
        if args_of_files:
            return args_of_files
    return () if "..." in usage[1] else tuple(args[len(places) :])


def pick_section(loaded: Loaded, prompt: Prompt, *, skill: str) -> str:
    """Return the section of the instructions that is nearest to `prompt` apart from the skill's own name."""
    words = [word for word in prompt.words if word not in content_words(skill)]
    sections = [part.strip() for part in _HEADING.split(loaded.text) if part.strip()]
    entries = [RankedSkill(name=section.splitlines()[0], text=section) for section in sections]
    return best_of(entries, words).text if entries else ""


def _strings(result: Json) -> Iterator[str]:
    match result:
        case str():
            yield result
        case dict():
            for value in result.values():  # pyright: ignore[reportUnknownVariableType]
                yield from _strings(value)
        case list():
            for value in result:  # pyright: ignore[reportUnknownVariableType]
                yield from _strings(value)
        case _:
            return


def _scripts(text: str) -> list[str]:
    scripts = dict.fromkeys(match[1] for match in _SCRIPT.finditer(text))
    return [script for script in scripts if PurePosixPath(script).suffix in _RUNNABLE]


def read_around(text: str, script: str) -> str:
    """Return the paragraphs of `text` that name `script`, each with the one before it."""
    paragraphs = re.split(r"\n\s*\n|^(?=#{1,6} |[-*] )", text, flags=re.MULTILINE)
    at = [i for i, paragraph in enumerate(paragraphs) if script in paragraph]
    return "\n".join(paragraph for i in at for paragraph in paragraphs[max(0, i - 1) : i + 1])
