"""Requests and cards as clients of other libraries need them, over HTTP."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

JsonObject = dict[str, Any]


def call(client: Any, method: str, params: JsonObject, *, id: Any = 1) -> Any:
    answer = client.post("/a2a/default", json={"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines]
    return answer.json()


def message_without_kind(text: str) -> JsonObject:
    """A message as fasta2a 2.1 sends it, by the method names of version 0.3."""
    return {"message": {"role": "user", "messageId": str(uuid4()), "parts": [{"text": text}]}}


def test_a_message_without_kind_is_answered_in_both_forms(serving: Any) -> None:
    with serving("first answer", "second answer") as server, server.client() as client:
        result = call(client, "message/send", message_without_kind("hello"))["result"]
        assert result["task"] == {name: value for name, value in result.items() if name != "task"}
        assert result["task"]["artifacts"][0]["parts"][0]["text"] == "first answer"
        events = call(client, "message/stream", message_without_kind("more"), id=None)
        assert {event["id"] for event in events} == {None}
        results = [event["result"] for event in events]
        assert [result["statusUpdate"]["status"]["state"] for result in results if "statusUpdate" in result][-1] == (
            "completed"
        )
        chunks = [result["artifactUpdate"] for result in results if "artifactUpdate" in result]
        assert chunks[-1]["artifact"]["parts"][0]["text"] == "second answer"
        refused = call(client, "message/stream", {"message": {"role": "user", "parts": []}}, id=None)
        errors = refused if isinstance(refused, list) else [refused]
        assert [(error["id"], "error" in error) for error in errors] == [(None, True)]


def test_a_message_with_kind_is_answered_as_in_0_3(serving: Any) -> None:
    params = message_without_kind("hello")
    params["message"]["kind"] = "message"
    with serving("an answer") as server, server.client() as client:
        result = call(client, "message/send", params)["result"]
        assert (result["kind"], "task" in result) == ("task", False)
        lost = call(client, "tasks/get", {"id": str(uuid4())}, id=None)
        assert (lost["id"], lost["error"]["message"]) == (None, "Task not found")


def test_a_card_demands_a_key_where_one_is_needed(serving: Any, new_key: Any) -> None:
    with serving() as server, server.client() as client:
        card = client.get("/a2a/default/.well-known/agent-card.json").json()
        assert not {"securityRequirements", "security"} & set(card)
        assert all(skill["inputModes"] and skill["outputModes"] for skill in card["skills"])
    key = new_key("a").text
    with serving() as server, server.client(key) as client:
        card = client.get("/a2a/default/.well-known/agent-card.json").json()
        assert [list(requirement["schemes"]) for requirement in card["securityRequirements"]] == [["key"], ["bearer"]]
