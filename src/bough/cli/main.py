"""Entry point of the command line. It turns every error into a message and a documented exit code."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bough.errors import OUTCOMES, BoughError, InvalidInput
from bough.extras import missing_package

if TYPE_CHECKING:
    from bough.cli.render import Renderer

BROKEN_PIPE = 141
"""Exit code if the reader of stdout closes it, as in shells: 128 + SIGPIPE."""

_GC_THRESHOLD = 100_000
"""Number of new objects before a garbage collection. High, because imports create many objects that never die."""


def main() -> None:
    """Run the command line of this process and exit."""
    gc.set_threshold(_GC_THRESHOLD, 20, 20)
    try:
        # Before any file is opened, because the file would get the number of a closed stream and receive its output.
        _fill_in_streams()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # raised before `run` could handle it
        code = OUTCOMES["interrupted"].exit_code
    gc.freeze()  # no collection at exit, because the end of the process frees all memory
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run a command and return its exit code, one of `bough.errors.OUTCOMES`."""
    if list(argv) in (["--version"], ["-V"]):  # answered without importing Typer
        from bough import __version__

        print(f"bough {__version__}")
        return 0
    # Arguments after `exec` belong to a script.
    script_start = list(argv).index("exec") if "exec" in argv else len(argv)
    argv = [*map(_strip_dash, argv[:script_start]), *argv[script_start:]]
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")  # PydanticAI would print a banner to stderr
    # Replace characters that the terminal's encoding lacks, instead of raising UnicodeEncodeError.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    from bough.cli.render import renderer_for

    renderer = renderer_for(json=_wants_json(argv))
    try:
        _log_to(os.environ.get("BOUGH_LOG_JSON", ""))
        return _invoke(argv, renderer)
    except BoughError as error:
        renderer.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return OUTCOMES["interrupted"].exit_code
    except BrokenPipeError:
        # At exit, the interpreter flushes stdout again. To a broken pipe, this would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - unexpected errors are reported as errors of bough
        wrapped = _wrap_unexpected(error)
        renderer.error(wrapped)
        return wrapped.exit_code


def _log_to(file: str) -> None:
    """Append bough's log records to a file as JSON; do nothing if `file` is empty.

    Raises:
        InvalidInput: The file cannot be written.
    """
    if not file:
        return
    from pathlib import Path

    from bough.log import json_to_file

    try:
        json_to_file(Path(file))
    except OSError as error:
        hint = "set BOUGH_LOG_JSON to a file that can be written, or unset it"
        raise InvalidInput(f"the log {file} cannot be written: {error.strerror}", hint=hint) from error


def _fill_in_streams() -> None:
    """Open `/dev/null` for each standard stream that is missing at the start of the process."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDWR)
            if fd != number:
                os.dup2(fd, number)
                os.close(fd)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _invoke(argv: Sequence[str], renderer: Renderer) -> int:
    """Run a command, show its report, and return its exit code."""
    import typer

    from bough.cli.app import build
    from bough.cli.render import Report

    try:
        outcome: Any = build(argv)(list(argv), prog_name="bough", standalone_mode=False)
    except typer.TyperException as error:
        raise _make_usage_error(error) from error
    except typer.Abort:
        return OUTCOMES["interrupted"].exit_code
    if isinstance(outcome, Report):
        renderer.report(outcome)
        return outcome.exit_code
    return outcome if isinstance(outcome, int) else 0


def _make_usage_error(error: Any) -> InvalidInput:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "bough"
    return InvalidInput(str(error.format_message()), hint=f"`{command} --help` shows how")


def _wrap_unexpected(error: Exception) -> BoughError:
    """Return the error to show for an unexpected exception; with BOUGH_DEBUG, raise the exception."""
    if os.environ.get("BOUGH_DEBUG"):
        raise error
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return InvalidInput("the name of a file or folder is too long", hint="give a shorter one")
    if isinstance(error, ImportError):
        unavailable = missing_package(error)
        if unavailable:
            return unavailable
    return BoughError(
        f"internal error: {type(error).__name__}: {error}",
        hint="BOUGH_DEBUG=1 shows the traceback; please report it",
    )


def _strip_dash(word: str) -> str:
    """Return `-@5` as `@5`, which means the same and is not parsed as an option."""
    return word[1:] if word.startswith("-@") else word


def _wants_json(argv: Sequence[str]) -> bool:
    # Read before the arguments are parsed, because a usage error is printed as JSON too.
    options = argv[: list(argv).index("--")] if "--" in argv else argv
    return "--json" in options


if __name__ == "__main__":
    main()
