"""Runs by AG-UI, with the types of its own package: text, calls, interrupts and their answers, forks, tenants."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from ag_ui.core import (
    AssistantMessage,
    Context,
    DataSource,
    Event,
    ImagePart,
    Message,
    ResumeEntry,
    RunAgentInput,
    RunFinishedEvent,
    StateSnapshotEvent,
    SystemMessage,
    TextPart,
    Tool,
    UserMessage,
)
from pydantic import TypeAdapter
from tests.server.test_openai import PIXEL

from bough.testing import Answer, ServerCall

SOUND = {"type": "audio", "source": {"type": "url", "value": "http://a"}}
EVENTS: TypeAdapter[Any] = TypeAdapter(Event)
WRITE = ServerCall(tool="write_file", arguments={"path": "a.txt", "content": "x"})


def read_events(text: str) -> list[Any]:
    return [EVENTS.validate_json(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data:")]


class Thread:
    """A front end that keeps its messages and its state, as `@ag-ui/client` does."""

    def __init__(self, client: httpx2.Client, id: str | None = None) -> None:
        self.client = client
        self.id = id or str(uuid4())
        self.messages: list[Message] = []
        self.state: Any = {"page": "sales"}
        self.response: Any = None

    def say(self, text: str, **fields: Any) -> list[Any]:
        self.messages.append(UserMessage(id=str(uuid4()), content=text))
        return self.run(**fields)

    def post(self, **fields: Any) -> httpx2.Response:
        run = RunAgentInput(thread_id=self.id, run_id=str(uuid4()), messages=self.messages, state=self.state, **fields)
        body = json.loads(run.model_dump_json(by_alias=True))
        self.response = self.client.post("/agui/default", json=body)
        return self.response

    def run(self, **fields: Any) -> list[Any]:
        response = self.post(**fields)
        assert response.status_code == 200, response.text
        events = read_events(response.text)
        require_order(events)
        for id, text in join_texts(events).items():
            self.messages.append(AssistantMessage(id=id, content=text))
        self.state = [event.snapshot for event in events if isinstance(event, StateSnapshotEvent)][-1]
        return events

    @property
    def conversation(self) -> str:
        return str(self.response.headers["x-bough-conversation"])


def require_order(events: Sequence[Any]) -> None:
    """What the protocol demands: one run, first and last; what begins ends before the run does."""
    kinds = [event.type.value for event in events]
    assert (kinds[0], kinds.count("RUN_STARTED")) == ("RUN_STARTED", 1)
    assert kinds[-1] in ("RUN_FINISHED", "RUN_ERROR")
    begun: list[tuple[str, str]] = []
    for event in events:
        name, _, end = event.type.value.rpartition("_")
        if name in ("TEXT_MESSAGE", "TOOL_CALL", "REASONING_MESSAGE"):
            place = (name, getattr(event, "message_id", None) or event.tool_call_id)
            if end == "START":
                begun.append(place)
            elif end == "END":
                begun.remove(place)
            elif end in ("CONTENT", "ARGS"):
                assert place in begun
    assert begun == []


def join_texts(events: Sequence[Any]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for event in events:
        if event.type.value == "TEXT_MESSAGE_CONTENT":
            texts[event.message_id] = texts.get(event.message_id, "") + event.delta
    return texts


def only(events: Sequence[Any], kind: str) -> Iterator[Any]:
    return (event for event in events if event.type.value == kind)


def read_log(client: httpx2.Client, id: str) -> list[Any]:
    headers = {"Accept": "application/vnd.bough.event+json"}
    return client.get(f"/api/conversations/{id}/events/search", params={"limit": 100}, headers=headers).json()["items"]


def texts_sent(client: httpx2.Client, id: str) -> list[str]:
    log = [event for event in read_log(client, id) if event["kind"] == "UserMessage"]
    return ["".join(part.get("text", "[image]") for part in event["content"]) for event in log]


def test_a_run_has_text_calls_results_state_and_usage(serving: Any) -> None:
    with (
        serving(Answer(text="I write.", calls=(WRITE,)), "done", "more", tools="write") as server,
        server.client() as client,
    ):
        thread = Thread(client)
        events = thread.say("write it")
        assert list(join_texts(events).values()) == ["I write.", "done"]
        (call,) = only(events, "TOOL_CALL_START")
        assert (call.tool_call_name, call.parent_message_id) == ("write_file", next(iter(join_texts(events))))
        (arguments,) = only(events, "TOOL_CALL_ARGS")
        assert json.loads(arguments.delta) == WRITE.arguments
        (result,) = only(events, "TOOL_CALL_RESULT")
        assert (result.tool_call_id, result.metadata) == (call.tool_call_id, None)
        finished = events[-1]
        assert isinstance(finished, RunFinishedEvent)
        assert (finished.outcome.type, finished.result) == ("success", "done")
        assert finished.usage[0].input_tokens > 0
        assert events[0].protocol_version == "1.0"
        first = next(only(events, "STATE_SNAPSHOT")).snapshot
        assert first["page"] == "sales", "the front end's part of the state is sent back"
        assert thread.state["bough"]["conversation"] == thread.id == thread.conversation
        assert thread.state["bough"]["usage"]["requests"] == 2

        thread.say("more")
        assert texts_sent(thread.client, thread.id) == ["write it", "more"]


def test_an_interrupt_is_approved_rejected_and_cancelled(serving: Any) -> None:
    steps = [Answer(calls=(WRITE,)), "written", Answer(calls=(WRITE,)), "not written", Answer(calls=(WRITE,)), "no"]
    with serving(*steps, tools="write", policy="ask") as server, server.client() as client:
        thread = Thread(client)
        (interrupt,) = thread.say("write")[-1].outcome.interrupts
        assert (interrupt.reason, interrupt.metadata["bough"]["tool"]) == ("tool_call", "write_file")
        assert thread.post().status_code == 409, "a run that answers nothing is refused"
        unanswered = {"resume": [ResumeEntry(interrupt_id="other", status="resolved", payload={"approved": True})]}
        assert thread.post(**unanswered).status_code == 422
        for payload in (None, {"approved": "true"}, {"approved": 1}, {}, [], "yes"):
            entry = ResumeEntry(interrupt_id=interrupt.id, status="resolved", payload=payload)
            assert thread.post(resume=[entry]).status_code == 422, payload
        edited = {"approved": True, "editedArgs": {"path": "b.txt", "content": "y"}}
        events = thread.run(resume=[ResumeEntry(interrupt_id=interrupt.id, status="resolved", payload=edited)])
        (result,) = only(events, "TOOL_CALL_RESULT")
        assert (result.tool_call_id, list(join_texts(events).values())) == (interrupt.id, ["written"])
        calls = [event for event in read_log(client, thread.id) if event["kind"] == "ToolCalled"]
        assert calls[-1]["arguments"] == edited["editedArgs"]

        (again,) = thread.say("write again")[-1].outcome.interrupts
        denied = ResumeEntry(interrupt_id=again.id, status="resolved", payload={"approved": False, "reason": "not now"})
        events = thread.run(resume=[denied])
        (result,) = only(events, "TOOL_CALL_RESULT")
        assert "not now" in result.content
        assert result.metadata["bough"]["outcome"] == "refused"

        (last,) = thread.say("once more")[-1].outcome.interrupts
        events = thread.run(resume=[ResumeEntry(interrupt_id=last.id, status="cancelled")])
        assert next(only(events, "TOOL_CALL_RESULT")).metadata["bough"]["outcome"] == "refused"
        assert texts_sent(thread.client, thread.id)[-1] == "once more", "nothing of this was a fork"
        assert thread.conversation == thread.id


def test_a_changed_message_is_a_fork_and_the_thread_goes_on_there(serving: Any) -> None:
    with serving("one", "two", "three", "four", "five") as server, server.client() as client:
        thread = Thread(client)
        thread.say("a")
        thread.say("b")
        del thread.messages[2:]
        events = thread.say("c")
        fork = thread.conversation
        assert fork != thread.id
        assert list(join_texts(events).values()) == ["three"]
        lineage = thread.state["bough"]["lineage"]
        assert (lineage["forked_from"], lineage["reason"]) == (thread.id, "an earlier message of the chat was changed")
        thread.say("d")
        assert thread.conversation == fork
        assert texts_sent(thread.client, fork) == ["a", "c", "d"]
        assert texts_sent(thread.client, thread.id) == ["a", "b"]

        del thread.messages[-1]
        events = thread.run()
        assert thread.conversation not in (fork, thread.id), "an answer that is asked for again is a fork"
        assert list(join_texts(events).values()) == ["five"]
        assert texts_sent(thread.client, thread.conversation) == ["a", "c", "d"]


def test_a_thread_with_a_history_from_elsewhere_is_quoted(serving: Any) -> None:
    with serving("one") as server, server.client() as client:
        thread = Thread(client, "thread of a front end")
        thread.messages = [
            SystemMessage(id="0", content="Be brief."),
            UserMessage(id="1", content="hello"),
            AssistantMessage(id="2", content="hi"),
        ]
        image = ImagePart(source=DataSource(value=PIXEL.partition(",")[2], mime_type="image/png"))
        thread.messages.append(UserMessage(id="3", content=[TextPart(text="look"), image]))
        thread.run(context=[Context(description="the page", value="sales")], forwarded_props={"a": 1})
        assert thread.response.headers["x-bough-ignored"] == "forwardedProps"
        (text,) = texts_sent(thread.client, thread.conversation)
        assert "user: hello\n\nassistant: hi" in text
        assert "[image]" in text
        assert "the page: sales" in text
        assert "Be brief." in json.dumps(read_log(thread.client, thread.conversation))


def test_a_run_that_fails_is_an_error_and_can_be_repeated(serving: Any) -> None:
    from bough.testing.openai_server import Failure

    with serving(Failure(status=400), "after all") as server, server.client() as client:
        thread = Thread(client)
        events = thread.say("a")
        assert events[-1].type.value == "RUN_ERROR"
        assert events[-1].code
        events = thread.run()
        assert list(join_texts(events).values()) == ["after all"]
        assert thread.conversation == thread.id, "a message without an answer is not sent twice"
        assert texts_sent(thread.client, thread.id) == ["a"]


def test_threads_belong_to_their_tenant_and_interrupts_to_keys_that_may_approve(serving: Any, new_key: Any) -> None:
    blue, red = new_key("b", tenant="blue"), new_key("r", tenant="red")
    with serving("one", "two", tools="write", policy="ask") as server, server.client(blue.text) as client:
        mine = Thread(client)
        mine.say("a")
        with server.client(red.text) as other:
            theirs = Thread(other, mine.id)
            theirs.messages.append(UserMessage(id="1", content="a"))
            assert theirs.post().status_code == 409
            named = Thread(other, "named")
            named.state = mine.state
            named.messages.append(UserMessage(id="1", content="a"))
            assert named.post().status_code == 404
            assert "conversation" not in named.response.json().get("details", {})
        with server.client() as stranger:
            assert stranger.post("/agui/default", json={}).status_code == 401


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"id": "1", "role": "assistant", "content": "x"}]}, "messages"),
        (
            {
                "messages": [
                    {
                        "id": "1",
                        "role": "user",
                        "content": [{"type": "audio", "source": {"type": "url", "value": "http://a"}}],
                    }
                ]
            },
            "messages",
        ),
        ({"messages": [{"id": "1", "role": "nobody", "content": "x"}]}, "messages"),
        ({"threadId": ""}, "threadId"),
        ({"threadId": 3}, "thread"),
        ({"runId": "x" * 300}, "runId"),
        ({"tools": [Tool(name="paint", description="d", parameters={}).model_dump()]}, "tools"),
        ({"resume": [{"interruptId": "1", "status": "resolved"}]}, "thread"),
        ({"state": {"bough": {"conversation": "no id"}}}, "state"),
    ],
)
def test_an_input_that_an_agent_cannot_answer_is_refused(one_server: Any, change: dict[str, Any], word: str) -> None:
    client, _ = one_server
    body = {"threadId": str(uuid4()), "runId": "1", "messages": [{"id": "1", "role": "user", "content": "a"}]} | change
    response = client.post("/agui/default", json=body)
    assert response.status_code in (404, 422), response.text
    assert word in response.json()["detail"]
    assert client.post("/agui/nobody", json=body).status_code == 404
