"""Show one turn while it runs: a heading, each event, the answer, and a summary."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import ExitStack, aclosing
from typing import TYPE_CHECKING, Any

from bough.cli import describe
from bough.cli.render import Renderer
from bough.cli.render.base import SCHEMA_VERSION
from bough.cli.text import Line, Style, line
from bough.cli.turns import confirm
from bough.cli.turns.always import Always
from bough.cli.turns.ending import NextSteps, explain_ending
from bough.errors import BoughError, ConnectError, ModelError, SandboxUnavailable
from bough.events.record import StoredEvent
from bough.types import JsonObject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bough.conversation import AsyncConversation, Update
    from bough.conversation.check import RunCheck


class WatchedRun:
    """Runs a conversation until it has answered, and shows the run.

    Args:
        command: The name of the command, for the JSON output.
        stream: Whether to write the answer while it arrives, instead of at its end.
        always: The calls that are approved for the rest of the session.
        check: Exit with 1 unless the run has finished normally.
        until: Continue until this check passes.
    """

    def __init__(
        self,
        conversation: AsyncConversation,
        renderer: Renderer,
        *,
        command: str,
        json: bool,
        stream: bool,
        always: Always | None = None,
        check: bool = False,
        until: RunCheck | None = None,
    ) -> None:
        self._conversation = conversation
        self._renderer = renderer
        self._command = command
        self._json = json
        self._always = always or Always()
        self._check = check
        self._until = until
        self._stream = stream
        self._streamed = ""
        self._asked_at: int | None = None
        self._tokens = 0
        self._arguments: dict[str, JsonObject] = {}
        self._steps = 0
        self._last_failure = ""
        self._can_run = True
        self._asks = not json and confirm.can_ask()
        self._stopped: JsonObject = {}
        self._warnings: list[str] = []
        self._spinner = ExitStack()

    async def heading(self) -> None:
        """Show the conversation, its agent, its model, and the executor with its isolation on this machine."""
        self._can_run = works = await self._conversation.executor.healthy()
        self._renderer.note(heading_line(self._conversation, works=works))

    def warn_all(self, texts: Iterable[str]) -> None:
        """Show warnings, and keep them for the JSON result."""
        for text in texts:
            self._warnings.append(text)
            self._renderer.note(line(("warning: ", "warn"), text, hang=9))

    async def run(self, *, timeout_seconds: float | None = None, show_from: int | None = None) -> int:
        """Run to the end and return the exit code.

        Args:
            timeout_seconds: Maximum wall time of the run, not counting the time in which a person answers. After it,
                the run is interrupted and can be resumed.
            show_from: The seq of the first recorded event to show, usually the message that was just sent.
        """
        seconds = 0.0
        stopping = _Termination()
        try:
            with self._spinner:
                await self._show_recorded(show_from)
            while True:
                started = time.monotonic()
                with self._spinner:
                    async with asyncio.timeout(None if timeout_seconds is None else timeout_seconds - seconds):
                        with stopping:
                            await self._watch()
                seconds += time.monotonic() - started
                if not await self._ask_for_approvals():
                    return self._report_finished(seconds)
        except TimeoutError:
            return self._report_failure(_make_timeout_error(timeout_seconds, self._conversation.short_id))
        except BoughError as error:
            return self._report_failure(error)
        except asyncio.CancelledError:
            self._report_interruption()
            if stopping.is_requested:
                raise SystemExit(128 + signal.SIGTERM) from None
            raise

    async def _ask_for_approvals(self) -> bool:
        """Ask about waiting calls. Returns whether the run continues."""
        if not self._asks or self._conversation.status != "waiting_for_confirmation":
            return False
        self._end_streamed_line()
        self._streamed = ""
        return await confirm.ask(self._conversation, self._renderer, self._always)

    async def _show_recorded(self, start: int | None) -> None:
        if start is None:
            return
        async for stored in self._conversation.store.read(self._conversation.id, start):
            self._event(stored)

    async def _watch(self) -> None:
        until = self._until
        options: Any = {} if until is None else {"until": until.command, "check_timeout": until.timeout_seconds}
        updates = self._conversation.run_stream(**options)
        self._spin("thinking")
        async with aclosing(updates):
            async for update in updates:
                self._update(update)

    def _update(self, update: Update) -> None:
        if isinstance(update, StoredEvent):
            self._event(update)
        elif update.kind == "text" and self._stream:
            self._spinner.close()
            self._streamed += update.text
            self._renderer.text(update.text)

    def _event(self, stored: StoredEvent) -> None:
        event = stored.as_json()
        self._renderer.record({"type": "event", "event": event})
        if stored.kind == "UserMessage" and event["sender"] != "bough":
            self._asked_at = stored.seq
        if stored.kind == "ToolCalled":
            self._arguments[event["tool_call_id"]] = event["arguments"]
        if stored.kind in ("LimitReached", "StuckDetected"):
            self._stopped = event
        if (
            stored.kind == "ErrorRaised" and event["code"] == ConnectError.code
        ):  # an MCP server is missing; the run continues
            self.warn_all(["; ".join(filter(None, (event["message"], event.get("hint"))))])
        if stored.kind == "ModelResponded":
            self._steps += 1
            self._tokens += event["usage"]["input_tokens"] + event["usage"]["output_tokens"]
            if self._asked_at is None:  # the run continues an earlier message, as after a decision
                self._asked_at = stored.seq
            self._end_response(event)
        for row in self._lines(event):
            self._renderer.note(row)
        if (activity := _find_activity(event)) is not None:
            self._spin(activity)

    def _lines(self, event: JsonObject) -> list[Line]:
        """Return the lines that an event gets while the run goes on; most events get none."""
        match event["kind"]:
            case "SkillActivated":
                return [describe.skill_line(event)]
            case "SkillSkipped":
                return [describe.render_skip(event)]
            case "ScriptRan":
                self._last_failure = event.get("error") or "" if event["status"] == "error" else ""
                return [describe.script_line(event)]
            case "RequestRetried":
                return [describe.retry_line(event)]
            case "CheckRan":
                return [describe.check_line(event)]
            case "ModelResponded" if (thought := describe.thinking_line(event)) is not None:
                return [thought]
            case "ToolReturned" if event["tool"] not in _SHOWN_BY_OTHER_EVENTS:
                return [describe.tool_line(event, self._arguments.get(event["tool_call_id"]))]
            case "ToolFailed" | "ToolRejected" | "ToolInterrupted":
                return [describe.tool_line(event, self._arguments.get(event["tool_call_id"]))]
            case _:
                return []

    def _spin(self, activity: str) -> None:
        self._spinner.close()
        self._spinner.enter_context(self._renderer.busy(activity))

    def _end_response(self, event: JsonObject) -> None:
        """Forget the streamed text of a response that calls tools, because it was not the answer."""
        if any(part.get("part_kind") == "tool-call" for part in event["response"].get("parts", [])):
            self._end_streamed_line()
            self._streamed = ""

    def _end_streamed_line(self) -> None:
        if self._streamed and not self._streamed.endswith("\n"):
            self._renderer.text("\n")

    def _report_finished(self, seconds: float) -> int:
        self._end_streamed_line()
        result = self._conversation.result
        output = "" if result is None else result.output
        if output and self._streamed != output:
            self._renderer.text(output.rstrip("\n") + "\n")
        error = self._why_ended()
        self._record(output, error=error)
        self._renderer.note(self._summary(seconds))
        if error is None:
            return int(self._is_bad())
        if not self._json:
            self._renderer.error(error)
        return error.exit_code

    def _is_bad(self) -> bool:
        """Whether the exit code says that something is wrong, though nothing kept the run from its end."""
        result, status = self._conversation.result, self._conversation.status
        reason = "" if result is None else result.reason
        if status in ("error", "stuck") or reason == "script_failed":
            return True
        return self._check and (reason not in ("", "check_passed") or status != "finished")

    def _why_ended(self) -> BoughError | None:
        """Return the error of a run that stopped early; None if it is complete."""
        conversation = self._conversation
        if conversation.status == "waiting_for_confirmation":
            return confirm.make_unanswered_error(conversation)
        next_steps = NextSteps.by_commands(conversation.short_id, self._fork_at)
        return explain_ending(conversation, self._stopped, next_steps) or self._no_sandbox()

    def _summary(self, seconds: float) -> Line:
        usage = self._conversation.usage
        parts = [
            f"{seconds:.1f} s",
            f"{self._steps} step{'s' * (self._steps != 1)}",
            f"{self._tokens} tokens",
        ]
        if usage.cache_read_tokens:
            parts.append(f"{usage.cached_share:.0%} of the input cached")
        if usage.cost_usd:
            parts.append(f"{usage.cost_usd:.4f} USD")
        fork = f"/fork {self._fork_at}" if self._command == "chat" else f'bough fork {self._again} "…"'
        status = self._conversation.status
        style: Style = "good" if status == "finished" else "warn"
        return line(
            (f"{_ENDS.get(status, status)} ", style), (" · ".join([*parts, f"{fork} to try again"]), "dim"), hang=2
        )

    @property
    def _again(self) -> str:
        """Where to fork to try again: before the message or, after a decision, before the first response."""
        return f"{self._conversation.short_id}@{self._fork_at}"

    @property
    def _fork_at(self) -> int:
        return self._conversation.state.head if self._asked_at is None else self._asked_at

    def _no_sandbox(self) -> SandboxUnavailable | None:
        """Return the error of a run that needed a script where no sandbox works; None otherwise."""
        if self._can_run or not self._last_failure:
            return None
        return SandboxUnavailable(self._last_failure, hint="run `bough doctor`")

    def _report_failure(self, error: BoughError) -> int:
        if (
            isinstance(error, ModelError) and "bough resume" not in error.hint
        ):  # hints of the library do not mention commands
            error.hint = "; ".join(
                filter(None, (error.hint, f"`bough resume {self._conversation.short_id}` continues"))
            )
        self._end_streamed_line()
        if self._json:
            self._record("", error=error)
        else:
            self._renderer.error(error)
        return error.exit_code

    def _report_interruption(self) -> None:
        self._spinner.close()
        self._end_streamed_line()
        error = BoughError(
            "interrupted", hint=f"`bough resume {self._conversation.short_id}` continues", code="interrupted"
        )
        self._report_failure(error)

    def _record(self, output: str, *, error: BoughError | None = None) -> None:
        conversation, state = self._conversation, self._conversation.state
        ended = conversation.result
        result: JsonObject = {
            "type": "result",
            "schema_version": SCHEMA_VERSION,
            "command": self._command,
            "conversation": str(conversation.id),
            "status": conversation.status,
            "output": output,
            "data": None if ended is None else state.data,
            "finish_reason": None if ended is None else ended.finish_reason,
            "partial": ended is not None and ended.partial,
            "reason": "" if ended is None else ended.reason,
            "steps": self._steps,
            "usage": conversation.usage.model_dump(),
            "limit": state.limit,
            "waiting": state.waiting,
            "warnings": self._warnings,
            "next": [f"bough fork {self._again}"],
        }
        self._renderer.record(result if error is None else result | {"error": {"hint": "", **error.as_dict()}})


class _Termination:
    """Cancels the block's task on SIGTERM, as Ctrl+C does. Otherwise the log would show the run as running for ever.

    Attributes:
        is_requested: Whether SIGTERM arrived.
    """

    def __init__(self) -> None:
        self.is_requested = False

    def __enter__(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._request, asyncio.current_task())

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)

    def _request(self, task: asyncio.Task[Any] | None) -> None:
        self.is_requested = True
        if task is not None:
            task.cancel()


_ENDS = {"finished": "done", "waiting_for_confirmation": "waiting for your yes"}
_SHOWN_BY_OTHER_EVENTS = frozenset({"load_skill", "run_skill_script", "list_skills", "search_skills"})


def _find_activity(event: JsonObject) -> str | None:
    """Return the spinner's text after an event; None if the event does not change it."""
    match event["kind"]:
        case "ToolCalled":
            return f"running {event['arguments'].get('script_path') or event['tool']}"
        case "ToolReturned" | "ToolFailed" | "ToolRejected" | "ToolInterrupted":
            return "thinking"
        case _:
            return None


def _make_timeout_error(seconds: float | None, name: str) -> BoughError:
    return BoughError(f"timed out after {seconds} s", hint=f"`bough resume {name}` continues", code="timeout")


def heading_line(conversation: AsyncConversation, *, works: bool) -> Line:
    """Return the heading of a run: conversation, agent, model, executor with its isolation.

    Args:
        works: Whether the executor works on this machine.
    """
    isolation = conversation.executor.isolation.name.lower() if works else "not working, see bough doctor"
    return line(
        "conv ",
        (conversation.short_id, "id"),
        f"  agent {conversation.agent.name}  model {conversation.agent.model_name}",
        f"  executor {_plain_name(conversation.executor.name)} ",
        (f"({isolation})", "" if works else "bad"),
        hang=2,
    )


def _plain_name(executor: str) -> str:
    return {"local-sandbox": "sandbox", "unsafe-local": "unsafe"}.get(executor, executor)


def describe_start(model_was_named: bool, model: str | None) -> Line | None:
    """Return a note if no model key is set, so the offline planner is used; else None."""
    if model_was_named or model != "offline":
        return None
    from bough.agents.models.resolve import resolve_model

    reason = resolve_model(None, env=os.environ).reason
    return line((f"{reason}: using the offline planner (see bough doctor)", "dim"), hang=2)


def shows_stream(no_stream: bool) -> bool:
    """Whether the answer is shown while it arrives."""
    return not no_stream and sys.stdout.isatty()
