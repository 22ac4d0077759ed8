"""Sessions of browsers: signed in with a key, with its rights, until one of several ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.conftest import Running

from bough.server.auth.keys import NewKey

SITE = {"Sec-Fetch-Site": "same-origin"}


def sign_in(client: httpx2.Client, key: str) -> dict[str, Any]:
    response = client.post("/auth/session", json={"key": key})
    assert response.status_code == 201, response.text
    return response.json()


def age_sessions(server: Running, minutes: int) -> None:
    """Let the last use of all sessions be some minutes ago."""
    used = int((datetime.now(UTC) - timedelta(minutes=minutes)).timestamp() * 1_000_000)
    path = Path(server.app.state.services.settings.store.removeprefix("sqlite:///"))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("update server_key set used = ?, created = ? where parent is not null", (used, used))
    server.call(server.app.state.services.keys.forget)


def test_a_session_has_the_rights_of_its_key_and_ends_with_a_sign_out(
    serving: Any, new_key: Callable[..., NewKey]
) -> None:
    key = new_key("laptop", role="read")
    with serving() as server, server.client() as client:
        assert client.get("/api/conversations/search").status_code == 401
        info = sign_in(client, key.text)
        assert (info["tenant"], info["name"], info["role"]) == ("local", "laptop", "read")
        [cookie] = client.cookies.jar
        assert (cookie.name, cookie.path, cookie.secure) == ("bough_session", "/", False)
        assert cookie.has_nonstandard_attr("HttpOnly") and cookie.get_nonstandard_attr("SameSite") == "strict"
        assert client.get("/api/conversations/search").status_code == 200
        assert client.get("/auth/session").json()["csrf_token"] == info["csrf_token"]
        headers = SITE | {"X-CSRF-Token": info["csrf_token"]}
        assert client.post("/api/conversations", json={}, headers=headers).status_code == 403, "the key only reads"
        text = cookie.value
        assert client.delete("/auth/session", headers=headers).status_code == 204
        assert list(client.cookies.jar) == []
        assert client.get("/api/conversations/search", headers={"Cookie": f"bough_session={text}"}).status_code == 401


def test_a_change_needs_the_token_and_a_page_of_this_server(serving: Any, new_key: Callable[..., NewKey]) -> None:
    key = new_key()
    with serving() as server, server.client() as client:
        token = {"X-CSRF-Token": sign_in(client, key.text)["csrf_token"]}
        refused: list[dict[str, str]] = [
            {}, SITE, SITE | {"X-CSRF-Token": "0" * 64}, token, token | {"Sec-Fetch-Site": "cross-site"},
            token | {"Sec-Fetch-Site": "same-site"}, token | {"Origin": "http://127.0.0.1:1"},
        ]  # fmt: skip
        for headers in refused:
            response = client.post("/api/conversations", json={}, headers=headers)
            assert (response.status_code, response.json()["code"]) == (403, "permission_denied"), headers
        assert client.post("/api/conversations", json={}, headers=token | SITE).status_code == 201
        assert client.post("/api/conversations", json={}, headers=token | {"Origin": server.url}).status_code == 201
        both = {"X-Session-API-Key": key.text}
        assert client.post("/api/conversations", json={}, headers=both).status_code == 201, "a key needs no token"
        for path in ("/mcp", "/a2a/default/v1/card"):
            assert client.get(path).status_code != 200, "cookies do not open the protocols of programs"


def test_a_session_ends_when_it_is_idle_or_its_key_ends(serving: Any, new_key: Callable[..., NewKey]) -> None:
    key = new_key()
    with serving() as server, server.client() as client, server.client(key.text) as admin:
        sign_in(client, key.text)

        age_sessions(server, 29)
        assert client.get("/auth/session").status_code == 200
        age_sessions(server, 31)
        assert client.get("/auth/session").status_code == 401
        client.cookies.clear()
        sign_in(client, key.text)
        assert client.get("/auth/session").status_code == 200
        assert [info["name"] for info in admin.get("/api/keys").json()] == ["k"], "sessions are not keys of a list"
        assert admin.delete(f"/api/keys/{key.id}").status_code == 200
        assert client.get("/auth/session").status_code == 401


def test_what_is_not_a_key_opens_no_session(serving: Any, new_key: Callable[..., NewKey]) -> None:
    with serving() as server, server.client() as client:
        refused = client.post("/auth/session", json={"key": "bough_none"})
        assert (refused.status_code, refused.json()["detail"]) == (409, "this server needs no key")
    key = new_key()
    with serving() as server, server.client() as client:
        answers = [client.post("/auth/session", json={"key": text}) for text in ("x", key.text[:-1] + "_", "bough_0")]
        assert {(answer.status_code, answer.json()["detail"]) for answer in answers} == {(401, "the key is not valid")}
        sign_in(client, key.text)
        [cookie] = client.cookies.jar
        again = client.post("/auth/session", json={"key": cookie.value})
        assert again.status_code == 403, "a session opens no session"
        far = client.post("/auth/session", json={"key": key.text}, headers={"Host": "bough.example"})
        assert far.status_code == 403


@pytest.mark.parametrize("host", ["agents.example"])
def test_signing_in_over_a_network_needs_https(serving: Any, new_key: Callable[..., NewKey], host: str) -> None:
    key = new_key()
    with serving(hosts=(host,), trusted_proxies=("127.0.0.1",)) as server, server.client() as client:
        plain = client.post("/auth/session", json={"key": key.text}, headers={"Host": host})
        assert (plain.status_code, plain.json()["detail"]) == (403, "signing in needs HTTPS")
        forwarded = {"Host": host, "X-Forwarded-Proto": "https"}
        response = client.post("/auth/session", json={"key": key.text}, headers=forwarded)
        assert response.status_code == 201, response.text
        assert response.headers["Set-Cookie"].startswith("__Host-bough=")
        assert "Secure" in response.headers["Set-Cookie"] and "Domain" not in response.headers["Set-Cookie"]
