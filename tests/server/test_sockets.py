"""`/sockets/events/{id}` as OpenHands' client uses it: key, first state, each event once, the state after a run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from bough.testing import Answer, ServerCall


def join(server: Any, id: str, query: str = "", **options: Any) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{server.port}/sockets/events/{id}{query}", proxy=None, **options)


def read(socket: ClientConnection) -> dict[str, Any]:
    return json.loads(socket.recv(timeout=30))


def state_after_run(socket: ClientConnection) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the frames up to the first state that is not running, and that state."""
    frames = []
    while True:
        frame = read(socket)
        if frame.get("key") == "full_state" and frame["value"]["execution_status"] != "running":
            return frames, frame["value"]
        frames.append(frame)


def test_a_run_is_followed_and_ends_with_a_state(serving: Any) -> None:
    with serving("some words to stream") as server, server.client() as client:
        id = client.post("/api/conversations", json={"initial_message": "hi"}).json()["id"]
        with join(server, id) as socket:
            first = read(socket)
            assert first["key"] == "full_state"
            assert first["id"].endswith(".state")
            assert first["value"]["execution_status"] == "idle"
            assert client.post(f"/api/conversations/{id}/run").status_code == 200
            frames, state = state_after_run(socket)
            assert state["execution_status"] == "finished"
            said = "".join(frame.get("content", "") for frame in frames if frame["kind"] == "StreamingDeltaEvent")
            assert said == "some words to stream"
            events = [frame["id"] for frame in frames if frame["kind"] != "StreamingDeltaEvent"]
        whole = [event["id"] for event in client.get(f"/api/conversations/{id}/events/search").json()["items"]]
        assert events == [event for event in whole if event in events]
        assert len(set(events)) == len(events)
        fork = client.post(f"/api/conversations/{id}/fork", json={"from_event_id": first["id"]})
        assert fork.status_code == 201, "people fork from the id of a state frame"


@pytest.mark.parametrize("stream", [None, False, True])
def test_pieces_of_a_response_are_sent_where_the_posted_agent_asks_for_them(serving: Any, stream: bool | None) -> None:
    with serving("some words to stream") as server, server.client() as client:
        llm = {"model": "openai/test", "base_url": server.model_url, "api_key": "key-of-mine", "stream": stream}
        agent = {"kind": "Agent", "llm": {name: value for name, value in llm.items() if value is not None}, "tools": []}
        body = {"agent": agent, "workspace": {"kind": "LocalWorkspace", "working_dir": "."}}
        created = client.post("/api/conversations", json=body)
        assert created.status_code == 201, created.text
        id = created.json()["id"]
        with join(server, id) as socket:
            read(socket)
            message = {"role": "user", "content": [{"type": "text", "text": "hi"}], "run": True}
            assert client.post(f"/api/conversations/{id}/events", json=message).status_code == 200
            frames, state = state_after_run(socket)
            assert state["execution_status"] == "finished"
            deltas = [frame for frame in frames if frame["kind"] == "StreamingDeltaEvent"]
            assert bool(deltas) is bool(stream)


def test_a_run_with_nothing_to_do_ends_with_a_state_too(serving: Any) -> None:
    with serving() as server, server.client() as client:
        id = client.post("/api/conversations", json={}).json()["id"]
        with join(server, id) as socket:
            read(socket)
            client.post(f"/api/conversations/{id}/run")
            assert state_after_run(socket)[1]["execution_status"] == "finished"
            assert state_after_run(socket)[1]["execution_status"] == "finished", "a quick run's is said once more"


def test_what_was_before_is_sent_on_request(serving: Any) -> None:
    with serving() as server, server.client() as client:
        id = client.post("/api/conversations", json={"initial_message": "hi"}).json()["id"]
        whole = client.get(f"/api/conversations/{id}/events/search").json()["items"]
        with join(server, id, "?resend_mode=all") as socket:
            read(socket)
            assert [read(socket) for _ in whole] == whole
        with join(server, id, "?after=0") as socket:
            read(socket)
            assert read(socket) == whole[1]


def test_a_message_over_the_socket_starts_a_run(serving: Any) -> None:
    with serving("answered") as server, server.client() as client:
        id = client.post("/api/conversations", json={}).json()["id"]
        with join(server, id) as socket:
            read(socket)
            socket.send(json.dumps({"role": "user", "content": [{"type": "text", "text": "hello"}]}))
            assert state_after_run(socket)[1]["execution_status"] == "finished"
            for wrong in ("{", json.dumps({"content": ""}), json.dumps([])):
                socket.send(wrong)
                frame = read(socket)
                while frame["kind"] != "ServerErrorEvent":
                    frame = read(socket)
                assert frame["code"] in ("malformed", "invalid_input")


def closed_with(socket: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            socket.recv(timeout=30)
    received = closed.value.rcvd
    return None if received is None else received.code


def test_keys_are_asked_for_in_the_first_frame(serving: Any, new_key: Any) -> None:
    red, blue = (new_key(tenant=tenant, role="admin") for tenant in ("red", "blue"))
    with serving() as server, server.client(red.text) as client:
        id = client.post("/api/conversations", json={}).json()["id"]

        def auth(key: str) -> str:
            return json.dumps({"type": "auth", "session_api_key": key})

        with join(server, id) as socket:
            socket.send(auth(red.text))
            assert read(socket)["key"] == "full_state"
        with join(server, id, additional_headers={"X-Session-API-Key": red.text}) as socket:
            assert read(socket)["key"] == "full_state"
        for frame in (auth("wrong"), json.dumps({"type": "hello"}), "nonsense"):
            with join(server, id) as socket:
                socket.send(frame)
                assert closed_with(socket) == 4001
        with join(server, id, f"?session_api_key={red.text}") as socket:
            assert closed_with(socket) == 4001, "keys in addresses end up in logs"
        with join(server, id) as socket:
            socket.send(auth(blue.text))
            assert closed_with(socket) == 4004
        with join(server, "nonsense") as socket:
            socket.send(auth(red.text))
            assert closed_with(socket) == 4004
        with join(server, id) as socket:
            socket.send(auth(red.text))
            read(socket)
            client.delete(f"/api/keys/{red.id}")
            assert closed_with(socket) == 4001


def test_another_site_and_a_deleted_conversation_close_it(serving: Any) -> None:
    with serving() as server, server.client() as client:
        id = client.post("/api/conversations", json={}).json()["id"]
        with pytest.raises(InvalidStatus) as refused:
            join(server, id, origin="https://evil.example")
        assert refused.value.response.status_code == 403
        with join(server, id) as socket:
            read(socket)
            client.delete(f"/api/conversations/{id}")
            assert closed_with(socket) == 4004


def test_confirmation_as_the_peers_client_does_it(serving: Any) -> None:
    asks = Answer(calls=(ServerCall(tool="run_command", arguments={"command": "echo ran"}, id="c1"),))
    with serving(asks, "it ran", asks, "refused", tools="run") as server, server.client() as client:
        llm = {"model": "openai/test", "base_url": server.model_url}
        body = {
            "agent": {"kind": "Agent", "llm": llm, "tools": [{"name": "terminal"}]},
            "confirmation_policy": {"kind": "AlwaysConfirm"},
            "initial_message": {"role": "user", "content": [{"type": "text", "text": "run it"}]},
        }
        id = client.post("/api/conversations", json=body).json()["id"]
        path = f"/api/conversations/{id}"
        with join(server, id) as socket:
            read(socket)
            client.post(f"{path}/run")
            _, state = state_after_run(socket)
            assert state["execution_status"] == "waiting_for_confirmation"
            assert [call["tool"] for call in state["waiting"]] == ["run_command"]
            client.post(f"{path}/run")
            frames, state = state_after_run(socket)
            while state["execution_status"] != "finished":
                more, state = state_after_run(socket)
                frames += more
        kinds = [event["kind"] for event in client.get(f"{path}/events/search").json()["items"]]
        assert "ActionEvent" in kinds
        observed = client.get(f"{path}/events/search", params={"kind": "ObservationEvent"}).json()["items"][0]
        assert "ran" in observed["observation"]["content"][0]["text"]
        action = client.get(f"{path}/events/search", params={"kind": "ActionEvent"}).json()["items"][0]
        assert observed["action_id"] == action["id"]
        client.post(f"{path}/events", json={"role": "user", "content": [{"type": "text", "text": "again"}]})
        client.post(f"{path}/run", json={"wait": 60})
        answer = client.post(f"{path}/events/respond_to_confirmation", json={"accept": False, "reason": "no"})
        assert answer.json() == {"success": True}
        assert client.post(f"{path}/events/respond_to_confirmation", json={"accept": True}).status_code == 409
        client.post(f"{path}/run", json={"wait": 60})
        rejected = client.get(f"{path}/events/search", params={"kind": "UserRejectObservation"}).json()["items"]
        assert [event["rejection_reason"] for event in rejected] == ["no"]


def test_what_a_socket_asks_for_and_cannot_have_is_said(serving: Any, new_key: Any) -> None:
    key, narrow = new_key(role="admin"), new_key(role="write", scopes=["tasks"])
    with serving() as server, server.client(key.text) as client:
        id = client.post("/api/conversations", json={}).json()["id"]
        headers = {"X-Session-API-Key": key.text}
        for query, field in (("?after=99999", "after"), ("?form=x", "form"), ("?nonsense=1", "nonsense")):
            with join(server, id, query, additional_headers=headers) as socket:
                frame = read(socket)
                assert (frame["kind"], frame["code"]) == ("ServerErrorEvent", "invalid_input")
                assert frame["detail"].startswith(f"{field}: ")
                assert closed_with(socket) == 4004, "the client does not come back with the same request"
        with join(server, id, additional_headers={"X-Session-API-Key": narrow.text}) as socket:
            assert closed_with(socket) == 4001, "told to come back later, it would never stop"


def test_a_message_over_the_socket_says_whether_it_runs_and_a_wrong_one_names_its_field(serving: Any) -> None:
    with serving() as server, server.client() as client:
        id = client.post("/api/conversations", json={}).json()["id"]
        with join(server, id) as socket:
            read(socket)
            socket.send(json.dumps({"role": "user", "content": "kept", "nonsense": 1}))
            assert read(socket)["detail"].startswith("nonsense: ")
            socket.send(json.dumps({"role": "user", "content": "kept", "run": False}))
            assert read(socket)["kind"] == "MessageEvent"
        assert client.get(f"/api/conversations/{id}").json()["run"] is None, "no model was asked"
