"""Keys, roles, scopes and tenants: what is another tenant's is not there, in every place an id can stand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from bough.errors import PermissionDenied
from bough.server.auth.caller import LOCAL
from bough.server.auth.keys import NewKey
from bough.server.serve import require_safe_bind
from bough.settings import Settings


@pytest.fixture
def two_tenants(serving: Any, new_key: Any) -> Iterator[tuple[httpx2.Client, httpx2.Client, str]]:
    """Clients of two tenants, and a conversation of the first."""
    red = new_key(tenant="red", role="admin")
    blue = new_key(tenant="blue", role="admin")
    with serving() as server, server.client(red.text) as ours, server.client(blue.text) as theirs:
        yield ours, theirs, ours.post("/api/conversations", json={"title": "secret plan"}).json()["id"]


def test_without_keys_everybody_on_this_machine_is_local(serving: Any) -> None:
    with serving() as server, server.client() as client:
        assert client.get("/api/conversations/search").status_code == 200
        made = client.post("/api/keys", json={"name": "first", "role": "admin"}).json()
        assert client.get("/api/conversations/search").status_code == 401
        assert client.get("/health").status_code == 200
        with server.client(made["key"]) as keyed:
            assert keyed.get("/api/conversations/search").status_code == 200
            listed = keyed.get("/api/keys").json()
        assert [key["name"] for key in listed] == ["first"]
        assert made["key"] not in json.dumps(listed)


def test_every_wrong_key_gets_the_same_answer(serving: Any, new_key: Any) -> None:
    good = new_key()
    ended = new_key(expires=timedelta(0))
    wrong = ["", "x", good.text[:-1] + "x", "bough_00000000_" + "a" * 43, ended.text, good.text + "é"]
    with serving() as server, server.client() as client:
        answers = [
            client.get("/api/conversations/search", headers={b"x-session-api-key": key.encode()}) for key in wrong
        ]
        assert {answer.status_code for answer in answers} == {401}
        assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
        assert len({json.dumps({**answer.json(), "instance": ""}) for answer in answers[1:]}) == 1
        both = {"X-Session-API-Key": good.text, "Authorization": "Bearer other"}
        assert client.get("/api/conversations/search", headers=both).status_code == 401
        assert (
            client.get("/api/conversations/search", headers={"Authorization": f"Bearer {good.text}"}).status_code == 200
        )


def test_ten_wrong_keys_a_minute_are_enough(serving: Any, new_key: Any) -> None:
    good = new_key()
    with serving() as server, server.client() as client:
        codes = [client.get("/api/keys", headers={"X-Session-API-Key": f"wrong{n}"}).status_code for n in range(11)]
        assert codes == [401] * 10 + [429]
        assert client.get("/api/keys", headers={"X-Session-API-Key": good.text}).status_code == 200
        answer = client.get("/api/keys", headers={"X-Session-API-Key": "wrong"})
        assert (answer.status_code, answer.json()["details"]["limit"]) == (429, "wrong_keys")
        assert 0 < int(answer.headers["retry-after"]) <= 60


def test_a_revoked_key_is_refused_at_once_and_a_rotated_one_after_its_grace(serving: Any, new_key: Any) -> None:
    admin = new_key(role="admin")
    with serving() as server, server.client(admin.text) as client:
        other = client.post("/api/keys", json={"name": "other", "role": "read"}).json()
        headers = {"X-Session-API-Key": other["key"]}
        assert client.get("/api/conversations/search", headers=headers).status_code == 200
        new = client.post(f"/api/keys/{other['id']}/rotate", json={"grace_seconds": 0}).json()
        assert client.get("/api/conversations/search", headers=headers).status_code == 401
        headers = {"X-Session-API-Key": new["key"]}
        assert client.get("/api/conversations/search", headers=headers).status_code == 200
        assert client.delete(f"/api/keys/{new['id']}").status_code == 200
        assert client.get("/api/conversations/search", headers=headers).status_code == 401
        assert client.delete(f"/api/keys/{new['id']}").status_code == 404


def test_roles_and_scopes(serving: Any, new_key: Any) -> None:
    reader = new_key(role="read")
    filer = new_key(role="write", scopes=["files"])
    writer = new_key(role="write", scopes=["conversations"])
    with serving() as server, server.client() as client:

        def ask(key: NewKey, method: str, path: str, **options: Any) -> int:
            return client.request(method, path, headers={"X-Session-API-Key": key.text}, **options).status_code

        assert ask(reader, "POST", "/api/conversations", json={}) == 403
        assert ask(reader, "GET", "/api/conversations/search") == 200
        assert ask(filer, "GET", "/api/conversations/search") == 403
        assert ask(filer, "GET", "/api/file/list", params={"path": "."}) == 200
        assert ask(writer, "POST", "/api/conversations", json={}) == 201
        assert ask(writer, "GET", "/api/keys") == 403
        prompt = {"agent": {"system_prompt_path": "/etc/passwd"}}
        assert ask(writer, "POST", "/api/conversations", json=prompt) == 403
        elsewhere = {"agent": {"model": "openai:x", "base_url": "http://169.254.169.254/"}}
        assert ask(writer, "POST", "/api/conversations", json=elsewhere) == 403
        outside = {"workspace": {"working_dir": "/etc"}}
        assert ask(writer, "POST", "/api/conversations", json=outside) == 403
        assert ask(writer, "POST", "/api/conversations", json={"workspace": {"working_dir": "../other"}}) == 403


def test_a_key_makes_no_wider_one(serving: Any, new_key: Any) -> None:
    admin = new_key(role="admin", scopes=["conversations"])
    with serving() as server, server.client(admin.text) as client:
        wider = client.post("/api/keys", json={"name": "n", "role": "read", "scopes": ["files"]})
        assert wider.status_code == 403
        same = client.post("/api/keys", json={"name": "n", "role": "admin"})
        assert same.status_code == 201
        assert client.get("/api/keys").json()[0]["scopes"] == ["conversations"]


def test_what_is_anothers_is_not_there(two_tenants: Any) -> None:
    ours, theirs, id = two_tenants
    assert theirs.get("/api/conversations/search").json()["items"] == []
    assert theirs.get("/api/conversations/count").json() == 0
    assert theirs.get("/api/conversations", params={"ids": [id]}).json() == [None]
    own = theirs.post("/api/conversations", json={}).json()["id"]
    event = ours.get(f"/api/conversations/{id}/events/search").json()["items"][0]["id"]
    message = {"content": "x"}
    for method, path, body in [
        ("GET", f"/api/conversations/{id}", None),
        ("PATCH", f"/api/conversations/{id}", {"title": "x"}),
        ("DELETE", f"/api/conversations/{id}", None),
        ("POST", f"/api/conversations/{id}/fork", {}),
        ("GET", f"/api/conversations/{id}/lineage", None),
        ("GET", f"/api/conversations/{id}/turns", None),
        ("GET", f"/api/conversations/{own}/compare/{id}", None),
        ("GET", f"/api/conversations/{id}/compare/{own}", None),
        ("POST", f"/api/conversations/{own}/graft", {"source": id, "summary": "x"}),
        ("POST", f"/api/conversations/{own}/repeat", {"conversation": id, "turn": 1}),
        ("POST", f"/api/conversations/{id}/repeat", {"turn": 1}),
        ("GET", f"/api/conversations/{id}/events/search", None),
        ("GET", f"/api/conversations/{id}/events/stream", None),
        ("GET", f"/api/conversations/{own}/events/{event}", None),
        ("POST", f"/api/conversations/{own}/fork", {"from_event_id": event}),
        ("POST", f"/api/conversations/{id}/events", message),
        ("POST", f"/api/conversations/{id}/run", None),
        ("POST", f"/api/conversations/{id}/secrets", {"secrets": {"A": "12345678"}}),
        ("GET", f"/api/conversations/{id}/file/list?path=.", None),
        ("POST", f"/api/conversations/{id}/bash/start_bash_command", {"command": "id"}),
    ]:
        answer = theirs.request(method, path, json=body) if body is not None else theirs.request(method, path)
        assert answer.status_code == 404, (method, path, answer.text)
        assert "secret plan" not in answer.text
    for path in ("/api/conversations", f"/api/conversations/{own}/fork"):
        answer = theirs.post(path, json={"id": id})
        assert answer.status_code == 409, answer.text
    assert ours.get(f"/api/conversations/{id}").json()["head"] == 1


def test_a_tenants_files_are_its_own(two_tenants: Any) -> None:
    ours, theirs, _ = two_tenants
    sent = ours.post("/api/file/upload", params={"path": "a/b.txt"}, files={"file": ("b.txt", b"data")})
    assert sent.json() == {"success": True, "file_size": 4}
    assert ours.get("/api/file/download", params={"path": "a/b.txt"}).content == b"data"
    listed = ours.get("/api/file/list", params={"path": "a"}).json()["items"]
    assert [item["kind"] for item in listed] == ["file"]
    for path in ("../red/a/b.txt", listed[0]["path"], "/etc/passwd"):
        assert theirs.get("/api/file/download", params={"path": path}).status_code == 403
    assert theirs.get("/api/file/download", params={"path": "a/b.txt"}).status_code == 404


def test_the_same_idempotency_key_of_two_tenants_makes_two(two_tenants: Any) -> None:
    ours, theirs, _ = two_tenants
    ids = [
        each.post("/api/conversations", json={}, headers={"Idempotency-Key": "k"}).json()["id"]
        for each in (ours, theirs)
    ]
    assert ids[0] != ids[1]


def test_the_same_request_twice_makes_one_key_whose_text_is_kept_nowhere(
    two_tenants: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs, _ = two_tenants
    body, once = {"name": "ci", "role": "write", "expires_seconds": 3600}, {"Idempotency-Key": "k"}

    def ask(path: str, body: dict[str, Any], client: httpx2.Client = ours) -> tuple[int, Any, str | None]:
        answer = client.post(path, json=body, headers=once)
        return answer.status_code, answer.json(), answer.headers.get("idempotency-replayed")

    status, made, _ = ask("/api/keys", body)
    assert (status, ask("/api/keys", body)) == (201, (200, made, "true"))
    assert ask("/api/keys", body | {"name": "other"})[0] == 409
    assert ask("/api/keys", body, theirs)[1]["key"] != made["key"], "another tenant's is another one"
    assert ours.get("/api/conversations/search", headers={"X-Session-API-Key": made["key"]}).status_code == 200
    rotate = f"/api/keys/{made['id']}/rotate"
    status, new, _ = ask(rotate, {})
    assert (status, ask(rotate, {})) == (201, (200, new, "true"))
    assert len(ours.get("/api/keys").json()) == 3, "the first one, and these two"
    hook = {"url": "https://93.184.215.14/x", "kinds": ["run.finished"]}
    status, told, _ = ask("/api/webhooks", hook)
    assert (status, ask("/api/webhooks", hook)) == (201, (200, told, "true"))
    assert ask("/api/webhooks", hook | {"url": "https://93.184.215.14/y"})[0] == 409
    kept = b"".join(path.read_bytes() for path in settings.home.rglob("*") if path.is_file())
    assert not [secret for secret in (made["key"], new["key"], told["secret"]) if secret.encode() in kept]
    for module in ("auth.keys", "outbound.webhooks"):
        monkeypatch.setattr(f"bough.server.{module}.REPEATED_SECONDS", -1)
    assert [ask(*again)[0] for again in (("/api/keys", body), (rotate, {}), ("/api/webhooks", hook))] == [409] * 3


def test_a_key_cannot_rotate_one_that_may_do_more(serving: Any, new_key: Any) -> None:
    wide, narrow = new_key(role="admin"), new_key(role="admin", scopes=["conversations"])
    with serving() as server, server.client(narrow.text) as client:
        assert client.post(f"/api/keys/{wide.id}/rotate").status_code == 403
        assert client.post(f"/api/keys/{narrow.id}/rotate").status_code == 201


def test_an_unsafe_bind_is_refused() -> None:
    for host in ("0.0.0.0", "192.0.2.1", "::", "example.org"):
        with pytest.raises(PermissionDenied):
            require_safe_bind(host, has_keys=False, unsafe=False)
        require_safe_bind(host, has_keys=True, unsafe=False)
        require_safe_bind(host, has_keys=False, unsafe=True)
    for host in ("127.0.0.1", "::1", "localhost"):
        require_safe_bind(host, has_keys=False, unsafe=False)


def test_requests_a_second_are_bounded(serving: Any) -> None:
    with serving(limits={"requests_per_second": 5}) as server, server.client() as client:
        answers = [client.get(f"/api/conversations/{uuid4()}") for _ in range(30)]
        assert {answer.status_code for answer in answers} == {404, 429}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert LOCAL not in refused.text
