"""Asks a tool what became of a call whose process died: `Tool(pay, metadata={"reconcile": find_payment})`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from bough.conversation.log.state import ToolCall
from bough.conversation.log.tool_result import encode_with_files
from bough.effects import LostCall
from bough.errors import BoughError, public_message
from bough.events.model import Event, ToolInterrupted, ToolReturned
from bough.portal import threads

SECONDS = 60.0
"""How long a reconcile function may take."""

Reconcile = Callable[[LostCall], Any]
"""Returns the result of the call if its effect happened, or None if the tool has to run. May be asynchronous."""

RUN_ENDED = "the run ended"


def find_reconcilers(agent: AbstractAgent[Any, Any]) -> dict[str, Reconcile]:
    """Return the reconcile functions of an agent's tools, by name of the tool."""
    reconcilers: dict[str, Reconcile] = {}

    def visit(toolset: AbstractToolset[Any]) -> None:
        if isinstance(toolset, FunctionToolset):
            for name, tool in toolset.tools.items():
                if callable(function := (tool.metadata or {}).get("reconcile")):
                    reconcilers[name] = function

    for toolset in agent.toolsets:
        toolset.apply(visit)
    return reconcilers


async def close_lost_call(call: ToolCall, effect_key: str, reconcile: Reconcile | None) -> Event | None:
    """Return the outcome of a call that had started when its run died, or None if the tool has to run again.

    Without a reconcile function, or if it raises, takes too long or returns something that is not JSON, the effects of
    the call are unknown.
    """
    reason = RUN_ENDED
    if reconcile is not None:
        lost_call = LostCall(id=call.id, tool=call.tool, arguments=call.parsed_arguments, effect_key=effect_key)
        try:
            async with asyncio.timeout(SECONDS):
                value = await _ask(reconcile, lost_call)
            if value is None:
                return None
            result, files = encode_with_files(value)
            return ToolReturned(tool_call_id=call.id, tool=call.tool, result=result, files=files, by="reconcile")
        except TimeoutError:
            reason = f"{RUN_ENDED}, and its reconcile function took more than {SECONDS:g} s"
        except BoughError as error:
            reason = f"{RUN_ENDED}, and its reconcile function failed: {public_message(error)}"
        except Exception as error:  # noqa: BLE001 - the tool boundary: recorded and shown to the model
            reason = f"{RUN_ENDED}, and its reconcile function failed: {type(error).__name__}: {error}"
    return ToolInterrupted(tool_call_id=call.id, tool=call.tool, reason=reason[:1000])


async def _ask(reconcile: Reconcile, lost_call: LostCall) -> Any:
    if inspect.iscoroutinefunction(reconcile):
        return await reconcile(lost_call)
    # A daemon thread: a function that blocks for ever must not keep the program alive.
    value = await asyncio.get_running_loop().run_in_executor(threads(), reconcile, lost_call)
    return await value if inspect.isawaitable(value) else value
