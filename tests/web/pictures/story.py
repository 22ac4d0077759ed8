"""What the pictures of the page show: a shop's repository, whose totals are wrong, and an agent that corrects them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolReturnPart, UserPromptPart
from pydantic_ai.usage import RequestUsage
from tests.web.screens import Stories
from tests.web.site import Site

from bough.testing import Asked, tool_call

PROFILE = "Profile `sales.csv`: what is in it, and is anything wrong with it?"
FIX = "The totals count refunds twice. Correct that in `totals.py`, and check it."
LOADER = "The totals count refunds twice. Correct that in the loader, so that every report profits."
CLEAN = "Remove the staging tables of last year, and tell me what became free."
PORT = "Port the settings module to the new format."
WEEKLY = "Write the weekly report."

_SALES = """order,region,amount
1041,north,120.00
1042,south,75.50
1043,north,-120.00
1044,west,19.90
"""
_TOTALS = """import csv


def total(path):
    rows = list(csv.DictReader(open(path)))
    amounts = [float(row["amount"]) for row in rows]
    refunds = [amount for amount in amounts if amount < 0]
    return sum(amounts) + sum(refunds)


if __name__ == "__main__":
    print(f"{total('sales.csv'):.2f}")
"""
_LOADER = """import csv


def load(path):
    return [float(row["amount"]) for row in csv.DictReader(open(path))]
"""
_REPORT = """The file is **complete**: four orders in three regions, no value is missing.

| column | type | values |
|---|---|---:|
| `order` | number | 4 |
| `region` | text | 3 |
| `amount` | number | 4 |

One thing is wrong: `totals.py` prints **-24.60**, but the amounts add up to **95.40**. Order 1043 is a refund, and
`total()` subtracts it twice."""
_STEPS: Mapping[str, Sequence[Any]] = {
    PROFILE: [
        tool_call("write_file", path="sales.csv", content=_SALES),
        tool_call("write_file", path="totals.py", content=_TOTALS),
        tool_call("run_command", command="wc -l sales.csv && python3 totals.py"),
        _REPORT,
    ],
    FIX: [
        tool_call(
            "edit_file",
            path="totals.py",
            old="    refunds = [amount for amount in amounts if amount < 0]\n    return sum(amounts) + sum(refunds)",
            new="    return sum(amounts)",
        ),
        tool_call("run_command", command="python3 -m pytest -q test_totals.py"),
        tool_call("run_command", command="python3 totals.py"),
        "Refunds count once now: the total is **95.40**. There is no test of it yet; shall I write one?",
    ],
    LOADER: [
        tool_call("read_file", path="totals.py"),
        tool_call(
            "write_file",
            path="load.py",
            content=_LOADER,
        ),
        tool_call(
            "edit_file",
            path="totals.py",
            old='    rows = list(csv.DictReader(open(path)))\n    amounts = [float(row["amount"]) for row in rows]',
            new="    amounts = load(path)",
        ),
        "The loader reads the amounts, and every report uses it. `total()` still has to drop its own refunds.",
    ],
    CLEAN: [
        tool_call("run_command", command="rm -r staging/2024 && du -sh staging"),
        "The staging tables of last year are gone.",
    ],
    PORT: [tool_call("read_file", path="settings.toml"), RuntimeError("the model's server closed the connection")],
    WEEKLY: ["Sales are up **4 %** on last week; the north grew most."],
}
_TOKENS = (2_140, 3_870, 5_220, 6_480)


def follow_story(asked: Asked) -> Any:
    """Return the next step of the last message's part of the story, with the usage of a real model."""
    last, done = "", 0
    for message in asked.messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart) and str(part.content) in _STEPS:
                last, done = str(part.content), 0
            elif isinstance(part, ToolReturnPart) or part.part_kind == "retry-prompt":
                done += 1
    step = _STEPS[last][min(done, len(_STEPS[last]) - 1)]
    if isinstance(step, Exception):
        raise step
    usage = RequestUsage(input_tokens=_TOKENS[min(done, 3)], output_tokens=180 + 90 * done, cache_read_tokens=1_800)
    part, reason = (TextPart(step), "stop") if isinstance(step, str) else (step, "tool_call")
    return ModelResponse(
        [part], usage=usage, model_name="claude-sonnet-4-5", provider_name="anthropic", finish_reason=reason
    )


def tell_story(site: Site) -> Stories:
    """Make the conversations of the pictures."""
    for title in ("Weekly report 45", "Weekly report 46", "Weekly report 47"):
        site.start(WEEKLY, title=title, tags={"team": "retail"})
    failed = site.start(PORT, title="Port the settings module")
    done = site.start(PROFILE, title="Profile sales.csv", tags={"team": "retail"})
    head = site.client.get(f"/api/conversations/{done}").json()["head"]
    site.say(done, FIX)
    fork = site.fork(done, at=head, title="Correct it in the loader instead")
    site.say(fork, LOADER)
    copy = site.fork(done, title="And write the test")
    for decision, title in (("approve", "Clean up the drafts"), ("reject", "Clean up the exports")):
        decided = site.start_waiting(CLEAN, title=title)
        (ask,) = site.client.get(f"/api/approvals?conversation={decided}").json()["items"]
        site.client.post(f"/api/conversations/{decided}/approvals/{ask['tool_call_id']}", json={"decision": decision})
    waiting = site.start_waiting(CLEAN, title="Clean up staging")
    site.start_waiting(CLEAN, title="Clean up the archive")
    (ask,) = site.client.get(f"/api/approvals?conversation={waiting}").json()["items"]
    turns = site.client.get(f"/api/conversations/{done}/turns").json()["items"]
    return {
        "done": done, "fork": fork, "copy": copy, "waiting": waiting, "call": ask["tool_call_id"], "failed": failed,
        "message": str(turns[1]["start"]),
    }  # fmt: skip
