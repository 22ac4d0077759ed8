"""Webhooks: what is sent, how it is signed, what is tried again, and where nothing is ever sent."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import queue
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.server.processes import POLL_SECONDS

from bough.connect.address import check_address
from bough.errors import PermissionDenied

NETWORKS = ("127.0.0.0/8",)


class Listener:
    """An HTTP server that keeps what it is sent; the first answers can be failures."""

    def __init__(self, *statuses: int, is_endless: bool = False, held: threading.Event | None = None) -> None:
        self.heard: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()
        statuses_left = list(statuses)
        heard = self.heard

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                heard.put(({name.lower(): value for name, value in self.headers.items()}, body))
                if held is not None:
                    held.wait(60)
                self.send_response(statuses_left.pop(0) if statuses_left else 204)
                self.end_headers()
                with suppress(OSError):
                    while is_endless:
                        self.wfile.write(b"x" * 65_536)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/hook"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))

    def read(self) -> tuple[dict[str, str], dict[str, Any]]:
        headers, body = self.heard.get(timeout=60)
        return headers, json.loads(body)

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@contextmanager
def listening(*statuses: int, **options: Any) -> Iterator[Listener]:
    with Listener(*statuses, **options) as listener:
        yield listener


def test_changes_are_told_and_signed_and_contents_are_not(serving: Any) -> None:
    with (
        listening() as listener,
        serving("a secret answer", webhook_networks=NETWORKS) as server,
        server.client() as client,
    ):
        made = client.post("/api/webhooks", json={"url": listener.url})
        assert made.status_code == 201, made.text
        assert client.get("/api/webhooks").json() == [
            {name: value for name, value in made.json().items() if name != "secret"}
        ], "the secret is shown once"
        id = client.post("/api/conversations", json={"initial_message": "a secret question", "run": True}).json()["id"]
        told: list[tuple[str, Any]] = []
        while ("run.finished", "completed") not in told:
            headers, body = listener.read()
            assert "secret" not in json.dumps(body)
            assert (body["tenant"], body["conversation"]) == ("local", id)
            told.append((body["kind"], body["data"].get("state", body["data"].get("status"))))
            content = json.dumps(body).encode()
            key = base64.b64decode(made.json()["secret"].removeprefix("whsec_"))
            signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + content
            expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
            assert headers["webhook-signature"] == f"v1,{expected}"
        assert {("conversation.status", "running"), ("task.state", "running")} <= set(told)
        assert client.delete(f"/api/webhooks/{made.json()['id']}").json() == {"success": True}
        assert client.get("/api/webhooks").json() == []


def test_receivers_that_are_slow_delay_nothing_else(serving: Any, new_key: Any) -> None:
    red, blue = (new_key(tenant=tenant, role="admin") for tenant in ("red", "blue"))
    released = threading.Event()
    with (
        listening(held=released) as slow,
        listening() as quick,
        listening() as other,
        serving(webhook_networks=NETWORKS) as server,
        server.client(red.text) as ours,
        server.client(blue.text) as theirs,
    ):
        try:
            hooks = [ours.post("/api/webhooks", json={"url": slow.url}).json()["id"] for _ in range(3)]
            for hook in hooks * 10:
                ours.post(f"/api/webhooks/{hook}/test")
            for client, listener in ((theirs, other), (ours, quick)):
                hook = client.post("/api/webhooks", json={"url": listener.url}).json()["id"]
                client.post(f"/api/webhooks/{hook}/test")
                assert listener.read()[1]["kind"] == "webhook.test"
            assert slow.heard.qsize() < 30, "what goes elsewhere did not wait for the slow receiver"
        finally:
            released.set()
        for _ in range(30):
            slow.read()


def test_what_fails_is_tried_again_and_a_tested_webhook_is_told(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bough.server.outbound.webhooks.RETRY_SECONDS", (0, 0))
    with listening(500, 302) as listener, serving(webhook_networks=NETWORKS) as server, server.client() as client:
        id = client.post("/api/webhooks", json={"url": listener.url, "kinds": ["run.finished"]}).json()["id"]
        assert client.post(f"/api/webhooks/{id}/test").json() == {"success": True}
        sent = [listener.read() for _ in range(3)]
        assert {body["kind"] for _, body in sent} == {"webhook.test"}
        assert len({headers["webhook-id"] for headers, _ in sent}) == 1, (
            "the same delivery, so that it can be told apart"
        )
        assert client.post("/api/webhooks/none/test").status_code == 404


def test_one_that_fails_for_long_is_switched_off_until_it_takes_a_test(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bough.server.outbound.webhooks.OFF_AFTER_SECONDS", 0)
    often = {"requests_per_second": 100_000}
    with (
        listening(500) as listener,
        serving(webhook_networks=NETWORKS, limits=often) as server,
        server.client() as client,
    ):
        id = client.post("/api/webhooks", json={"url": listener.url}).json()["id"]
        client.post(f"/api/webhooks/{id}/test")
        listener.read()
        while (shown := client.get("/api/webhooks").json()[0])["active"]:
            time.sleep(POLL_SECONDS)
        assert shown["failing_since"]
        client.post("/api/conversations", json={"initial_message": "nobody is told", "run": True})
        assert client.post(f"/api/webhooks/{id}/test").json() == {"success": True}
        assert listener.read()[1]["kind"] == "webhook.test", "the first thing that it is told again"
        while not (shown := client.get("/api/webhooks").json()[0])["active"]:
            time.sleep(POLL_SECONDS)
        assert shown["failing_since"] is None


def test_an_answer_without_an_end_holds_up_nothing(serving: Any) -> None:
    with (
        listening(200, 200, is_endless=True) as listener,
        serving(webhook_networks=NETWORKS) as server,
        server.client() as client,
    ):
        id = client.post("/api/webhooks", json={"url": listener.url}).json()["id"]
        for _ in range(2):
            client.post(f"/api/webhooks/{id}/test")
            assert listener.read()[1]["kind"] == "webhook.test"
        while 'bough_webhook_deliveries_total{state="done"} 2.0' not in client.get("/metrics").text:
            assert 'state="failed"' not in client.get("/metrics").text
            time.sleep(POLL_SECONDS)


def test_a_secret_that_cannot_be_opened_fails_its_own_deliveries_alone(serving: Any, settings: Any) -> None:
    with (
        listening() as closed,
        listening() as listener,
        serving(webhook_networks=NETWORKS) as server,
        server.client() as client,
    ):
        id = client.post("/api/webhooks", json={"url": closed.url}).json()["id"]
        client.post("/api/webhooks", json={"url": listener.url})
        with closing(sqlite3.connect(settings.store.removeprefix("sqlite:///"))) as db:
            assert db.execute("update server_webhook set ciphertext = x'00' where id = ?", (id,)).rowcount == 1
            db.commit()
        ids = [client.post("/api/conversations", json={"initial_message": "hello"}).json()["id"] for _ in range(3)]
        for id in ids:
            client.delete(f"/api/conversations/{id}")
        assert {listener.read()[1]["conversation"] for _ in ids} == {*ids}, "none waits for the other's claim to end"
        assert closed.heard.empty()
        assert [hook["url"] for hook in client.get("/api/webhooks").json()] == [closed.url, listener.url]


def test_a_deletion_is_told(serving: Any) -> None:
    with listening() as listener, serving(webhook_networks=NETWORKS) as server, server.client() as client:
        made = client.post("/api/webhooks", json={"url": listener.url, "kinds": ["conversation.deleted"]})
        assert made.status_code == 201, made.text
        id = client.post("/api/conversations", json={"initial_message": "a question"}).json()["id"]
        assert client.delete(f"/api/conversations/{id}").status_code == 200
        _, body = listener.read()
        assert (body["kind"], body["conversation"], body["data"]) == ("conversation.deleted", id, {})


@pytest.mark.anyio
async def test_what_a_worker_changes_is_told_by_the_server(serving: Any, settings: Any) -> None:
    from bough.server.worker import work_for_servers
    from bough.tasks import TaskBroker
    from bough.tasks.serve import serve
    from bough.tasks.stores.backends import open_task_store

    with (
        listening() as listener,
        serving("by the worker", webhook_networks=NETWORKS, runs="workers") as server,
        server.client() as client,
    ):
        client.post("/api/webhooks", json={"url": listener.url, "kinds": ["run.finished"]})
        made = client.post("/api/conversations", json={"initial_message": "go", "run": True}).json()
        tasks = open_task_store(settings.store)
        broker = TaskBroker(tasks, settings=settings)
        work_for_servers(broker, await tasks.open(), settings)
        await serve(broker, queues=["default"], agents=[server.agent], once=True)
        await tasks.aclose()
        _, body = listener.read()
        assert (body["kind"], body["conversation"]) == ("run.finished", made["id"])
        assert body["data"]["state"] == "completed"


def test_nothing_is_sent_to_this_machine_or_a_private_network(serving: Any) -> None:
    with serving() as server, server.client() as client:
        for url, status in (
            ("https://127.0.0.1/x", 403),
            ("https://localhost/x", 403),
            ("https://10.1.2.3/x", 403),
            ("https://169.254.169.254/latest", 403),
            ("https://[::1]/x", 403),
            ("https://[::ffff:127.0.0.1]/x", 403),
            ("http://93.184.215.14/x", 403),
            ("ftp://93.184.215.14/x", 422),
            ("https://user@93.184.215.14/x", 422),
            ("https://", 422),
            ("nonsense", 422),
        ):
            answer = client.post("/api/webhooks", json={"url": url})
            assert answer.status_code == status, (url, answer.text)
        assert client.post("/api/webhooks", json={"url": "https://93.184.215.14/x", "kinds": ["x"]}).status_code == 422
        assert client.post("/api/webhooks", json={"url": "https://93.184.215.14/x"}).status_code == 201


def test_webhooks_are_their_tenants(serving: Any, new_key: Any) -> None:
    red, blue, writer = (
        new_key(tenant="red", role="admin"), new_key(tenant="blue", role="admin"), new_key(tenant="red", role="write")
    )  # fmt: skip
    with serving() as server, server.client(red.text) as ours, server.client(blue.text) as theirs:
        id = ours.post("/api/webhooks", json={"url": "https://93.184.215.14/x"}).json()["id"]
        assert theirs.get("/api/webhooks").json() == []
        assert theirs.delete(f"/api/webhooks/{id}").status_code == 404
        assert theirs.post(f"/api/webhooks/{id}/test").status_code == 404
        with server.client(writer.text) as narrow:
            assert narrow.get("/api/webhooks").status_code == 403
        for _ in range(19):
            assert ours.post("/api/webhooks", json={"url": "https://93.184.215.14/x"}).status_code == 201
        assert ours.post("/api/webhooks", json={"url": "https://93.184.215.14/x"}).status_code == 429


@pytest.mark.anyio
async def test_the_address_that_was_checked_is_the_one_that_is_called() -> None:
    address = await check_address("http://localhost:81/a?b=c#d", (*NETWORKS, "::1/128"))
    assert address.host == "localhost:81"
    assert address.url in ("http://127.0.0.1:81/a?b=c", "http://[::1]:81/a?b=c")
    with pytest.raises(PermissionDenied):
        await check_address("https://localhost/", ("127.0.0.0/8",) if ":" in address.url[7:12] else ())
