"""Erasing over HTTP: a receipt, for the tenant's own conversations and the role admin only."""

from __future__ import annotations

from typing import Any

import pytest

from bough import Conversation
from bough.errors import BoughError, NotFound
from bough.types import new_id


def test_a_tenant_erases_its_own_conversations_only(serving: Any, new_key: Any) -> None:
    red, blue = (new_key(tenant=tenant, role="admin") for tenant in ("red", "blue"))
    writer = new_key(tenant="red", role="write")
    with serving() as server, server.client(red.text) as ours, server.client(blue.text) as theirs:
        path = f"/api/conversations/{ours.post('/api/conversations', json={'title': 'a'}).json()['id']}"
        fork = ours.post(f"{path}/fork", json={}).json()["id"]
        erase = {"params": {"mode": "erase"}}
        with server.client(writer.text) as client:
            assert client.delete(path, **erase).status_code == 403
        for _ in ("living", "a tombstone", "erased"):
            assert theirs.delete(path, **erase).status_code == 404
            answer = ours.delete(path, **erase).json()
            assert answer["erasure"]["forks"] == [fork]
            assert "owner" not in answer["erasure"]
        assert ours.delete(f"/api/conversations/{fork}").json() == {"success": True}
        assert theirs.delete(path, **erase).status_code == 404
        assert ours.delete(path, **erase).json() == answer, "the receipt outlives the row"


def test_an_erased_id_that_another_tenant_uses_is_not_erased_again(serving: Any, new_key: Any) -> None:
    red, blue = (new_key(tenant=tenant, role="admin") for tenant in ("red", "blue"))
    with serving() as server, server.client(red.text) as ours, server.client(blue.text) as theirs:
        id = ours.post("/api/conversations", json={}).json()["id"]
        path, erase = f"/api/conversations/{id}", {"params": {"mode": "erase"}}
        assert ours.delete(path, **erase).is_success
        assert theirs.post("/api/conversations", json={"id": id, "title": "blue's"}).is_success
        assert ours.delete(path, **erase).status_code == 404
        assert theirs.get(path).json()["title"] == "blue's"
        assert theirs.delete(path, **erase).is_success
        assert ours.delete(path, **erase).status_code == 404, "the receipt is blue's now"


def test_a_tenant_that_erases_again_leaves_the_operators_receipt_true(serving: Any, new_key: Any) -> None:
    red, operator = new_key(tenant="red", role="admin"), new_key(tenant="local", role="admin")
    with serving() as server, server.client(red.text) as ours, server.client(operator.text) as client:
        mine = client.post("/api/conversations", json={}).json()["id"]
        assert client.delete(f"/api/conversations/{mine}", params={"mode": "erase"}).json()["erasure"]["is_compacted"]
        id = ours.post("/api/conversations", json={}).json()["id"]
        ours.delete(f"/api/conversations/{id}", params={"mode": "erase"})
        first = client.delete(f"/api/conversations/{mine}", params={"mode": "erase"}).json()
        assert first["erasure"]["is_compacted"]


def test_a_program_erases_on_a_server(serving: Any, new_key: Any) -> None:
    keys = [new_key(tenant=tenant, role="admin") for tenant in ("local", "red")]
    with serving() as server:
        for key, is_operator in zip(keys, (True, False), strict=True):
            _erase_as(server, key, is_operator=is_operator)


def _erase_as(server: Any, key: Any, *, is_operator: bool) -> None:
    with server.client(key.text) as client:
        id = client.post("/api/conversations", json={}).json()["id"]
        there: Any = {"server": server.url, "api_key": key.text}
        receipt = Conversation.erase(id, **there)
        assert (str(receipt.id), receipt.is_compacted) == (id, is_operator), "a tenant does not make the others wait"
        assert Conversation.erase(id, **there) == receipt
        with pytest.raises(NotFound):
            Conversation.delete(new_id(), **there)
        with pytest.raises(BoughError, match="complete id"):
            Conversation.delete("abcd1234", **there)


def test_a_tree_is_erased_with_its_forks(serving: Any, new_key: Any) -> None:
    red, blue = (new_key(tenant=tenant, role="admin") for tenant in ("red", "blue"))
    with serving() as server, server.client(red.text) as ours, server.client(blue.text) as theirs:
        ids = [ours.post("/api/conversations", json={"title": "a"}).json()["id"]]
        ids += [ours.post(f"/api/conversations/{ids[-1]}/fork", json={}).json()["id"] for _ in range(2)]
        other = theirs.post("/api/conversations", json={}).json()["id"]
        path, erase = f"/api/conversations/{ids[0]}", {"mode": "erase", "forks": True}
        assert ours.delete(path, params={"forks": True}).status_code == 422
        assert theirs.delete(path, params=erase).status_code == 404
        assert ours.delete(path, params=erase, headers={"If-Match": '"99"'}).status_code == 412
        ours.delete(f"/api/conversations/{ids[1]}")
        receipt = Conversation.erase(ids[0], forks=True, server=server.url, api_key=red.text)
        assert [str(id) for id in receipt.conversations] == ids[2:]
        assert ours.get("/api/conversations/count").json() == 0
        assert theirs.get("/api/conversations/count").json() == 1
        assert ours.get(f"/api/conversations/{ids[2]}").status_code == 404
        assert theirs.get(f"/api/conversations/{other}").is_success
        assert Conversation.erase(ids[2], server=server.url, api_key=red.text) == receipt


def test_forks_of_a_deleted_conversation_are_erased_by_its_id(serving: Any, new_key: Any) -> None:
    key = new_key(tenant="red", role="admin")
    with serving() as server, server.client(key.text) as client:
        id = client.post("/api/conversations", json={}).json()["id"]
        fork = client.post(f"/api/conversations/{id}/fork", json={}).json()["id"]
        client.delete(f"/api/conversations/{id}")
        erasure = client.delete(f"/api/conversations/{id}", params={"mode": "erase", "forks": True}).json()["erasure"]
        assert (erasure["conversations"], erasure["forks"]) == ([fork], [])
        assert client.get("/api/conversations/count").json() == 0
