"""Every route of the OpenAPI document with another tenant's ids in every place: 404 or 403, not a word of theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2

METHODS = ("get", "post", "put", "patch", "delete")
LISTS = ("/api/conversations", "/api/conversations/search", "/api/conversations/count")
"""Given another tenant's ids they find nothing, which looks as if there were none."""

WORD = "marmalade"
"""In every text that the other tenant has."""


class Place(NamedTuple):
    """A route of the document."""

    method: str
    path: str
    about: dict[str, Any]


def places(document: dict[str, Any]) -> Iterator[Place]:
    """Yield the routes of an OpenAPI document."""
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield Place(method, path, item[method])


class Filling:
    """Fills parameters and bodies of a document with the least that is valid, and ids with given ones.

    Args:
        ids: By the name of a parameter or field; a UUID that has none is the conversation's.
    """

    def __init__(self, document: dict[str, Any], ids: dict[str, str]) -> None:
        self._schemas = document["components"]["schemas"]
        self._ids = ids

    def path(self, place: Place) -> str:
        """Return the path of a route."""
        names = {each["name"] for each in place.about.get("parameters", ()) if each["in"] == "path"}
        return place.path.format(**{name: self._ids.get(name, self._ids["id"]) for name in names})

    def query(self, place: Place) -> dict[str, Any]:
        """Return the required query parameters, and those that are ids."""
        found: dict[str, Any] = {}
        for each in place.about.get("parameters", ()):
            if each["in"] == "query" and (each.get("required") or each["name"] in self._ids):
                found[each["name"]] = self._value(each["schema"], each["name"])
        return found

    def body(self, place: Place) -> dict[str, Any]:
        """Return the options of a request that carry its body; none where none is needed."""
        content = place.about.get("requestBody", {}).get("content", {})
        if "multipart/form-data" in content:
            return {"files": {"file": ("a", b"a")}}
        if "application/json" not in content:
            return {}
        return {"json": self._value(content["application/json"]["schema"], "")}

    def _value(self, schema: dict[str, Any], name: str) -> Any:
        if "$ref" in schema:
            return self._value(self._schemas[schema["$ref"].rsplit("/", 1)[1]], name)
        for options in (schema.get("anyOf"), schema.get("oneOf"), schema.get("allOf")):
            if options:
                return self._value(options[0], name)
        if "const" in schema or "enum" in schema:
            return schema.get("const", schema.get("enum", [None])[0])
        match schema.get("type"):
            case "object":
                fields = schema.get("properties", {})
                return {field: self._value(fields[field], field) for field in schema.get("required", ())}
            case "array":
                return [self._value(schema.get("items", {}), name)] * max(schema.get("minItems", 0), 0)
            case "string":
                return self._ids["id"] if schema.get("format") == "uuid" else self._ids.get(name, "offline")
            case "integer" | "number":
                return max(schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
            case "boolean":
                return True
            case _:
                return {"kind": "NeverConfirm"} if name == "policy" else None


def make_theirs(client: httpx2.Client) -> dict[str, str]:
    """Make one of everything for a tenant, and return the ids."""
    body = {"title": WORD, "tags": {WORD: WORD}, "initial_message": WORD}
    id = client.post("/api/conversations", json=body).json()["id"]
    client.post(f"/api/conversations/{id}/run", json={"wait": 60})
    task = client.post("/api/tasks", json={"input": WORD}).json()["id"]
    event = client.get(f"/api/conversations/{id}/events/search").json()["items"][0]["id"]
    command = client.post("/api/bash/start_bash_command", json={"command": "true"}).json()["id"]
    key = client.post("/api/keys", json={"name": WORD}).json()["id"]
    return {
        "id": id, "other": id, "source": id, "conversation": id, "root": id, "parent": id, "ids": id, "task": task,
        "event_id": event, "from_event_id": event, "key": key, "key_id": key, "command": command, "command_id": command,
        "command_id__eq": command, "path": f"../red/{id}", "sha256": sha256(WORD.encode()).hexdigest(),
    }  # fmt: skip


def test_no_route_gives_anything_to_another_tenant(serving: Any, new_key: Any) -> None:
    red, blue = (new_key(tenant=tenant, role="admin") for tenant in ("red", "blue"))
    with serving(WORD, WORD) as server, server.client(red.text) as client, server.client(blue.text) as other:
        document = other.get("/openapi.json").json()
        theirs = make_theirs(client)
        before = client.get(f"/api/conversations/{theirs['id']}").json()
        filling, wrong, walked = Filling(document, theirs), list[str](), 0
        for place in places(document):
            if "/stream" in place.path or place.path in ("/api/updates", "/metrics"):
                continue  # streams are followed below and in test_updates; no id can stand in the metrics
            options = {"params": filling.query(place), **filling.body(place)}
            answer = other.request(place.method.upper(), filling.path(place), **options)
            named = "{" in place.path or any(name in theirs for name in options["params"])
            walked += named
            fine = (403, 404) if named and place.path not in LISTS else (200, 201, 204, 401, 403, 404, 422, 501)
            if answer.status_code not in fine or (WORD in answer.text and WORD not in json.dumps(options, default=str)):
                wrong.append(f"{place.method} {place.path}: {answer.status_code} {answer.text[:200]}")
        assert not wrong, "\n".join(wrong)
        assert walked >= 40, "the document has the routes that there are"
        stream = f"/api/conversations/{theirs['id']}/events/stream"
        assert other.get(stream).status_code == 404
        after = client.get(f"/api/conversations/{theirs['id']}").json()
        assert after == before, "nothing of theirs was changed"
        assert client.get(f"/api/tasks/{theirs['task']}").status_code == 200


def test_an_id_that_is_taken_is_refused_with_the_same_message_in_every_tenant(serving: Any, new_key: Any) -> None:
    red, blue = (new_key(tenant=tenant, role="admin") for tenant in ("red", "blue"))
    with serving(WORD, WORD, WORD) as server, server.client(red.text) as client, server.client(blue.text) as other:
        theirs, ours = make_theirs(client), other.post("/api/conversations", json={"initial_message": "x"}).json()["id"]
        run = client.get(f"/api/conversations/{theirs['id']}").json()["run"]["task"]
        own_run = other.post(f"/api/conversations/{ours}/run", json={"wait": 60}).json()["task"]
        event = other.get(f"/api/conversations/{ours}/events/search").json()["items"][0]["id"]
        for path, body, taken in [
            ("/api/conversations", {}, (theirs["id"], ours)),
            ("/api/tasks", {"input": "x"}, (theirs["id"], ours)),
            ("/api/tasks", {"input": "x"}, (run, own_run)),
            (f"/api/conversations/{ours}/fork", {}, (theirs["id"], ours)),
            (f"/api/conversations/{ours}/events", {"content": "y"}, (theirs["event_id"], event)),
        ]:
            answers = [other.post(path, json={**body, "id": id}) for id in taken]
            assert {answer.status_code for answer in answers} == {409}, answers[0].text
            problems = [{**answer.json(), "instance": ""} for answer in answers]
            assert problems[0] == problems[1], path


def test_what_is_another_tenants_looks_like_what_is_not_there(serving: Any, new_key: Any) -> None:
    red, blue = (new_key(tenant=tenant, role="admin") for tenant in ("red", "blue"))
    with serving(WORD, WORD) as server, server.client(red.text) as client, server.client(blue.text) as other:
        theirs, ours = make_theirs(client), other.post("/api/conversations", json={}).json()["id"]
        for path, id in [
            ("/api/conversations/{}", theirs["id"]),
            ("/api/conversations/{}/events/search", theirs["id"]),
            (f"/api/conversations/{ours}/compare/{{}}", theirs["id"]),
            (f"/api/conversations/{ours}/events/{{}}", theirs["event_id"]),
            ("/api/tasks/{}", theirs["task"]),
            ("/api/tasks?root={}", theirs["id"]),
            ("/api/bash/bash_events/search?command_id__eq={}", theirs["command"]),
        ]:
            nobodys = str(uuid4())
            answers = [other.get(path.format(each)).json() | {"instance": ""} for each in (id, nobodys)]
            texts = [json.dumps(answer).replace(each, "") for answer, each in zip(answers, (id, nobodys), strict=True)]
            assert answers[0]["status"] == 404
            assert texts[0] == texts[1], path
