"""Hooks: programs and functions of the user that run at six points of a conversation and may refuse a call.

Source: the hooks of Claude Code and OpenHands, whose hook files bough reads.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, cast

from bough.errors import InvalidInput
from bough.guard.hook_command import HookExit, read_exit, run_command
from bough.guard.hook_verdict import HookAnswer, HookVerdict, answer_from_json, combine
from bough.guard.request import list_tool_names
from bough.types import Json, JsonObject, require_type

EVENT_OUTPUT = 4 << 10
"""The maximum length of a hook's output in its event, in characters."""


async def settle_nothing() -> None:
    """Do nothing: the `settle` of hooks outside of a conversation, whose input is in no log."""


class HookKind(Enum):
    """When a hook runs. PreToolUse, UserPromptSubmit and Stop hooks may refuse; the others are only notified."""

    PRE_TOOL_USE = "PreToolUse"
    POST_TOOL_USE = "PostToolUse"
    USER_PROMPT_SUBMIT = "UserPromptSubmit"
    SESSION_START = "SessionStart"
    SESSION_END = "SessionEnd"
    STOP = "Stop"


@dataclass(frozen=True, kw_only=True)
class HookInput:
    """The input of a hook.

    Attributes:
        arguments: The tool's arguments.
        response: The result of the tool, for PostToolUse.
        source: Why the conversation starts or ends (`startup`, `resume`, …).
    """

    kind: HookKind
    conversation_id: str
    workspace: Path
    tool: str | None = None
    tool_call_id: str | None = None
    arguments: JsonObject = field(default_factory=dict[str, Json])
    response: Json = None
    prompt: str | None = None
    source: str | None = None

    def payload(self) -> JsonObject:
        """Return the JSON that hooks read, with the field names of both formats."""
        payload: JsonObject = {
            "hook_event_name": self.kind.value,
            "event_type": self.kind.value,
            "session_id": self.conversation_id,
            "cwd": str(self.workspace),
            "working_dir": str(self.workspace),
        }
        if self.tool is not None:
            payload |= {"tool_name": self.tool, "tool_input": self.arguments, "tool_use_id": self.tool_call_id}
        if self.kind is HookKind.POST_TOOL_USE:
            payload["tool_response"] = self.response
        if self.prompt is not None:
            payload |= {"prompt": self.prompt, "message": self.prompt}
        return payload | ({"source": self.source} if self.source else {})


class Agreement(Protocol):
    """A person's trust in the files of a project's hooks, in the state in which the person saw them."""

    @property
    def guarded(self) -> tuple[Path, ...]:
        """Paths that scripts must not change while these hooks are in use."""
        ...

    def is_unchanged(self) -> bool:
        """Whether all files are unchanged since they were trusted. Reads them."""
        ...

    async def run(self, command: str, payload: JsonObject, *, workspace: Path, timeout_seconds: float) -> HookExit:
        """Run a command with the trusted programs and return how it ended."""
        ...


HookFunction: TypeAlias = Callable[[JsonObject], Any]
"""Takes the payload, and returns None, a `HookAnswer`, or the JSON object that a command would print. May be async."""


@dataclass(frozen=True, kw_only=True)
class Hook:
    """One hook: a command line or a function, and when it runs.

    Attributes:
        matcher: A tool's name, `*` or empty for all tools, or a regular expression that matches the whole name.
        on_failure: What happens to the call if a PreToolUse hook fails to answer, for example after a timeout.
        waits: Whether its answer has an effect. The answer of a hook declared `async` is only recorded.
        outside: Whether it has effects outside of this process, such as writing or sending. Its input is then made
            durable before it runs. Only a function without such effects may set it to False.
        source: The file that it was read from.
        agreement: For a hook of a project, the trusted files. The hook runs only while they are unchanged.

    Raises:
        InvalidInput: Not exactly one of `command` and `function` is given, the timeout is out of range, `outside` is
            False for a command, or the matcher is not a regular expression.
    """

    kind: HookKind
    command: str = ""
    function: HookFunction | None = None
    matcher: str = "*"
    timeout_seconds: float = 60.0
    on_failure: Literal["deny", "continue"] = "deny"
    waits: bool = True
    outside: bool = True
    source: str = ""
    agreement: Agreement | None = None

    def __post_init__(self) -> None:
        if bool(self.command.strip()) == (self.function is not None):
            raise InvalidInput(f"a {self.kind.value} hook needs either a command or a function")
        if self.function is None and not self.outside:
            raise InvalidInput(
                "outside=False is not allowed for a command hook", hint="a command always runs outside of this process"
            )
        if not 0 < self.timeout_seconds <= 3600:
            raise InvalidInput(
                f"the timeout of a hook cannot be {self.timeout_seconds!r} s", hint="give more than 0, at most 3600"
            )
        try:
            re.compile(self.matcher)
        except re.error as error:
            if self.matcher != "*":
                raise InvalidInput(
                    f"the matcher {self.matcher!r} of a hook is not a regular expression: {error}",
                    hint="give a tool's name, `*`, or an expression such as `Write|Edit`",
                ) from error

    def matches(self, hook_input: HookInput) -> bool:
        """Whether the hook runs for this input."""
        if hook_input.kind is not self.kind:
            return False
        subject = hook_input.tool if hook_input.tool is not None else hook_input.source
        if self.matcher in ("", "*") or subject is None:
            return True
        pattern = self.matcher.strip("/") if re.fullmatch(r"/.+/", self.matcher) else self.matcher
        return any(name == self.matcher or re.fullmatch(pattern, name) for name in list_tool_names(subject))

    async def ask(self, hook_input: HookInput) -> HookAnswer:
        """Run the hook and return its answer. Never raises: a failure is recorded in the answer."""
        # Checked before every run: an agent may change a program of the hook during the conversation.
        if self.agreement is not None and not await asyncio.to_thread(self.agreement.is_unchanged):
            answer = HookAnswer(failed=True, reason="its files have changed since they were trusted, so it did not run")
        elif self.function is None:
            answer = await self._run_command(hook_input)
        else:
            answer = await self._run_function(self.function, hook_input)
        # An `async` hook cannot deny a call, so its failure must not deny it either.
        if not self.waits:
            return replace(answer, decision="none", context="", error=answer.error or answer.failed, failed=False)
        if answer.failed and self.kind is HookKind.PRE_TOOL_USE and self.on_failure == "deny":
            return replace(answer, decision="deny", reason=f"a hook that must allow the call failed: {answer.reason}")
        return answer

    async def _run_command(self, hook_input: HookInput) -> HookAnswer:
        """Run the command, with the trusted programs for a hook of a project."""
        run = run_command if self.agreement is None else self.agreement.run
        hook_exit = await run(
            self.command, hook_input.payload(), workspace=hook_input.workspace, timeout_seconds=self.timeout_seconds
        )
        # As in Claude Code, the model gets plain output of these kinds only.
        plain = hook_input.kind in (HookKind.USER_PROMPT_SUBMIT, HookKind.SESSION_START)
        return read_exit(hook_exit, plain_is_context=plain)

    async def _run_function(self, function: HookFunction, hook_input: HookInput) -> HookAnswer:
        """Call the function; a timeout or an exception is a failed answer."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                returned = await _call_function(function, hook_input.payload())
        except TimeoutError:
            return HookAnswer(failed=True, reason=f"it timed out after {self.timeout_seconds:g} s")
        except Exception as error:  # noqa: BLE001 - a user's code; the failure is recorded and counts as no answer
            return HookAnswer(failed=True, reason=f"it raised {type(error).__name__}: {error}")
        if returned is None or isinstance(returned, HookAnswer):
            return returned or HookAnswer()
        return answer_from_json(returned)

    @property
    def label(self) -> str:
        """The command, or the name of the function."""
        return self.command if self.function is None else getattr(self.function, "__qualname__", repr(self.function))

    def to_json(self) -> JsonObject:
        """Return the hook as a log records it."""
        data: JsonObject = {"kind": self.kind.value, "matcher": self.matcher, "timeout": self.timeout_seconds}
        data |= {"command": self.command} if self.function is None else {"function": self.label}
        if self.on_failure == "continue":
            data["onFailure"] = "continue"
        return data | ({"source": self.source} if self.source else {})


async def _call_function(function: HookFunction, payload: JsonObject) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(payload)
    returned = await asyncio.to_thread(function, payload)  # the function may block
    return await returned if inspect.isawaitable(returned) else returned


@dataclass(frozen=True)
class HookSet:
    """Hooks in the order in which they run.

    Raises:
        InvalidInput: An element is not a `Hook`.

    Attributes:
        hooks: The hooks; a list is converted to a tuple.
        notes: Messages for people about ignored parts of hook files.
    """

    hooks: tuple[Hook, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for hook in self.hooks:
            require_type(hook, Hook, "hooks", "give Hook objects")
        object.__setattr__(self, "hooks", tuple(self.hooks))

    def narrow(self, other: HookSet) -> HookSet:
        """Return the union of both sets. Each additional hook can only refuse more."""
        return HookSet(
            tuple(dict.fromkeys(self.hooks + other.hooks)),
            tuple(dict.fromkeys(self.notes + other.notes)),
        )

    def find_missing(self, recorded: Json) -> list[JsonObject]:
        """Return the recorded hooks that this set lacks. The record may be None."""
        own_records = [hook.to_json() for hook in self.hooks]
        return [record for record in cast("list[JsonObject]", recorded or []) if record not in own_records]

    @property
    def guarded(self) -> tuple[Path, ...]:
        """Programs of a project's hooks that run outside the sandbox. Scripts must not change them."""
        agreements = dict.fromkeys(hook.agreement for hook in self.hooks if hook.agreement is not None)
        return tuple(path for agreement in agreements for path in agreement.guarded)

    def has_kind(self, kind: HookKind) -> bool:
        """Whether there is a hook of this kind."""
        return any(hook.kind is kind for hook in self.hooks)

    async def run(
        self, hook_input: HookInput, *, settle: Callable[[], Awaitable[None]] = settle_nothing
    ) -> HookVerdict:
        """Run the matching hooks one after the other until one denies, and return their combined answer.

        Args:
            settle: Awaited before a hook with effects outside of this process.
        """
        from bough.events.model import HookRan

        answers: list[HookAnswer] = []
        events: list[HookRan] = []
        for hook in self.hooks:
            if not hook.matches(hook_input):
                continue
            if hook.outside:
                await settle()  # otherwise a crash could lose a call that the hook has already seen
            started_at = time.monotonic()
            answer = await hook.ask(hook_input)
            answers.append(answer)
            events.append(
                HookRan(
                    hook=hook.kind.value,
                    command=hook.label[:EVENT_OUTPUT],
                    verdict=_name_verdict(answer),
                    output=_join_output(answer)[:EVENT_OUTPUT],
                    tool_call_id=hook_input.tool_call_id,
                    duration_seconds=round(time.monotonic() - started_at, 6),
                )
            )
            if answer.decision == "deny":
                break
        return combine(answers, tuple(events))

    def to_json(self) -> Json:
        """Return the hooks as a log records them."""
        return [hook.to_json() for hook in self.hooks]


def _join_output(answer: HookAnswer) -> str:
    """Return the reason and the output for the event, without repeating a reason that the output contains."""
    texts = [answer.output] if answer.reason in answer.output else [answer.reason, answer.output]
    return "\n".join(text for text in texts if text)


def _name_verdict(answer: HookAnswer) -> Any:
    """Return the verdict in the event: the decision, or `error` if the hook failed."""
    return "error" if answer.failed or answer.error else cast(str, answer.decision)
