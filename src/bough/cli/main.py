"""Entry point of the command line. Every error becomes a message and a documented exit code here."""

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
"""Exit code when the reader of stdout has closed it, as in shells: 128 + SIGPIPE."""

_ALLOCATIONS = 100_000
"""Objects that are created before the first garbage collection. Imports create many that live until the end."""


def main() -> None:
    """Run the command line of this process and exit."""
    gc.set_threshold(_ALLOCATIONS, 20, 20)
    try:
        # Before anything opens a file: it would get the number of a closed stream, and output would be written into it.
        _fill_in_streams()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # raised before `run` could handle it
        code = OUTCOMES["interrupted"].exit_code
    gc.freeze()  # the end of the process frees everything; collecting it first would only take time
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run a command and return its exit code, one of `bough.errors.OUTCOMES`."""
    if list(argv) in (["--version"], ["-V"]):  # answered without importing Typer
        from bough import __version__

        print(f"bough {__version__}")
        return 0
    own = list(argv).index("exec") if "exec" in argv else len(argv)  # arguments after it belong to a script
    argv = [*map(_strip_dash, argv[:own]), *argv[own:]]
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")  # PydanticAI would print one to stderr
    # An answer may contain characters that the terminal's encoding lacks; they are replaced instead of raising.
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
        # The interpreter flushes stdout once more at exit, which would fail again and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the boundary: an error of bough itself
        fault = _wrap_unexpected(error)
        renderer.error(fault)
        return fault.exit_code


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
    """Open `/dev/null` in place of standard streams that the process was started without."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _invoke(argv: Sequence[str], renderer: Renderer) -> int:
    import typer

    from bough.cli.app import build
    from bough.cli.render import Report

    try:
        outcome: Any = build(argv)(list(argv), prog_name="bough", standalone_mode=False)
    except typer.TyperException as error:
        raise _usage(error) from error
    except typer.Abort:
        return OUTCOMES["interrupted"].exit_code
    if isinstance(outcome, Report):
        renderer.report(outcome)
        return outcome.exit_code
    return outcome if isinstance(outcome, int) else 0


def _usage(error: Any) -> InvalidInput:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "bough"
    return InvalidInput(str(error.format_message()), hint=f"`{command} --help` shows how")


def _wrap_unexpected(error: Exception) -> BoughError:
    if os.environ.get("BOUGH_DEBUG"):
        raise error
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return InvalidInput("the name of a file or folder is too long", hint="give a shorter one")
    if isinstance(error, ImportError) and (unavailable := missing_package(error)):
        return unavailable
    return BoughError(
        f"internal error: {type(error).__name__}: {error}",
        hint="BOUGH_DEBUG=1 shows the traceback; please report it",
    )


def _strip_dash(word: str) -> str:
    """Return `-@5` as `@5`, which means the same and is not parsed as an option."""
    return word[1:] if word.startswith("-@") else word


def _wants_json(argv: Sequence[str]) -> bool:
    # Read before the arguments are parsed: a usage error is printed as JSON, too.
    options = argv[: list(argv).index("--")] if "--" in argv else argv
    return "--json" in options


if __name__ == "__main__":
    main()
