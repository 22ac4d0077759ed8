"""The tool for Python code: an interpreter that stays for a conversation, as a notebook has one."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest

from bough.agents.workspace.tools import show_last_value
from bough.execution import LocalSandboxCodeExecutor
from bough.testing import tool_call

pytestmark = pytest.mark.anyio


async def results(conversation: Any) -> list[Any]:
    return [stored.event.result async for stored in conversation.events if stored.kind == "ToolReturned"]


@pytest.mark.needs("bubblewrap")
async def test_variables_live_on_and_their_loss_is_told(scripted: Any, start: Any) -> None:
    steps = (
        tool_call("python", code="import math\nx = [math.pi]\nopen('made', 'w').write('by python')"),
        tool_call("python", code="x"),
        tool_call("run_command", command="cat made"),
        tool_call("python", code="import os\nos._exit(3)"),
        tool_call("python", code="'x' in globals()"),
    )
    executor = LocalSandboxCodeExecutor()
    spec = scripted(*steps, "done", workspace_access="run")
    async with await start(spec, executor=executor) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        wrote, shown, read, left, after = await results(conversation)
        assert wrote == {"exit_code": 0, "stdout": "9\n", "stderr": ""}
        assert shown["stdout"] == "[3.141592653589793]\n"
        assert read["stdout"] == "by python"
        assert (left["exit_code"], left["state_lost"]) == (3, "variables of earlier calls are gone: crashed")
        assert (after["stdout"], after["state_lost"]) == ("False\n", "variables of earlier calls are gone: crashed")
    await executor.aclose()


@pytest.mark.needs("landlock")
async def test_where_no_interpreter_is_kept_each_call_begins_anew(
    scripted: Any, start: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    executor = LocalSandboxCodeExecutor()
    spec = scripted(tool_call("python", code="x = 1"), tool_call("python", code="x"), "done", workspace_access="run")
    async with await start(spec, executor=executor) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        _, second = await results(conversation)
        assert second["exit_code"] == 1
        assert "line 1" in second["stderr"]
        assert second["stderr"].endswith("NameError: name 'x' is not defined\n")
    await executor.aclose()


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("1 + 1", "2\n"),
        ("x = 3; x", "3\n"),
        ("x = 5\r\nx\r\n", "5\n"),
        ("'äö' + '''a\nb'''  # why", "'äöa\\nb'\n"),
        ("a = 1, 2\n*a, 3", "(1, 2, 3)\n"),
        ("(y := 4)", "4\n"),
        ("print(1)", "1\n"),
        ("for n in range(2):\n    n", ""),
        ("x = 1", ""),
        ("", ""),
    ],
)
def test_the_last_expression_is_shown(code: str, printed: str) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(show_last_value(code), "code", "exec"), {})
    assert out.getvalue() == printed


def test_what_is_no_python_here_is_left_to_who_runs_it() -> None:
    assert show_last_value("x = = 1") == "x = = 1"
