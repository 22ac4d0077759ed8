"""What `State.apply` gives for a log is a form that is kept: when it changes, `snapshot.FOLD` is raised.

`python tests/conversation/log/test_fold_golden.py` writes the file of the present fold.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from bough.conversation.log.kept_states import FOLD, dump_state
from bough.conversation.log.state import State
from bough.events.codec import decode, encode
from bough.events.model import Event, ForkedFrom, MessageStored, ModelResponded, StateChanged, ToolReturned, UserMessage
from bough.events.record import moment

GOLDEN = Path(__file__).parents[2] / "golden"
FILE = GOLDEN / "fold" / f"{FOLD}.json"
CALL = {"part_kind": "tool-call", "tool_name": "look", "tool_call_id": "c", "args": {"a": 1}}
TEXT = {"part_kind": "text", "content": "done"}


def log() -> list[Event]:
    """Return a turn, a fork, a turn that is not over, and then an event of each kind and version."""
    named: list[Event] = [
        UserMessage.text("first"),
        _response(CALL),
        ToolReturned(tool_call_id="c", tool="look", result=1),
        _response(TEXT),
        StateChanged(changes={"status": "finished", "title": "t", "tags": {"a": "b"}}),
        ForkedFrom(source=UUID(int=1), at=5, event_id=None, source_head=5, reset_metrics=True),
        UserMessage.text("second"),
        _response(CALL),
        StateChanged(changes={"status": "waiting_for_confirmation", "waiting": {"c": {"tool": "look"}}}),
    ]
    fixed = [event.model_copy(update={"id": UUID(int=100 + n), "ts": moment(n)}) for n, event in enumerate(named)]
    return [*fixed, *_golden()]


def _response(part: dict[str, Any]) -> ModelResponded:
    response = {"kind": "response", "model_name": "m", "timestamp": "2026-01-01T00:00:00Z", "parts": [part]}
    return ModelResponded(response=response, usage={"requests": 1, "input_tokens": 5, "cost_usd": 0.25}, model="m")


def _golden() -> list[Event]:
    found: list[Event] = []
    for path in sorted((GOLDEN / "events").glob("v*/*.json")):
        event = json.loads(path.read_text("utf-8"))
        decoded = _decode(event)
        found += [] if isinstance(decoded, MessageStored) else [decoded]
    return found


def _decode(event: Any) -> Event:
    return decode(0, UUID(event["id"]), event["kind"], datetime.fromisoformat(event["ts"]), event["raw"].encode())


def write() -> None:
    """Write each event, and the state after it as it is kept; outcomes of calls are not part of it."""
    state, lines = State(), []
    for seq, event in enumerate(log()):
        state.apply(seq, event)
        row = {"id": str(event.id), "kind": event.kind, "ts": event.ts.isoformat(), "raw": encode(event).decode()}
        lines.append(json.dumps({"event": row, "state": json.loads(dump_state(state))}, sort_keys=True))
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")


def test_the_same_events_give_the_same_states() -> None:
    assert FILE.exists(), f"FOLD was raised: write its file with `python {Path(__file__).name}`"
    state = State()
    for seq, line in enumerate(json.loads(FILE.read_text("utf-8"))):
        state.apply(seq, _decode(line["event"]))
        message = f"the state after event {seq} is another one: raise FOLD in log/snapshot.py, and write its file"
        assert json.loads(dump_state(state)) == line["state"], message


if __name__ == "__main__":
    write()
