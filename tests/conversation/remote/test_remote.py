"""What only a conversation of a server has: keys, a network that fails, and things that cannot be said over it."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path
from typing import Any, assert_type
from uuid import uuid4

import pytest
from tests.server.peer.relay import relayed

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, Conversation, Delta
from bough.conversation.log.condenser import KeepFirstCondenser, SummarizingCondenser
from bough.conversation.remote.remote import RemoteConversation
from bough.conversation.remote.transport import make_error
from bough.errors import (
    OUTCOMES,
    Conflict,
    InvalidInput,
    NotFound,
    NotSupported,
    Unauthenticated,
    Unavailable,
)
from bough.events.model import ImagePart, TextPart, UserMessage
from bough.events.record import StoredEvent
from bough.guard import AllowList, AlwaysConfirm, Hook, HookKind, HookSet, Limits, NeverConfirm, Secrets
from bough.testing.openai_server import Received, Reply

pytestmark = pytest.mark.anyio


def test_it_has_the_methods_of_a_local_one_with_the_same_parameters() -> None:
    local, remote = public_members(AsyncConversation), public_members(RemoteConversation)
    assert not local.keys() - remote.keys()
    assert remote.keys() - local.keys() == {"refresh", "server"}
    of_any_store = {"create", "open", "list", "search", "delete", "erase", "export", "import_"}
    for name in local.keys() - of_any_store:  # AsyncConversation's take `server=` and call these
        assert parameters_of(remote[name]) == parameters_of(local[name]), name


async def test_the_type_of_what_server_returns_is_known_to_a_type_checker(served: Any) -> None:
    with served() as at:
        async with await AsyncConversation.create(AgentSpec(name="default"), server=at.server.url) as conversation:
            assert_type(conversation, RemoteConversation[str])
        async with await AsyncConversation.open(conversation.id, server=at.server.url) as opened:
            assert_type(opened, RemoteConversation[Any])
            assert opened.agent.name == "default"


async def test_images_are_sent_with_a_message_and_what_cannot_be_sent_is_refused(served: Any, tmp_path: Path) -> None:
    image = tmp_path / "dot.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n" + b"a dot")
    with served("a dot") as at:
        async with await at.start() as conversation:
            await conversation.send_message("what is it?", images=[image])
            assert (await conversation.run()).output == "a dot"
            (message,) = [stored.event async for stored in conversation.events if stored.kind == "UserMessage"]
            assert isinstance(message, UserMessage)
            assert [type(part) for part in message.content] == [TextPart, ImagePart]
            unsupported: list[dict[str, Any]] = [{"files": [b"a,b"]}, {"images": ["https://example.org/a.png"]}]
            for inputs in unsupported:
                with pytest.raises(NotSupported):
                    await conversation.send_message("and this?", **inputs)
            with pytest.raises(NotSupported):
                await conversation.prepare_message("and this?")


async def test_the_address_of_a_model_is_sent_to_the_server(served: Any) -> None:
    with served("one") as at:
        async with await at.start() as conversation:
            await conversation.set_model("openai:other", base_url="http://127.0.0.1:1/v1")
            assert conversation.agent.base_url == "http://127.0.0.1:1/v1"
            assert conversation.agent.model == "openai:other"


def public_members(cls: type) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers(cls) if not name.startswith("_")}


def parameters_of(member: Any) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(member).parameters.values() if inspect.isfunction(member) else ()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]


async def test_a_lost_connection_stops_nothing_and_no_event_comes_twice(served: Any) -> None:
    reached, going = threading.Event(), threading.Event()

    def wait(received: Received) -> Reply:
        reached.set()
        going.wait(60)
        return "answered meanwhile"

    with served(wait) as at, relayed(at.server.port) as relay:
        url = f"http://127.0.0.1:{relay.port}"
        async with await AsyncConversation.create(server=url) as conversation:
            await conversation.send_message("go")
            heard: list[Any] = []
            run = asyncio.create_task(conversation.run(on_event=heard.append))
            await asyncio.to_thread(reached.wait, 60)
            assert relay.cut() > 0
            going.set()
            result = await run
            assert result.output == "answered meanwhile"
            places = [update.seq for update in heard if isinstance(update, StoredEvent)]
            assert places == list(range(result.start, result.stop))


async def test_what_cannot_be_said_over_http_is_refused_before_anything_is_sent() -> None:
    nowhere = "http://127.0.0.1:9"  # whoever sends something there is Unavailable

    def tool() -> str:
        """Do something."""
        return ""

    for given in (
        {"agent": AgentSpec(tools=[tool])},
        {"agent": AgentSpec(output_type=int)},
        {"store": "memory:"},
        {"hooks": HookSet((Hook(kind=HookKind.STOP, command="true"),))},
        {"condenser": SummarizingCondenser(model="openai:gpt-5")},
        {"limits": Limits(steps=1, per="conversation")},
    ):
        with pytest.raises(NotSupported) as refused:
            await AsyncConversation.create(**{"server": nowhere, **given})
        assert refused.value.hint
    with pytest.raises(NotSupported):
        await AsyncConversation.open(uuid4(), server=nowhere, agent="offline")
    with pytest.raises(InvalidInput, match="complete id"):
        await AsyncConversation.open("-", server=nowhere)
    with pytest.raises(InvalidInput, match="address"):
        await AsyncConversation.open(uuid4(), server="localhost:8000")


async def test_what_belongs_to_this_process_is_not_there(served: Any) -> None:
    with served() as at:
        async with await at.start() as conversation:
            for name in ("executor", "store", "settings", "skills"):
                with pytest.raises(NotSupported):
                    getattr(conversation, name)
            for doing in (
                conversation.append(),
                conversation.run(limits=Limits(steps=1)),
                conversation.fork(ephemeral=True),
            ):
                with pytest.raises(NotSupported):
                    await doing


async def test_registered_agents_secrets_and_workspaces_are_the_servers(served: Any) -> None:
    with served() as at:
        given = {"agent": AgentSpec(name="default"), "secrets": Secrets({"TOKEN": lambda: "a-long-secret"})}
        async with await at.start(**given, workspace="sub/folder") as conversation:
            assert conversation.agent.name == "default"
            assert conversation.workspace.parts[-2:] == ("sub", "folder")
            assert "TOKEN" in conversation.state.policies["secrets"]
            assert "a-long-secret" not in str([stored.raw async for stored in conversation.events])
        rules: Any = {"allow_list": AllowList.of("read_file"), "condenser": KeepFirstCondenser(max_events=50)}
        async with await at.start(**rules) as conversation:
            policies = conversation.state.policies
            assert policies["allow_list"] == [["read_file"]]
            assert policies["condenser"] == {"kind": "KeepFirstCondenser", "max_events": 50, "keep_first": 2}
            stricter: Any = {"allow_list": AllowList.of("read_file(docs/*)", "list_files")}
            async with await conversation.fork(overrides=stricter) as fork:
                assert fork.state.policies["allow_list"] == [["read_file"], ["read_file(docs/*)", "list_files"]]
        with pytest.raises(InvalidInput, match="no agent has that name"):
            await at.start(agent=AgentSpec(name="nobody"))
        with pytest.raises(InvalidInput):
            await at.start(agent=AgentSpec(model="nonsense:x"))


async def test_what_is_there_is_opened_only_where_it_is_what_was_asked_for(served: Any) -> None:
    """`exist_ok`: no agent and no rule that was given is left out without a word."""
    with served() as at:
        id, server = uuid4(), at.server.url
        spec = AgentSpec(name="a", model="offline", system_prompt="Be short.")
        rules: Any = {"confirmation_policy": AlwaysConfirm(), "limits": Limits(steps=7)}
        async with await AsyncConversation.create(spec, server=server, id=id, exist_ok=True, **rules) as first:
            for title in ("one", "two"):  # another request, which says the same of what it does
                async with await AsyncConversation.create(
                    spec, server=server, id=id, title=title, exist_ok=True, **rules
                ) as again:
                    assert (again.id, again.state.head) == (id, first.state.head)
            async with await AsyncConversation.create(server=server, id=id, exist_ok=True) as opened:
                assert opened.agent.system_prompt == "Be short."
            for other, given in (
                (spec.model_copy(update={"system_prompt": "Be long."}), rules),
                (spec.model_copy(update={"model": "openai:other"}), rules),
                (AgentSpec(name="default"), {}),
                (spec, {"confirmation_policy": NeverConfirm()}),
                (spec, {"limits": Limits(steps=8)}),
                (spec, {"allow_list": AllowList.of("read_file")}),
            ):
                with pytest.raises(Conflict, match="exists with another"):
                    await AsyncConversation.create(other, server=server, id=id, exist_ok=True, **given)


async def test_a_server_that_is_not_there_is_said() -> None:
    with pytest.raises(Unavailable, match="cannot be reached"):
        await AsyncConversation.create(server="http://127.0.0.1:9")


def test_errors_of_the_server_are_ours_again() -> None:
    for code in OUTCOMES:
        assert make_error(code, "what", hint="how").as_dict() == {"code": code, "message": "what", "hint": "how"}
    assert isinstance(make_error("stale", ""), Conflict)
    assert make_error("a_new_code", "").code == "internal"


def test_keys_are_sent_and_the_twin_without_await_works(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with served("one", "two") as at:
        client = at.server.client()
        with Conversation(server=at.server.url) as source:
            source.send_message("first")
            updates = list(source.run_stream())
            assert "".join(update.text for update in updates if isinstance(update, Delta)) == "one"
            with source.fork() as fork:
                fork.send_message("second")
                assert fork.run().output == "two"
            assert [stored.seq for stored in source.events] == list(range(source.state.head))
            assert next(record.id for record in Conversation.list(server=at.server.url).items) == fork.id
        key = client.post("/api/keys", json={"name": "k", "role": "write"}).json()["key"]
        client.close()
        with pytest.raises(Unauthenticated):
            Conversation.open(source.id, server=at.server.url)
        with pytest.raises(Unauthenticated):
            Conversation.open(source.id, server=at.server.url, api_key=key + "x")
        monkeypatch.setenv("BOUGH_API_KEY", key)
        with Conversation.open(source.id, server=at.server.url) as again:
            assert again.state.output == "one"
        with pytest.raises(NotFound):
            Conversation.open(uuid4(), server=at.server.url)
