"""Entry point of the command line. It turns every error into a message and a documented exit code."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from bough.errors import OUTCOMES, BoughError, InvalidInput
from bough.extras import missing_package

if TYPE_CHECKING:
    from bough.cli.render import Renderer, Report

BROKEN_PIPE = 141
"""Exit code if the reader of stdout closes it, as in shells: 128 + SIGPIPE."""

_GC_THRESHOLD = 100_000
"""Number of new objects before a garbage collection. High, because imports create many objects that never die."""


_COMPLETION_OPTIONS = (["--show-completion"], ["--install-completion"])


def main() -> None:
    """Run the command line of this process and exit."""
    gc.set_threshold(_GC_THRESHOLD, 20, 20)
    try:
        # Before any file is opened, because the file would get the number of a closed stream and receive its output.
        _fill_in_streams()
        sys.stdout = _open_output(sys.stdout)
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # raised before `run` could handle it
        code = OUTCOMES["interrupted"].exit_code
    gc.freeze()  # no collection at exit, because the end of the process frees all memory
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run a command and return its exit code, one of `bough.errors.OUTCOMES`."""
    try:
        if list(argv) in (["--version"], ["-V"], ["version"]):  # answered without importing Typer
            from bough import __version__

            print(f"bough {__version__}")
            code = 0
        else:
            code = _run(argv)
        sys.stdout.flush()  # here, because the interpreter would report a failure at exit with a traceback
    except BrokenPipeError:
        _discard_output()
        return BROKEN_PIPE
    except OSError as error:
        return _report_lost_output(error)
    if failure := _find_output_failure():  # which may have been handled as a failure of the command
        return _report_lost_output(failure)
    return code


def _run(argv: Sequence[str]) -> int:
    """Run a command and show its result or its error.

    Raises:
        OSError: stdout cannot be written.
    """
    from bough.cli.render import renderer_for
    from bough.cli.usage import arrange, name_command

    argv = arrange(argv)
    # Arguments after `exec` belong to a script.
    script_start = argv.index("exec") if "exec" in argv else len(argv)
    argv = [*map(_strip_dash, argv[:script_start]), *argv[script_start:]]
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")  # PydanticAI would print a banner to stderr
    # Replace characters that the terminal's encoding lacks, instead of raising UnicodeEncodeError.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    renderer = renderer_for(json=_wants_json(argv), command=name_command(argv) or "bough")
    try:
        _require_working_folder()
        _log_to(os.environ.get("BOUGH_LOG_JSON", ""))
        return _invoke(argv, renderer)
    except BoughError as error:
        renderer.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return OUTCOMES["interrupted"].exit_code
    except Exception as error:  # every error is reported as one of bough
        if isinstance(error, BrokenPipeError) or error is _find_output_failure():
            raise
        wrapped = _wrap_unexpected(error)
        renderer.error(wrapped)
        return wrapped.exit_code


class _Output(io.FileIO):
    """stdout, with the error of the first write that failed."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "wb", closefd=False)
        self.failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write bytes; return their number."""
        try:
            return super().write(data) or 0
        except OSError as error:
            self.failure = self.failure or error
            raise


def _open_output(stdout: Any) -> TextIO:
    """Return a stream with the settings of `stdout`, from which `_find_output_failure` learns what was lost."""
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(stdout.fileno())),
        encoding=stdout.encoding,
        errors=stdout.errors,
        line_buffering=stdout.line_buffering,
        write_through=stdout.write_through,
    )


def _find_output_failure() -> OSError | None:
    """Return the error of a write to stdout, other than one to a pipe that was closed; None if there was none."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    failure = raw.failure if isinstance(raw, _Output) else None
    return None if isinstance(failure, BrokenPipeError) else failure


def _report_lost_output(error: OSError) -> int:
    print(f"error: cannot write to stdout: {error.strerror}", file=sys.stderr)
    _discard_output()
    return OUTCOMES["internal"].exit_code


def _discard_output() -> None:
    """Discard what stdout holds. At exit, the interpreter would flush it again, and print a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _require_working_folder() -> None:
    """Raise InvalidInput if the working folder was removed: every command looks there for settings and skills."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise InvalidInput("the working folder no longer exists", hint="change to another folder: `cd`") from None


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
        outcome: Any = _answer_without_command(argv)
        if outcome is None:
            outcome = build(argv)(list(argv), prog_name="bough", standalone_mode=False)
    except typer.TyperException as error:
        from bough.cli.usage import explain

        raise explain(error, argv) from error
    except typer.Abort:
        return OUTCOMES["interrupted"].exit_code
    if isinstance(outcome, Report):
        renderer.report(outcome)
        return outcome.exit_code
    return outcome if isinstance(outcome, int) else 0


def _answer_without_command(argv: Sequence[str]) -> Report | None:
    """Return the answer to arguments that begin with no command; None if Typer answers.

    Raises:
        InvalidInput: The first word is not a command.
    """
    from bough.cli.usage import explain_unknown_command, name_command

    words = [word for word in argv if word != "--json"]
    if name_command(words) or "_BOUGH_COMPLETE" in os.environ or words[:1] in _COMPLETION_OPTIONS:
        return None
    from bough.cli.help import list_commands, report_version, show_first_screen
    from bough.cli.options import load_settings

    if words[:1] in (["--help"], ["-h"], ["--version"], ["-V"]):
        return list_commands() if words[0] in ("--help", "-h") else report_version()
    options = dict(zip(words[::2], words[1::2], strict=False))
    if options.keys() <= {"--home", "--store"} and len(words) % 2 == 0:
        return show_first_screen(load_settings(options.get("--home"), options.get("--store")))
    raise explain_unknown_command(words)


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
