"""Conversations as files over HTTP: whole, signed, in quarantine, and never another tenant's."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.conversation.remote.remote import RemoteConversation
from bough.errors import PermissionDenied
from bough.events import open_store
from bough.guard import AlwaysConfirm
from bough.settings import Settings
from bough.testing import Answer, ServerCall

LISTING = Answer(calls=(ServerCall(tool="list_files", arguments={}, id="c1"),))


def talk(client: Any, text: str, **given: Any) -> str:
    body = {"initial_message": text, "run": True, **given}
    id = client.post("/api/conversations", json=body).json()["id"]
    assert client.post(f"/api/conversations/{id}/run", json={"wait": 60}).status_code in (200, 409)
    while client.get(f"/api/conversations/{id}").json()["execution_status"] == "running":
        client.post(f"/api/conversations/{id}/run", json={"wait": 60})
    return id


def export(client: Any, id: str, **body: Any) -> bytes:
    answer = client.post(f"/api/conversations/{id}/export", json=body)
    assert answer.status_code == 200, answer.text
    assert "attachment" in answer.headers["content-disposition"]
    return answer.content


def send(client: Any, bundle: bytes, **query: Any) -> Any:
    return client.post("/api/conversations/import", content=bundle, params=query)


def test_a_conversation_is_written_in_each_form(serving: Any) -> None:
    with serving("an answer") as server, server.client() as client:
        id = talk(client, "a question")
        head = client.get(f"/api/conversations/{id}").json()["head"]
        lines = [json.loads(line) for line in export(client, id, format="jsonl").splitlines()]
        assert [line["seq"] for line in lines] == list(range(head))
        document = export(client, id, format="md").decode()
        assert "a question" in document
        assert "an answer" in document
        header, *_, trailer = export(client, id).splitlines()
        assert json.loads(header)["conversation"]["id"] == id
        assert json.loads(trailer)["events"] == head
        assert client.post(f"/api/conversations/{uuid4()}/export").status_code == 404


def test_a_bundle_of_elsewhere_needs_consent_and_stays_apart_until_it_is_adopted(serving: Any, tmp_path: Path) -> None:
    bundle, id = asyncio.run(make_bundle(tmp_path / "elsewhere"))
    with serving("done", tools="write") as server, server.client() as client:
        refused = send(client, bundle)
        assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
        signer = refused.json()["details"]["public_key"]
        assert client.get(f"/api/conversations/{id}").status_code == 404, "nothing was written"
        assert send(client, bundle, signed_by="0" * 64).status_code == 403
        made = send(client, bundle, signed_by=signer)
        assert made.status_code == 201, made.text
        info = made.json()
        assert info["id"] == id
        assert info["workspace"]["working_dir"].endswith(f"/local/{id}"), "never the folder that the sender named"
        again = send(client, bundle, accept_unknown=True)
        assert (again.status_code, again.json()["head"]) == (200, info["head"]), "twice adds nothing"
        with_policy = {"policy": {"kind": "AlwaysConfirm"}}
        adopted = client.post(f"/api/conversations/{id}/adopt", json=with_policy)
        assert adopted.json()["confirmation_policy"] == {"kind": "AlwaysConfirm"}
        assert client.post(f"/api/conversations/{id}/adopt").status_code == 409
        assert client.post(f"/api/conversations/{talk(client, 'mine')}/adopt").status_code == 409


async def make_bundle(home: Path, *, id: Any = None, **agent: Any) -> tuple[bytes, str]:
    """Return a bundle that a store elsewhere signed, of a conversation that a person has begun."""
    home.mkdir()
    settings = Settings.load(home=home, env={}, cwd=home)
    spec = AgentSpec(**{"name": "theirs", "model": "offline", "skills": (), "workspace_access": "write", **agent})
    store = await open_store(f"sqlite:///{home}/log.db")
    made = await AsyncConversation.create(
        spec, workspace=home, store=store, settings=settings, id=id, confirmation_policy=AlwaysConfirm()
    )
    async with made as conversation:
        await conversation.send_message("from elsewhere")
    file = io.BytesIO()
    await store.export(made.id, file)
    await store.aclose()
    return file.getvalue(), str(made.id)


def test_ids_of_another_tenant_are_a_conflict_and_nothing_is_written(serving: Any, new_key: Any) -> None:
    red, blue = (new_key(tenant=tenant, role="admin") for tenant in ("red", "blue"))
    with serving("one", "two") as server, server.client(red.text) as ours, server.client(blue.text) as theirs:
        source = talk(ours, "a secret of red")
        fork = ours.post(f"/api/conversations/{source}/fork", json={}).json()["id"]
        before = export(ours, source, format="jsonl")
        for id in (source, fork):  # a fork carries the id of what it descends from
            answer = send(theirs, export(ours, id))
            assert (answer.status_code, answer.json()["code"]) == (409, "conflict"), answer.text
            assert "red" not in answer.text
            assert theirs.get(f"/api/conversations/{id}").status_code == 404
        assert theirs.get("/api/conversations/count").json() == 0
        again = send(ours, export(ours, source))
        assert again.status_code == 200, again.text
        assert export(ours, source, format="jsonl") == before
        assert ours.delete(f"/api/conversations/{source}").status_code == 200
        again = send(ours, export(ours, fork))
        assert again.status_code == 200, (again.text, "the tombstone is one's own")


@pytest.mark.parametrize("role", ["write", "admin"])
def test_nothing_in_a_bundle_widens_what_its_tenant_may(serving: Any, new_key: Any, tmp_path: Path, role: str) -> None:
    writer = new_key(tenant="red", role=role)
    given: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1", "skill_roots": [tmp_path], "api_key": "k"}
    bundle, _ = asyncio.run(make_bundle(tmp_path / "wide", model="openai:theirs", **given))
    limits = {"red": {"access": "read"}}
    with serving(tenants=limits) as server, server.client(writer.text) as client:
        info = send(client, bundle, accept_unknown=True).json()
        assert info["spec"]["workspace_access"] == "read"
        adopted = client.post(f"/api/conversations/{info['id']}/adopt")
        assert (adopted.status_code, adopted.json()["code"]) == (403, "permission_denied"), adopted.text
        assert "/model" in adopted.json()["hint"]
        assert not info["spec"].get("skill_roots"), "only the operator names files of the server"
        with server.client() as stranger:
            assert send(stranger, bundle, accept_unknown=True).status_code == 401
        outside = send(client, bundle, accept_unknown=True, workspace="../blue")
        assert outside.status_code == 403


@pytest.mark.parametrize("content", [b"", b"{}", b"nonsense\n", b"\xff\xfe", b'{"format":"bough-bundle"}\n'])
def test_what_is_no_bundle_is_refused(serving: Any, content: bytes) -> None:
    with serving() as server, server.client() as client:
        answer = send(client, content, accept_unknown=True)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input"), answer.text


def test_a_signed_bundle_whose_events_are_no_conversation_is_refused(serving: Any, tmp_path: Path) -> None:
    bundle, id = asyncio.run(make_bundle(tmp_path / "strange"))
    strange = resign(
        bundle, lambda line: line.replace('\\"policies\\":{', '\\"policies\\":{\\"limits\\":7,\\"was\\":{')
    )
    assert strange != bundle
    with serving() as server, server.client() as client:
        answer = send(client, strange, accept_unknown=True)
        assert answer.status_code == 422, answer.text
        assert client.get(f"/api/conversations/{id}").status_code == 404


def resign(bundle: bytes, change: Any) -> bytes:
    """Return a bundle with changed lines, signed by a key of the moment."""
    import hashlib

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    *lines, trailer = bundle.decode().splitlines()
    changed = "".join(change(line) + "\n" for line in lines).encode()
    digest, key = hashlib.sha256(changed).digest(), Ed25519PrivateKey.generate()
    signed = json.loads(trailer) | {
        "sha256": digest.hex(),
        "public_key": key.public_key().public_bytes_raw().hex(),
        "signature": key.sign(digest).hex(),
    }
    return changed + json.dumps(signed).encode() + b"\n"


@pytest.mark.anyio
async def test_the_remote_client_carries_a_conversation_from_server_to_server(
    serving: Any, settings: Settings, tmp_path: Path
) -> None:
    file, kept = io.BytesIO(), io.BytesIO()
    with serving("an answer") as server:
        async with await AsyncConversation.create(server=server.url) as source:
            assert isinstance(source, RemoteConversation)
            await source.send_message("a question")
            await source.run()
            await source.export(file)
            await source.export(kept, format="md")
            id = source.id
    assert b"a question" in kept.getvalue()
    elsewhere, _ = await make_bundle(tmp_path / "other")
    with serving("more", store=f"sqlite:///{tmp_path}/second.db") as second:
        with pytest.raises(PermissionDenied):
            await RemoteConversation.import_(io.BytesIO(elsewhere), server=second.url)
        file.seek(0)
        async with await RemoteConversation.import_(file, server=second.url) as moved:
            assert (moved.id, moved.state.quarantined, moved.state.output) == (id, True, "an answer")
            await moved.adopt(policy=AlwaysConfirm())
            assert not moved.state.quarantined
            async with await moved.fork(agent=AgentSpec(name="default")) as fork:  # its model is where it came from
                await fork.send_message("and now?")
                assert (await fork.run()).output == "more"
