"""Chats in OpenAI's format, by OpenAI's own client: two turns are one conversation, a changed message is a fork."""

from __future__ import annotations

import base64
from typing import Any

import httpx2
import openai
import pytest

from bough.testing import Answer, ServerCall

PIXEL = (
    "data:image/png;base64,"
    + base64.b64encode(
        bytes.fromhex(
            "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001"
            "a5f645400000000049454e44ae426082"
        )
    ).decode()
)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def connect(server: Any, key: str = "none") -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60)


def complete(client: Any, *messages: Any, **options: Any) -> tuple[str, str]:
    """Return the answer to a chat, and the id of its conversation."""
    raw = client.chat.completions.with_raw_response.create(model="default", messages=list(messages), **options)
    return raw.parse().choices[0].message.content, raw.headers["x-bough-conversation"]


def sent(client: httpx2.Client, id: str) -> list[str]:
    """Return the texts of a conversation's messages of the user."""
    page = client.get(
        f"/api/conversations/{id}/events/search",
        params={"kinds": "UserMessage"},
        headers={"Accept": "application/vnd.bough.event+json"},
    ).json()
    return ["".join(part.get("text", "[image]") for part in event["content"]) for event in page["items"]]


def test_two_turns_are_one_conversation_and_a_changed_message_is_a_fork(serving: Any) -> None:
    with serving("one", "two", "three", "four") as server, server.client() as rest:
        client = connect(server)
        first, id = complete(client, user("a"))
        second, same = complete(client, user("a"), assistant(f" {first}\n"), user("b"))
        assert (first, second, same) == ("one", "two", id), "space around a text does not make another chat"
        assert sent(rest, id) == ["a", "b"]

        third, fork = complete(client, user("a"), assistant(first), user("c"))
        assert third == "three"
        assert fork != id
        assert sent(rest, fork) == ["a", "c"]
        _, changed = complete(
            client, user("z"), assistant(first), user("b"), extra_headers={"X-Bough-Conversation": id}
        )
        assert changed not in (id, fork)
        assert sent(rest, changed) == ["Earlier messages, as the client sent them:\n\nuser: z\n\nassistant: oneb"]
        tree = rest.get(f"/api/conversations/{id}/tree").text
        assert all(one in tree for one in (id, fork, changed)), "all are branches of one tree"


def test_a_stream_has_the_text_the_tool_calls_and_the_usage(serving: Any) -> None:
    call = ServerCall(tool="write_file", arguments={"path": "a.txt", "content": "x"})
    with serving(Answer(text="I write.", calls=(call,)), "done", "more", tools="write") as server:
        client = connect(server)
        chunks = list(
            client.chat.completions.create(
                model="default",
                messages=[{"role": "system", "content": "Be brief."}, user("write")],
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        content = "".join(delta.content or "" for delta in deltas)
        assert content == "I write.\n\ndone"
        assert "write_file" in "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
        assert chunks[-1].usage.prompt_tokens > 0
        with server.client() as rest:
            (only,) = rest.get("/api/conversations/search").json()["items"]
            sent_prompt = rest.get(
                f"/api/conversations/{only['id']}/events/search",
                headers={"Accept": "application/vnd.bough.event+json"},
            ).text
        assert "Be brief." in sent_prompt
        _, id = complete(client, user("write"), assistant(content), user("more"))
        assert id == only["id"], "the instructions of a client do not identify a chat"


def test_a_call_that_needs_an_approval_is_refused_and_told(serving: Any) -> None:
    call = ServerCall(tool="write_file", arguments={"path": "a.txt", "content": "x"})
    with serving(Answer(calls=(call,)), "I may not.", tools="write", policy="ask") as server:
        raw = connect(server).chat.completions.create(model="default", messages=[user("write")])
        message = raw.choices[0].message
        assert message.content == "I may not."
        assert "write_file was refused by " in message.reasoning_content
        assert ": this client cannot give an approval" in message.reasoning_content


def test_a_key_finds_its_own_chats_only(serving: Any, new_key: Any) -> None:
    keys = [new_key("a"), new_key("b"), new_key("c", tenant="red")]
    with serving("one", "two", "three", "four") as server:
        ids = {complete(connect(server, key.text), user("a"))[1] for key in keys}
        assert len(ids) == 3
        _, other = complete(connect(server, keys[1].text), user("a"), assistant("one"), user("b"))
        assert other not in ids
        with pytest.raises(openai.NotFoundError):
            complete(connect(server, keys[2].text), user("a"), extra_headers={"X-Bough-Conversation": other})


def test_an_image_is_recorded(serving: Any) -> None:
    with serving("a pixel") as server, server.client() as rest:
        image = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}
        _, id = complete(connect(server), {"role": "user", "content": [{"type": "text", "text": "what?"}, image]})
        assert sent(rest, id) == ["what?[image]"]


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"n": 2}, 422, "n: an agent gives one answer"),
        ({"tools": [{"type": "function", "function": {"name": "x"}}]}, 422, "tools: not supported"),
        ({"response_format": {"type": "json_object"}}, 422, "response_format: not supported"),
        ({"temprature": 1}, 422, "temprature: unknown field"),
        ({"model": "defualt"}, 404, "did you mean `default`?"),
        ({"messages": []}, 422, "messages"),
        ({"messages": [assistant("x")]}, 422, "the last one must be of the role user"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, 422, "runs its tools itself"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "no"}}]}]}, 422, ""),
    ],
)
def test_a_request_that_an_agent_cannot_answer_is_refused(
    one_server: Any, changes: dict[str, Any], status: int, words: str
) -> None:
    client, _ = one_server
    body = {"model": "default", "messages": [user("a")], **changes}
    before = client.get("/api/conversations/count").json()
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == status, response.text
    assert words in response.json()["error"]["message"]
    assert client.get("/api/conversations/count").json() == before


def test_fields_that_the_agent_decides_are_named(serving: Any) -> None:
    with serving("one") as server:
        raw = connect(server).chat.completions.with_raw_response.create(
            model="default", messages=[user("a")], temperature=0.1, max_tokens=5, tools=[]
        )
        assert raw.headers["x-bough-ignored"] == "max_tokens, temperature"


def test_an_agent_that_fails_is_an_error_whole_and_streamed(serving: Any) -> None:
    with serving() as server:
        client = connect(server)
        with pytest.raises(openai.APIStatusError) as whole:
            complete(client, user("a"))
        assert whole.value.message
        with pytest.raises(openai.APIError, match="model"):
            list(client.chat.completions.create(model="default", messages=[user("b")], stream=True))


def test_a_client_that_leaves_stops_the_run(serving: Any) -> None:
    with serving(Answer(text="word " * 100, stall_after_chars=40)) as server, server.client() as rest:
        body = {"model": "default", "messages": [user("a")], "stream": True}
        with rest.stream("POST", "/v1/chat/completions", json=body) as response:
            id = response.headers["x-bough-conversation"]
            for line in response.iter_lines():
                if '"content":"word' in line:
                    break
        assert wait_status(rest, id, "paused")


def wait_status(rest: httpx2.Client, id: str, status: str) -> bool:
    """Whether a conversation gets a status, which the stream of its events tells."""
    for _ in range(600):
        with rest.stream("GET", f"/api/conversations/{id}/events/stream") as events:
            for line in events.iter_lines():
                if line.startswith("data:") and f'"execution_status":"{status}"' in line:
                    return True
    return False


def test_the_agents_are_the_models(serving: Any) -> None:
    with serving() as server:
        client = connect(server)
        assert [model.id for model in client.models.list()] == ["default"]
        assert client.models.retrieve("default").id == "default"
        with pytest.raises(openai.NotFoundError, match="did you mean"):
            client.models.retrieve("defalt")
