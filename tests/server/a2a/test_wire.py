"""What A2A demands of an agent on the wire: versions, codes of errors, the fields of a page."""

from __future__ import annotations

import threading
from typing import Any

import httpx2

from bough.testing.openai_server import Hang, Received, Reply

NOT_THERE = "00000000-0000-7000-8000-000000000000"


def call(client: httpx2.Client, method: str, params: Any, version: str | None = "1.0") -> dict[str, Any]:
    headers = {} if version is None else {"A2A-Version": version}
    body = {"jsonrpc": "2.0", "id": "i1", "method": method, "params": params}
    answer = client.post("/a2a/default", json=body, headers=headers)
    assert (answer.status_code, answer.json()["id"]) == (200, "i1")
    return answer.json()


def test_a_version_that_is_not_served_is_said(one_server: tuple[httpx2.Client, str]) -> None:
    client, _ = one_server
    assert call(client, "GetTask", {"id": NOT_THERE}, "9.9")["error"]["code"] == -32009
    rest = client.get(f"/a2a/default/tasks/{NOT_THERE}", headers={"A2A-Version": "9.9"})
    assert (rest.status_code, rest.json()["error"]["details"][0]["reason"]) == (400, "VERSION_NOT_SUPPORTED")
    assert call(client, "tasks/get", {"id": NOT_THERE}, None)["error"]["code"] == -32001, "none is 0.3"


def test_errors_have_the_codes_of_their_binding(one_server: tuple[httpx2.Client, str]) -> None:
    client, _ = one_server
    for method, params, code in (
        ("GetTask", {"id": NOT_THERE}, -32001),
        ("CancelTask", {"id": NOT_THERE}, -32001),
        ("GetTaskPushNotificationConfig", {"taskId": NOT_THERE, "id": "x"}, -32001),
        ("GetTask", {"id": NOT_THERE, "historyLength": -1}, -32602),
        ("SendMessage", {"message": {"messageId": "m", "role": "ROLE_USER", "parts": []}}, -32602),
        ("ListTasks", {"pageSize": 101}, -32602),
        ("ListTasks", {"pageToken": "nonsense"}, -32602),
        ("Nonsense", {}, -32601),
    ):
        assert call(client, method, params)["error"]["code"] == code, method
    rest = client.get(f"/a2a/default/tasks/{NOT_THERE}", headers={"A2A-Version": "1.0"})
    assert (rest.status_code, rest.json()["error"]["details"][0]["reason"]) == (404, "TASK_NOT_FOUND")


def test_a_page_says_how_many_there_are_and_what_follows(one_server: tuple[httpx2.Client, str]) -> None:
    client, _ = one_server
    for number in range(3):
        part = {"messageId": f"page-{number}", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
        sent = call(client, "SendMessage", {"message": part})["result"]["task"]
        assert sent["status"]["state"] == "TASK_STATE_COMPLETED"
    first = call(client, "ListTasks", {"pageSize": 2})["result"]
    assert (len(first["tasks"]), first["totalSize"], first["pageSize"]) == (2, 3, 2)
    assert not any("artifacts" in task for task in first["tasks"]), "only where they are wanted"
    last = call(client, "ListTasks", {"pageSize": 2, "pageToken": first["nextPageToken"]})["result"]
    assert (len(last["tasks"]), last["totalSize"], last["nextPageToken"]) == (1, 3, "")
    times = [task["status"]["timestamp"] for task in (*first["tasks"], *last["tasks"])]
    assert times == sorted(times, reverse=True), "the latest first"


def test_what_changed_last_is_listed_first(serving: Any) -> None:
    reached = threading.Event()

    def hang(received: Received) -> Reply:
        reached.set()
        return Hang()

    def send(client: httpx2.Client, text: str) -> dict[str, Any]:
        message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}
        given = {"message": message, "configuration": {"returnImmediately": text == "first"}}
        return call(client, "SendMessage", given)["result"]["task"]

    with serving(hang, "second", "third") as server, server.client() as client:
        first = send(client, "first")
        assert reached.wait(60)
        second, third = send(client, "second"), send(client, "third")
        call(client, "CancelTask", {"id": first["id"]})
        page = call(client, "ListTasks", {"pageSize": 2})["result"]
        assert [task["id"] for task in page["tasks"]] == [first["id"], third["id"]]
        rest = call(client, "ListTasks", {"pageToken": page["nextPageToken"]})["result"]
        assert [task["id"] for task in rest["tasks"]] == [second["id"]]
        since = {"statusTimestampAfter": page["tasks"][1]["status"]["timestamp"]}
        recent = call(client, "ListTasks", since)["result"]
        assert ([task["id"] for task in recent["tasks"]], recent["totalSize"]) == ([first["id"], third["id"]], 2)
        of_context = call(client, "ListTasks", {"contextId": second["contextId"]})["result"]
        assert [task["id"] for task in of_context["tasks"]] == [second["id"]]


def test_the_card_declares_what_is_served(one_server: tuple[httpx2.Client, str]) -> None:
    client, _ = one_server
    card = client.get("/a2a/default/.well-known/agent-card.json").json()
    assert card["capabilities"] == {"streaming": True, "pushNotifications": True, "extendedAgentCard": True}
    spoken = {(each["protocolBinding"], each["protocolVersion"]) for each in card["supportedInterfaces"]}
    assert spoken == {(binding, version) for binding in ("JSONRPC", "HTTP+JSON") for version in ("1.0", "0.3")}
    extended = call(client, "GetExtendedAgentCard", {})["result"]
    assert (extended["name"], bool(extended["securitySchemes"])) == (card["name"], True)
