"""What a person typed: options in front of the command, other words for commands, and mistakes with their remedies."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from bough.cli.app import NOUNS, VERBS
from bough.errors import InvalidInput

_FLAGS = frozenset({"--json"})
_WITH_VALUE = ("--home", "--store")
_SAME_COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("ls", "list", "log", "history", "conversations"), "conv list"),
    "branch": "fork",
    "checkout": "fork",
    "ask": "run",
    "prompt": "run",
    "continue": "resume",
    "rm": "conv delete",
    "new": "init",
}
"""The command for each word that people type for it. Verbs of `conv` without `conv` are found without this table."""
_SAME_VERBS: Mapping[str, tuple[str, ...]] = {
    "ls": ("list",),
    **dict.fromkeys(("rm", "delete", "remove", "uninstall"), ("delete", "remove", "revoke", "cancel")),
    **dict.fromkeys(("cat", "view", "get", "info"), ("show",)),
    **dict.fromkeys(("log", "logs", "history"), ("logs", "show")),
    **dict.fromkeys(("install", "create"), ("add", "new", "create")),
}
"""The verbs for each word that people type for them; the first that the noun has is meant."""
_PROMPT_WORDS = 2
"""From this number of words on, words that begin with no command are taken for a prompt without `run`."""


def arrange(argv: Sequence[str]) -> list[str]:
    """Return the arguments with common options behind the command; `help` and `version` become options.

    `--json conv show ID` becomes `conv show --json ID`, `help conv show` becomes `conv show --help`.
    """
    start = 0
    while start < len(argv) and (width := _measure_common_option(argv[start])):
        start += width
    common, arguments = argv[:start], argv[start:]
    if arguments[:1] == ["version"]:
        return [*common, "--version"]
    if arguments[:1] == ["help"]:
        return [*arguments[1:], "--help"]
    words = len(name_command(arguments).split())
    if words == 1 and arguments[0] in NOUNS and arguments[1:] and not arguments[1].startswith("-"):
        words = 2  # a verb that does not exist: an option between the two would make `list` of it
    return [*arguments[:words], *common, *arguments[words:]]


def _measure_common_option(word: str) -> int:
    """Return the number of words of a common option, 0 for any other word."""
    if word in _FLAGS or word.startswith(tuple(f"{name}=" for name in _WITH_VALUE)):
        return 1
    return 2 if word in _WITH_VALUE else 0


def name_command(argv: Sequence[str]) -> str:
    """Return the command that the arguments begin with, such as `conv show`; empty if they begin with none."""
    first, second = [*argv[:2], "", ""][:2]
    if first in NOUNS:
        return f"{first} {second}" if second in NOUNS[first][1] else first
    return first if first in VERBS else ""


def explain_unknown_command(argv: Sequence[str]) -> InvalidInput:
    """Return the error for arguments that begin with no command."""
    word, *arguments = argv
    if word.startswith("-"):
        near = get_close_matches(word, ["--help", "--version", "--json", "--home", "--store"], 1)
        return InvalidInput(f"no option {word}", hint=_suggest([near[0]] if near else [], "bough --help"))
    verbs_of_conv = NOUNS["conv"][1]
    same = _SAME_COMMANDS.get(word) or (f"conv {word}" if word in verbs_of_conv else None)
    near = get_close_matches(word, [*VERBS, *NOUNS], 1)
    plain_words = [part for part in argv if not part.startswith("-")]
    if any(char.isspace() for char in word) or (not (same or near) and len(plain_words) >= _PROMPT_WORDS):
        hint = f"to run a prompt: {_join('run', ' '.join(plain_words))}"
    else:
        command = same or next(iter(near), None)
        hint = _suggest([] if command is None else [_join(*command.split(), *arguments)], "bough --help")
    return InvalidInput(f"no command {word!r}", hint=hint)


def explain(error: Any, argv: Sequence[str]) -> InvalidInput:
    """Return what to show for an error of the parser: what is wrong, and the command that may have been meant."""
    context = getattr(error, "ctx", None)
    command = " ".join(["bough", *name_command(argv).split()]) if context is None else str(context.command_path)
    help_hint = f"see `{command} --help`"
    message = str(error.format_message())
    if (option := getattr(error, "option_name", None)) is not None and hasattr(error, "possibilities"):
        near = [] if context is None else get_close_matches(option, sorted(_list_options(context.command)), 1)
        return InvalidInput(f"{command} has no option {option}", hint=_suggest(near, f"{command} --help"))
    if match := re.match(r"No such command '(.*?)'\.", message, re.DOTALL):
        return _explain_unknown_verb(match[1], argv)
    if match := re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message, re.DOTALL):
        return _explain_extra_words(match[1], context, command)
    if match := re.match(r"Missing (?:argument|option|parameter) '?(.*?)'?\.", message):
        return InvalidInput(f"missing {match[1].strip('{}[]')}", hint=help_hint)
    if match := re.fullmatch(r"Invalid value for (.*?): (.*)", message, re.DOTALL):
        name = match[1].split(" / ")[0].strip("'{}[]")
        return InvalidInput(f"invalid {name}: {_describe_value_error(match[2])}", hint=help_hint)
    return InvalidInput(f"{message[:1].lower()}{message[1:]}".rstrip("."), hint=help_hint)


def _describe_value_error(message: str) -> str:
    """Return what is wrong with a value, without the parser's words for types."""
    if match := re.fullmatch(r"(.*) is not in the range (?:(\d+)<=)?x(?:>=(\d+))?(?:<=(\d+))?\.", message):
        value, start, minimum, maximum = match.groups()
        expected = f"{start or 0} to {maximum}" if maximum else f"{minimum or start} or more"
        return f"{value}, expected {expected}"
    if match := re.fullmatch(r"(.*) is not a valid (?:int|integer|float)(?: range)?\.", message):
        return f"{match[1]}, expected a number"
    return message.rstrip(".")


def _explain_unknown_verb(word: str, argv: Sequence[str]) -> InvalidInput:
    noun = argv[0]
    verbs = NOUNS[noun][1]
    same = [verb for verb in _SAME_VERBS.get(word, ()) if verb in verbs][:1] or get_close_matches(word, list(verbs), 1)
    arguments = [part for part in argv[2:] if part not in _FLAGS]
    if not same and "show" in verbs and (noun != "conv" or re.fullmatch("[0-9a-f-]+", word)):  # `bough conv 011a`
        same, arguments = ["show"], [word, *arguments]
    meant = [_join(noun, verb, *arguments) for verb in same]
    return InvalidInput(f"{noun} has no command {word!r}", hint=_suggest(meant, f"bough {noun} --help"))


def _explain_extra_words(extra: str, context: Any, command: str) -> InvalidInput:
    """Return the error for words after the last argument: most often, a prompt without quotes."""
    hint = f"see `{command} --help`"
    values: dict[str, Any] = {} if context is None else context.params
    prompt = values.get("prompt")
    if isinstance(prompt, str):
        words = [str(values["id"])] if values.get("id") else []
        hint = f"quote the prompt: {_join(*command.split()[1:], *words, f'{prompt} {extra}')}"
    return InvalidInput(f"unexpected: {extra}", hint=hint)


def _list_options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from (name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("-"))
    yield "--help"


def _suggest(meant: Sequence[str], help_command: str) -> str:
    return f"did you mean `{meant[0]}`?" if meant else f"see `{help_command}`"


def _join(*words: str) -> str:
    """Return a command line that a shell reads as these words; double quotes where they suffice."""
    quoted = (
        f'"{word}"' if " " in word and not re.search(r'["$`\\!\n]', word) else shlex.quote(word) for word in words
    )
    return " ".join(["bough", *quoted])
