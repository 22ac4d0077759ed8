"""The arguments of a script as a model passes them: a list, an object or a text; no shell is involved."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Literal, cast

from bough.errors import InvalidInput

MAX_ARGUMENTS = 1_000
MAX_BYTES = 128 << 10


class BadArguments(InvalidInput):
    """Arguments that cannot be passed to a script.

    Attributes:
        error_code: `INVALID_ARGS_TYPE` or `INVALID_INPUT_ARGS`.
    """

    error_code: Literal["INVALID_ARGS_TYPE", "INVALID_INPUT_ARGS"]

    def __init__(self, message: str, error_code: Literal["INVALID_ARGS_TYPE", "INVALID_INPUT_ARGS"]) -> None:
        super().__init__(message, hint='pass a list ["--name", "x"], an object {"name": "x"} or a text \'--name x\'')
        self.error_code = error_code


def build_argv(args: Any = None) -> tuple[str, ...]:
    """Return the argument vector: a list verbatim, an object as options, a text split like in a POSIX shell.

    `{"name": "x", "verbose": true, "tag": ["a", "b"], "_": ["in.txt"]}` becomes
    `--name x --verbose --tag a --tag b in.txt`; `false` and `null` are omitted.

    Raises:
        BadArguments: Wrong type, an unclosed quote, a nested value, or too many arguments.
    """
    match args:
        case None:
            words: list[str] = []
        case str():
            words = _split(args)
        case Mapping():
            words = _build_options(cast("Mapping[Any, Any]", args))
        case list() | tuple():
            words = [_convert(item) for item in cast("list[Any]", args)]
        case _:
            raise BadArguments(
                f"invalid `args` of type {type(args).__name__}: expected a list, an object or a text",
                "INVALID_ARGS_TYPE",
            )
    return _check_words(words)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise BadArguments(f"`args` cannot be split into words: {error}", "INVALID_INPUT_ARGS") from error


def _build_options(args: Mapping[Any, Any]) -> list[str]:
    words: list[str] = []
    for key, value in args.items():
        if key == "_":
            continue
        if not isinstance(key, str) or not key or any(char.isspace() or char in "=\0" for char in key):
            raise BadArguments(f"invalid option name {key!r}", "INVALID_INPUT_ARGS")
        flag = key if key.startswith("-") else f"--{key}"
        for item in _list_items(value):
            # Only `true` itself is a flag without a value: `1` is the value 1.
            words += [flag] if item is True else [flag, _convert(item)]
    return words + [_convert(item) for item in _list_items(args.get("_"))]


def _list_items(value: Any) -> list[Any]:
    items = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
    return [item for item in items if item is not None and item is not False]


def _convert(value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case _:
            raise BadArguments(
                f"invalid argument of type {type(value).__name__}: expected text or a number", "INVALID_INPUT_ARGS"
            )


def _check_words(words: list[str]) -> tuple[str, ...]:
    # The kernel ends an argument at NUL: the script would get less than was passed.
    if any("\0" in word for word in words):
        raise BadArguments("an argument contains a NUL byte", "INVALID_INPUT_ARGS")
    try:
        size = sum(len(word.encode()) for word in words)
    except UnicodeEncodeError as error:
        raise BadArguments("an argument is not valid Unicode", "INVALID_INPUT_ARGS") from error
    # Linux refuses to start a program with an argument of 128 KiB; here the error says what is wrong.
    if len(words) > MAX_ARGUMENTS or size > MAX_BYTES:
        raise BadArguments(f"more than {MAX_ARGUMENTS} arguments or {MAX_BYTES} bytes", "INVALID_INPUT_ARGS")
    return tuple(words)
