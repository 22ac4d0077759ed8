"""The rules of fork() that a conversation has to keep, one class each; docs/concepts/fork.md has their words."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai.messages import ModelMessagesTypeAdapter

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, Turn
from bough.conversation.log.condenser import KeepFirstCondenser
from bough.errors import Conflict, InvalidInput, NotFound
from bough.events import open_store
from bough.events.model import TaskLinked
from bough.guard import (
    AllowList,
    AlwaysConfirm,
    ConfirmRisky,
    EnvSecret,
    Hook,
    HookKind,
    HookSet,
    Limits,
    NeverConfirm,
    RuleAnalyzer,
    Secrets,
)
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


async def say(conversation: AsyncConversation, text: str) -> str:
    await conversation.send_message(text)
    return (await conversation.run()).output


async def rows(conversation: AsyncConversation, stop: int | None = None) -> list[Any]:
    return [(s.seq, s.id, s.ts, s.kind, s.raw) async for s in conversation.store.read(conversation.id, 0, stop)]


async def seq_of(conversation: AsyncConversation, kind: str, nth: int = 0) -> int:
    return [stored.seq async for stored in conversation.events if stored.kind == kind][nth]


def requests(spec: Any) -> list[bytes]:
    """What the model was asked, byte for byte, run ids left out (PydanticAI makes them anew for every run)."""
    shown = []
    for asked in spec.model.asked:
        messages = ModelMessagesTypeAdapter.dump_python(list(asked.messages), mode="json")
        for message in messages:
            message.pop("run_id", None), message.pop("conversation_id", None)
        shown.append((asked.instructions + repr(messages)).encode())
    return shown


class Acts:
    """A tool that counts."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        def act(name: str) -> str:
            """Act."""
            self.ran.append(name)
            return f"acted {name}"

        self.act = act


@pytest.fixture
def acts() -> Acts:
    return Acts()


class TestRule01SourceUntouched:
    async def test_a_running_source_is_not_changed_blocked_or_stopped(self, start: Any, scripted: Any) -> None:
        started, release = asyncio.Event(), asyncio.Event()

        async def act() -> str:
            """Act."""
            started.set()
            await release.wait()
            return "acted"

        source = await start(scripted(tool_call("act"), "done", tools=(act,)))
        await source.send_message("go")
        run = asyncio.create_task(source.run())
        await started.wait()
        before, record = await rows(source), await source.store.get(source.id)
        forks = [await source.fork() for _ in range(3)]
        assert [fork.status for fork in forks] == ["idle"] * 3
        assert (await rows(source), source.status) == (before, "running")
        assert (await source.store.get(source.id)).head == record.head
        release.set()
        assert (await run).output == "done"


class TestRule02SameId:
    async def test_the_same_request_gives_the_same_fork_even_after_the_source_moved_on(
        self, start: Any, scripted: Any
    ) -> None:
        source = await start(scripted("one", "two"))
        id = uuid4()
        first = await source.fork(id=id, title="t", reason="r")
        await say(source, "more")
        again = await source.fork(id=id, title="t", reason="r")
        assert await rows(again) == await rows(first)
        assert len(await source.store.children(source.id)) == 1

    @pytest.mark.parametrize(
        "other",
        [
            {"title": "u"},
            {"at": 0},
            {"pending": "drop"},
            {"reset_metrics": False},
            {"tags": {"a": "b"}},
            {"overrides": {"confirmation_policy": AlwaysConfirm()}},
            {"secrets": "none"},
            {"snap": "turn"},
        ],
        ids=lambda other: next(iter(other)),
    )
    async def test_another_request_with_that_id_is_a_conflict(self, start: Any, scripted: Any, other: Any) -> None:
        source = await start(scripted("one"))
        id = uuid4()
        await source.fork(id=id, title="t")
        with pytest.raises(Conflict):
            await source.fork(**({"id": id, "title": "t"} | other))
        with pytest.raises(Conflict):
            await source.fork(id=source.id)

    async def test_many_at_once_give_one(self, start: Any, scripted: Any) -> None:
        source = await start(scripted("one"))
        id = uuid4()
        forks = await asyncio.gather(*(source.fork(id=id) for _ in range(10)))
        assert {fork.id for fork in forks} == {id}
        assert len({tuple(await rows(fork)) for fork in forks}) == 1


class TestRule03SameRows:
    async def test_shared_events_keep_id_seq_time_and_call_ids(self, start: Any, scripted: Any, acts: Acts) -> None:
        source = await start(scripted(tool_call("act", name="a"), "done", tools=(acts.act,)))
        await say(source, "go")
        for at in range(source.state.head + 1):
            fork = await source.fork(at=at)
            assert await rows(fork, at) == await rows(source, at)
            shared = await source.store.lineage(fork.id)
            assert [r for r in shared if r[0] == source.id] == ([(source.id, 0, at)] if at else [])


class TestRule04OpenCalls:
    async def waiting(self, start: Any, scripted: Any, acts: Acts) -> Any:
        calls = [tool_call("act", name="a"), tool_call("act", name="b")]
        source = await start(scripted(calls, *["answer"] * 5, tools=(acts.act,)), confirmation_policy=AlwaysConfirm())
        await source.send_message("go")
        await source.run()
        return source

    @pytest.mark.parametrize("pending", ["close", "drop"])
    async def test_nothing_called_before_the_cut_runs(
        self, start: Any, scripted: Any, acts: Acts, pending: Any
    ) -> None:
        source = await self.waiting(start, scripted, acts)
        await source.approve()
        fork = await source.fork(pending=pending)
        assert (await fork.run()).output == "answer"
        assert acts.ran == []
        closed = [s.event.reason async for s in fork.events if s.kind == "ToolInterrupted"]
        assert closed == (["not executed in this fork"] * 2 if pending == "close" else [])
        assert [s.kind async for s in source.events if s.kind == "ToolInterrupted"] == []

    async def test_carried_calls_wait_for_an_approval_of_their_own(self, start: Any, scripted: Any, acts: Acts) -> None:
        source = await self.waiting(start, scripted, acts)
        await source.approve()
        fork = await source.fork(pending="carry")
        assert fork.status == "waiting_for_confirmation"
        assert (await fork.run()).status == "waiting_for_confirmation"
        assert acts.ran == []
        await fork.approve()
        await fork.run()
        assert sorted(acts.ran) == ["a", "b"]

    async def test_a_call_that_has_started_is_not_carried_over(self, start: Any, scripted: Any) -> None:
        """It may have had its effect: nobody can approve it anew."""
        started, release = asyncio.Event(), asyncio.Event()

        async def act() -> str:
            """Act."""
            started.set()
            await release.wait()
            return "acted"

        source = await start(scripted(tool_call("act"), "done", tools=(act,)))
        await source.send_message("go")
        run = asyncio.create_task(source.run())
        await started.wait()
        with pytest.raises(InvalidInput, match="has started") as refused:
            await source.fork(pending="carry")
        assert refused.value.hint
        assert await source.store.children(source.id) == []
        release.set()
        assert (await run).output == "done"

    async def test_a_late_result_goes_to_the_source_alone(self, start: Any, scripted: Any) -> None:
        started, release = asyncio.Event(), asyncio.Event()

        async def act() -> str:
            """Act."""
            started.set()
            await release.wait()
            return "late"

        source = await start(scripted(tool_call("act"), "done", tools=(act,)))
        await source.send_message("go")
        run = asyncio.create_task(source.run())
        await started.wait()
        fork = await source.fork()
        head = fork.state.head
        release.set()
        await run
        assert (await fork.store.get(fork.id)).head == head
        assert "late" in str(await source.messages())
        assert "late" not in str(await fork.messages())


class TestRule05OnlyStricter:
    async def test_everything_that_forbids_is_copied(self, start: Any, scripted: Any) -> None:
        hooks = HookSet((Hook(kind=HookKind.PRE_TOOL_USE, command="exit 0"),))
        given: Any = {
            "confirmation_policy": ConfirmRisky(),
            "security_analyzer": RuleAnalyzer(),
            "hooks": hooks,
            "allow_list": AllowList.of("read_file"),
            "limits": Limits(requests=5, cost_usd=1.0, unpriced="allow"),
        }
        source = await start(scripted("one"), **given)
        await say(source, "go")
        for at in (1, None):
            fork = await source.fork(at=at)
            assert fork.state.policies == source.state.policies
            assert fork._rules_in_force().to_json() == source._rules_in_force().to_json()
            assert fork.executor is source.executor

    async def test_a_fork_of_always_confirm_never_runs_the_pending_call(
        self, start: Any, scripted: Any, acts: Acts
    ) -> None:
        spec = scripted(tool_call("act", name="a"), tool_call("act", name="b"), "x", tools=(acts.act,))
        source = await start(spec, confirmation_policy=AlwaysConfirm())
        await source.send_message("go")
        await source.run()
        fork = await source.fork()
        assert (await fork.run()).status == "waiting_for_confirmation", "its next call waits as well"
        assert acts.ran == []

    async def test_overrides_narrow(self, start: Any, scripted: Any, acts: Acts) -> None:
        spec = scripted(tool_call("act", name="a"), "x", tools=(acts.act,))
        source = await start(spec, limits=Limits(requests=9))
        overrides: Any = {"confirmation_policy": AlwaysConfirm(), "limits": Limits(requests=3)}
        fork = await source.fork(overrides=overrides)
        assert fork.state.policies["limits"] == Limits(requests=3).to_json()
        assert await say(fork, "go") == ""
        assert (fork.status, acts.ran) == ("waiting_for_confirmation", [])
        (forked,) = [s.event async for s in fork.events if s.kind == "ForkedFrom"]
        assert forked.overrides == {
            "confirmation_policy": AlwaysConfirm().to_json(),
            "limits": Limits(requests=3).to_json(),
        }

    @pytest.mark.parametrize(
        "overrides",
        [
            {"confirmation_policy": NeverConfirm()},
            {"confirmation_policy": ConfirmRisky()},
            {"limits": Limits()},
            {"limits": Limits(requests=10)},
            {"nonsense": 1},
        ],
    )
    async def test_overrides_never_widen(self, start: Any, scripted: Any, overrides: Any) -> None:
        source = await start(scripted("one"), confirmation_policy=AlwaysConfirm(), limits=Limits(requests=9))
        with pytest.raises(InvalidInput):
            await source.fork(overrides=overrides)
        assert await source.store.children(source.id) == []


class TestRule06AnotherAgent:
    async def test_it_needs_the_tools_of_open_calls(self, start: Any, scripted: Any, acts: Acts) -> None:
        source = await start(
            scripted(tool_call("act", name="a"), tools=(acts.act,)), confirmation_policy=AlwaysConfirm()
        )
        await source.send_message("go")
        await source.run()
        with pytest.raises(InvalidInput, match="no tool 'act'") as refused:
            await source.fork(pending="carry", agent=scripted())
        assert refused.value.http_status == 422
        fork = await source.fork(pending="carry", agent=scripted("ok", tools=(acts.act,)))
        await fork.approve()
        assert (await fork.run()).output == "ok"

    async def test_model_and_prompt_may_be_others(self, start: Any, scripted: Any) -> None:
        source = await start(scripted("one"))
        fork = await source.fork(overrides={"model": "offline", "system_prompt": "Be other."})
        assert (fork.agent.model, source.agent.system_prompt == "Be other.") == ("offline", False)
        assert "Be other." in fork.state.instructions

    async def test_the_agent_of_today_goes_on_from_a_cut_where_another_one_worked(
        self, start: Any, scripted: Any
    ) -> None:
        source = await start(scripted("one"))
        cut = source.state.head
        await source.set_model("offline")
        fork = await source.fork(at=cut)
        assert fork.agent.model == fork.state.agent["model"] == "offline", "the log says who really continues"


class TestRule07Condenser:
    async def test_a_condensation_after_the_cut_is_invisible_and_one_before_it_holds(
        self, start: Any, scripted: Any
    ) -> None:
        spec = scripted(*[f"answer {n}" for n in range(8)])
        source = await start(spec, condenser=KeepFirstCondenser(max_events=6, keep_first=2))
        for n in range(8):
            await say(source, f"question {n}")
        at = await seq_of(source, "Condensed")
        assert "left out" not in str(await (await source.fork(at=at)).messages())
        assert "left out" in str(await (await source.fork(at=at + 1)).messages())
        assert await (await source.fork()).messages() == await source.messages()


class TestRule08Metrics:
    async def test_own_and_inherited_never_count_twice(self, start: Any, scripted: Any) -> None:
        source = await start(scripted(*["x"] * 9))
        await say(source, "one")
        fork = await source.fork()
        await say(fork, "two")
        leaf = await fork.fork()
        await say(leaf, "three")
        assert [c.usage.requests for c in (source, fork, leaf)] == [1, 1, 1]
        assert [c.state.inherited.requests for c in (source, fork, leaf)] == [0, 1, 2]
        assert (await leaf.fork(reset_metrics=False)).usage.requests == 1


class TestRule09Secrets:
    async def test_values_are_nowhere_and_none_means_none(
        self, start: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MY_TOKEN", "s3cr3t-value-of-mine")

        def leak() -> str:
            """Leak."""
            return os.environ["MY_TOKEN"]

        spec = scripted(tool_call("leak"), "x", tool_call("leak"), "y", tools=(leak,))
        source = await start(spec, secrets=Secrets({"MY_TOKEN": EnvSecret("MY_TOKEN")}))
        kept, bare = await source.fork(), await source.fork(secrets="none")
        assert (kept.state.policies["secrets"], bare.state.policies["secrets"]) == (["MY_TOKEN"], [])
        for fork in (kept, bare):
            await say(fork, "go")
            assert all(b"s3cr3t" not in raw for *_, raw in await rows(fork)), "and it is masked all the same"
            bundle = io.BytesIO()
            await fork.store.export(fork.id, bundle)
            assert b"s3cr3t" not in bundle.getvalue()


class TestRule10Tasks:
    async def test_tasks_stay_children_of_the_source(self, start: Any, scripted: Any) -> None:
        source = await start(scripted("one"))
        await source.append(TaskLinked(task_id="t1"))
        fork = await source.fork()
        own = [s.kind async for s in fork.store.read(fork.id, fork.state.base)]
        assert "TaskLinked" not in own


class TestRule11SamePrefix:
    async def test_source_and_fork_ask_the_model_with_the_same_bytes(
        self, start: Any, scripted: Any, acts: Acts, store: Any, settings: Any
    ) -> None:
        calls = [tool_call("act", name="a"), tool_call("act", name="b")]
        source = await start(scripted(["text", *calls], "one", "two", tools=(acts.act,)), title="root")
        await say(source, "first")
        other = scripted("two", tools=(acts.act,))
        fork = await source.fork(title="other", tags={"a": "b"}, reason="because")
        fork = await AsyncConversation.open(fork.id, store=store, agent=other, settings=settings)
        await say(source, "second")
        await say(fork, "second")
        mine, its = requests(source.agent)[-1], requests(other)[-1]
        assert strip_last_prompt(mine) == strip_last_prompt(its)
        for word in (source.id.hex, str(source.id), fork.id.hex, str(fork.id)):
            assert word.encode() not in mine + its

    async def test_a_live_view_and_a_reopened_one_are_the_same_bytes(
        self, start: Any, scripted: Any, acts: Acts, store: Any, settings: Any
    ) -> None:
        source = await start(scripted(tool_call("act", name="a"), "one", tools=(acts.act,)))
        await say(source, "first")
        again = await AsyncConversation.open(source.id, store=store, agent=source.agent, settings=settings)
        dump = ModelMessagesTypeAdapter.dump_json
        assert (
            dump(await source.messages())
            == dump(await again.messages())
            == dump(await (await source.fork()).messages())
        )


def strip_last_prompt(request: bytes) -> bytes:
    """Leave out the newest message, which is not of the prefix and has its own time."""
    return request[: request.rindex(b"'content': 'second'")]


class TestRule12CompareAndGraft:
    async def test_compare(self, start: Any, scripted: Any, acts: Acts) -> None:
        steps = ["one", tool_call("act", name="a"), "left", tool_call("act", name="b"), "right"]
        source = await start(scripted(*steps, tools=(acts.act,)))
        await say(source, "first")
        fork = await source.fork()
        common = fork.state.base
        await say(source, "go left")
        await say(fork, "go right")
        found = await source.compare(fork)
        assert found.common == common
        assert [s.seq for s in found.a.events] == list(range(common, source.state.head))
        assert [s.seq for s in found.b.events] == list(range(common, fork.state.head))
        (difference,) = found.calls
        assert [(c.arguments, c.result) for c in difference.a] == [({"name": "a"}, "acted a")]
        assert [(c.arguments, c.result) for c in difference.b] == [({"name": "b"}, "acted b")]
        assert (found.a.usage.requests, found.b.usage.requests) == (2, 2)
        assert found.files == (), "they share their files"
        same = await source.compare(source)
        assert (same.common, same.a.events, same.calls) == (source.state.head, (), ())

    async def test_strangers_share_nothing(self, start: Any, scripted: Any) -> None:
        a, b = await start(scripted("a")), await start(scripted("b"))
        await say(a, "go")
        found = await a.compare(b)
        assert (found.common, len(found.a.events)) == (0, a.state.head)

    async def test_graft_tells_and_says_where_from(self, start: Any, scripted: Any, acts: Acts) -> None:
        steps = ["one", tool_call("act", name="b"), "it works", "so I heard"]
        source = await start(scripted(*steps, tools=(acts.act,)))
        await say(source, "first")
        fork = await source.fork()
        await say(fork, "try it")
        await source.graft(fork)
        assert (await source.run()).output == "so I heard"
        assert acts.ran == ["b"], "what was called there is not called here"
        told = str(source.agent.model.asked[-1].messages[-1])
        for word in ("try it", "acted b", "it works"):
            assert word in told
        changes = [s.event.changes async for s in source.events if s.kind == "StateChanged"]
        assert [c["grafted"]["source"] for c in changes if "grafted" in c] == [str(fork.id)]
        await source.graft(fork, summary="in short: it works")
        assert "in short" in str((await source.messages())[-1])
        with pytest.raises(InvalidInput, match="no events to describe"):
            await source.graft(fork, start=10_000)


class TestRule13Bundles:
    async def test_a_fork_goes_on_on_another_server_and_twice_adds_nothing(
        self, start: Any, scripted: Any, settings: Any, tmp_path: Path
    ) -> None:
        source = await start(scripted("one", "two"))
        await say(source, "first")
        fork = await source.fork()
        await say(fork, "second")
        bundle = io.BytesIO()
        await fork.store.export(fork.id, bundle)
        elsewhere = await open_store(f"sqlite:///{tmp_path / 'elsewhere.db'}")
        for _ in range(2):
            bundle.seek(0)
            await elsewhere.import_(bundle)
        agent = scripted("three")
        again = await AsyncConversation.open(fork.id, store=elsewhere, agent=agent, settings=settings)
        came = await rows(fork)
        assert (await rows(again))[: len(came)] == came
        assert [stored.kind async for stored in elsewhere.read(fork.id, len(came))] == ["Imported", "StateChanged"]
        assert await say(again, "third") == "three"
        assert requests(agent)[0].startswith(requests(fork.agent)[-1][:200])
        await elsewhere.aclose()


class TestRule14Workspace:
    @pytest.fixture
    async def source(self, scripted: Any, settings: Any, tmp_path: Path) -> Any:
        folder = tmp_path / "ws"
        (folder / "deep").mkdir(parents=True)
        (folder / "a.txt").write_text("alpha")
        (folder / "deep" / "run.sh").write_text("#!/bin/sh\n")
        (folder / "deep" / "run.sh").chmod(0o755)
        (folder / "relative").symlink_to("a.txt")
        (folder / "absolute").symlink_to(folder / "a.txt")
        (folder / "outside").symlink_to("/etc/hostname")
        os.mkfifo(folder / "pipe")
        store = await open_store("memory:")
        steps = [tool_call("write_file", path="a.txt", content="changed"), "done"] * 3
        spec = AgentSpec(name="t", model=ScriptedModel(steps), skills=(), workspace_access="run")
        made = await AsyncConversation.create(spec, workspace=folder, store=store, settings=settings)
        yield made
        await made.aclose()
        await store.aclose()

    async def test_shared_is_the_same_folder_and_is_recorded(self, source: Any) -> None:
        fork = await source.fork()
        assert fork.workspace == source.workspace
        (forked,) = [s.event async for s in fork.events if s.kind == "ForkedFrom"]
        assert forked.workspace == "shared"
        assert (await source.store.get(fork.id)).lineage["workspace"] == "shared"

    async def test_a_copy_has_files_of_its_own(self, source: Any) -> None:
        fork = await source.fork(workspace="copy")
        mine, its = source.workspace, fork.workspace
        assert its != mine
        assert (its / "deep" / "run.sh").stat().st_mode & 0o777 == 0o755
        for name in ("a.txt", "deep/run.sh"):
            assert (its / name).stat().st_ino != (mine / name).stat().st_ino, "never a hard link"
        assert (its / "absolute").resolve() == its / "a.txt", "a link into the source would be a way back"
        assert (its / "relative").resolve() == its / "a.txt"
        assert os.readlink(its / "outside") == "/etc/hostname"
        assert not (its / "pipe").exists()
        await say(fork, "change it")
        assert ((mine / "a.txt").read_text(), (its / "a.txt").read_text()) == ("alpha", "changed")
        (mine / "new.txt").write_text("new")
        found = await source.compare(fork)
        assert {(f.path, f.change) for f in found.files} >= {("a.txt", "differs"), ("new.txt", "only in a")}

    async def test_the_same_id_gives_the_same_copy(self, source: Any) -> None:
        id = uuid4()
        first = await source.fork(id=id, workspace="copy")
        (first.workspace / "mine.txt").write_text("kept")
        again = await source.fork(id=id, workspace="copy")
        assert (again.workspace / "mine.txt").read_text() == "kept"

    async def test_many_at_once_give_one_fork_and_one_folder(self, source: Any, settings: Any) -> None:
        """Losers remove their own copy, never the winner's."""
        id = uuid4()
        forks = await asyncio.gather(*(source.fork(id=id, workspace="copy") for _ in range(4)))
        assert {fork.id for fork in forks} == {id}
        assert {fork.workspace for fork in forks} == {settings.home / "workspaces" / str(id)}
        assert (forks[0].workspace / "a.txt").read_text() == "alpha"
        assert [entry.name for entry in (settings.home / "workspaces").iterdir()] == [str(id)]
        assert len(await source.store.children(source.id)) == 1

    async def test_a_fork_that_is_cancelled_at_any_moment_leaves_one_with_its_files_or_none(
        self, source: Any, settings: Any
    ) -> None:
        """Whatever the moment, the same id is free or is that fork, and no other folder is left."""
        ids = [uuid4() for _ in range(8)]
        for turns, id in enumerate(ids):
            forking = asyncio.create_task(source.fork(id=id, workspace="copy"))
            for _ in range(2**turns):
                await asyncio.sleep(0)
            forking.cancel()
            await asyncio.wait([forking])
            there = {child.id for child in await source.store.children(source.id)}
            left = {entry.name for entry in (settings.home / "workspaces").glob("*") if entry.is_dir()}
            kept = await source.fork(id=id, workspace="copy")
            assert (kept.workspace / "a.txt").read_text() == "alpha"
            assert len(left - {str(known) for known in ids[:turns]}) == (id in there), left
        names = {entry.name for entry in (settings.home / "workspaces").iterdir()}
        assert names == {str(id) for id in ids}

    @pytest.mark.parametrize("by", ["open", "fork"])
    async def test_a_copy_whose_maker_was_killed_behind_the_row_is_put_in_its_place(
        self, source: Any, settings: Any, by: str
    ) -> None:
        fork = await source.fork(id=uuid4(), workspace="copy")
        (fork.workspace / "mine.txt").write_text("kept")
        record = await source.store.get(fork.id)
        await fork.aclose()
        fork.workspace.rename(settings.home / "workspaces" / f".making-{record.config['made']}")
        if by == "open":
            again = await AsyncConversation.open(fork.id, store=source.store, agent=source.agent, settings=settings)
        else:
            again = await source.fork(id=fork.id, workspace="copy")
        assert (again.workspace / "mine.txt").read_text() == "kept"
        assert [entry.name for entry in (settings.home / "workspaces").iterdir()] == [str(fork.id)]
        further = await again.fork()
        assert "made" not in (await source.store.get(further.id)).config, "it works in its source's folder"
        await again.aclose()

    async def test_readonly_reads_and_does_not_write(self, source: Any, settings: Any) -> None:
        fork = await source.fork(workspace="readonly")
        await say(fork, "change it")
        assert (source.workspace / "a.txt").read_text() == "alpha"
        assert "write_file" not in fork.agent.model.asked[-1].tools
        assert "read_file" in fork.agent.model.asked[-1].tools
        below = await fork.fork()
        assert below.state.workspace_policy == "readonly", "a fork of it is no way around it"
        again = await AsyncConversation.open(fork.id, store=fork.store, agent=fork.agent, settings=settings)
        assert again.state.workspace_policy == "readonly"

    async def test_a_worktree_has_the_present_files(self, source: Any) -> None:
        folder = source.workspace

        def git(*arguments: str) -> str:
            identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "init.defaultBranch=main"]
            command = ["git", *identity, *arguments]
            return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout

        git("init", "-q")
        git("add", "a.txt", "deep")
        git("commit", "-q", "-m", "first")
        (folder / "a.txt").write_text("not committed")
        (folder / "new.txt").write_text("not tracked")
        (folder / "deep" / "run.sh").unlink()
        status = git("status", "--porcelain")
        fork = await source.fork(workspace="worktree", ephemeral=True)
        listed = subprocess.run(["git", "worktree", "list"], cwd=source.workspace, capture_output=True, text=True)
        assert str(fork.workspace.parent) in listed.stdout or str(fork.workspace) in listed.stdout
        assert ".making-" not in listed.stdout
        its = fork.workspace
        assert (its / "a.txt").read_text() == "not committed"
        assert (its / "new.txt").read_text() == "not tracked"
        assert not (its / "deep" / "run.sh").exists()
        assert git("status", "--porcelain") == status, "the source's index is as it was"
        (its / "a.txt").write_text("changed")
        assert (folder / "a.txt").read_text() == "not committed"
        await fork.aclose()
        assert not its.exists()
        assert len(git("worktree", "list").splitlines()) == 1

    async def test_what_cannot_be_is_said_and_leaves_nothing(self, source: Any) -> None:
        for workspace in ("worktree", "nonsense", "overlay"):
            with pytest.raises(InvalidInput) as refused:
                await source.fork(workspace=workspace)
            assert refused.value.hint
            assert ("cannot be an overlay" in refused.value.message) == (workspace == "overlay")
        assert await source.store.children(source.id) == []
        assert list((source.settings.home / "workspaces").glob("*")) == []

    async def test_a_fork_that_fails_leaves_no_copy(self, source: Any) -> None:
        taken = (await source.fork()).id
        with pytest.raises(Conflict):
            await source.fork(id=taken, workspace="copy")
        assert list((source.settings.home / "workspaces").glob("*")) == []


class TestCuts:
    async def test_turns(self, start: Any, scripted: Any, acts: Acts) -> None:
        source = await start(scripted("one", tool_call("act", name="a"), "two", tools=(acts.act,)))
        await say(source, "first")
        end = source.state.head
        await say(source, "second")
        cuts = [(await source.store.get((await source.fork(at=Turn(n))).id)).forked_at for n in range(3)]
        assert cuts == [await seq_of(source, "UserMessage"), end, source.state.head]
        for number in (-1, 3):
            with pytest.raises(InvalidInput, match="no turn"):
                await source.fork(at=Turn(number))
        middle = await seq_of(source, "ToolCalled")
        for at, expected in ((middle, end), (end, end), (end - 1, cuts[0]), (None, source.state.head)):
            fork = await source.fork(at=at, snap="turn")
            assert (await source.store.get(fork.id)).forked_at == expected
        assert (await source.fork(at=0, snap="turn")).state.base == 0

    async def test_a_turn_that_is_not_over_is_left_out_by_snap(self, start: Any, scripted: Any) -> None:
        source = await start(scripted("one"))
        await say(source, "first")
        end = source.state.head
        await source.send_message("unanswered")
        assert (await source.fork(snap="turn")).state.base == end

    async def test_a_fork_of_nothing_is_a_fresh_start_under_the_same_rules(
        self, start: Any, scripted: Any, store: Any, settings: Any
    ) -> None:
        spec = scripted("one", "anew")
        source = await start(spec, confirmation_policy=AlwaysConfirm())
        await say(source, "first")
        fork = await source.fork(at=0)
        fork = await AsyncConversation.open(fork.id, store=store, agent=spec, settings=settings)
        assert (fork.workspace, fork.state.instructions) == (source.workspace, source.state.instructions)
        assert fork._rules_in_force().policy == AlwaysConfirm()
        assert await say(fork, "again") == "anew"
        assert "first" not in str(spec.model.asked[-1].messages)

    async def test_who_and_why_are_on_record(self, start: Any, scripted: Any) -> None:
        source = await start(scripted("one"))
        fork = await source.fork(actor="ann", reason="to see")
        (forked,) = [s.event async for s in fork.events if s.kind == "ForkedFrom"]
        assert (forked.actor, forked.reason, forked.source) == ("ann", "to see", source.id)
        assert "ann" not in str(await fork.messages())
        assert [record.id for record in await fork.lineage()] == [source.id, fork.id]

    async def test_an_ephemeral_fork_is_gone_when_closed(self, start: Any, scripted: Any) -> None:
        source = await start(scripted("one", "tried"))
        await say(source, "first")
        async with await source.fork(ephemeral=True) as fork:
            assert await say(fork, "try") == "tried"
        assert await source.store.children(source.id) == []
        with pytest.raises(NotFound):
            await source.store.get(fork.id)

    async def test_closing_the_source_leaves_its_forks_alone(self, start: Any, scripted: Any) -> None:
        source = await start(scripted("one", "two"))
        fork = await source.fork()
        await source.aclose()
        assert await say(fork, "still there?") == "one"


async def test_condensing_on_request(start: Any, scripted: Any) -> None:
    spec = scripted(*[f"answer {n}" for n in range(6)], "a summary", "and on")
    conversation = await start(spec)
    for n in range(6):
        await say(conversation, f"question {n}")
    assert await conversation.condense()
    assert "a summary" in str(await conversation.messages())
    assert conversation.usage.requests == 7
    assert await say(conversation, "continue") == "and on"
