"""What a provider's prompt cache serves: nearly everything, but where something is said to break the prefix."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from bough.agents.build import AgentBuilder
from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.settings import Settings
from bough.testing.anthropic_server import AnthropicServer
from bough.testing.openai_server import Answer, ServerCall

pytestmark = pytest.mark.anyio

PROMPT = "You measure planks, and note every one of them with its length and its wood. " * 80
STEPS = 100


def note(plank: int) -> str:
    """Note a plank."""
    return f"plank {plank}: " + "oak, straight, dry; " * 10


def weigh(plank: int) -> str:
    """Weigh a plank."""
    return f"plank {plank} weighs little"


def call(number: int) -> Answer:
    return Answer(calls=(ServerCall(tool="note", arguments={"plank": number}),))


def load(skill: str) -> Answer:
    return Answer(calls=(ServerCall(tool="load_skill", arguments={"skill_name": skill}),))


@pytest.fixture
def broken(caplog: pytest.LogCaptureFixture) -> Any:
    """Returns what broke a prefix since the last call."""
    caplog.set_level(logging.DEBUG, "bough.run")

    def take() -> list[str]:
        found = [str(vars(record)["broken"]) for record in caplog.records if "broken" in vars(record)]
        caplog.clear()
        return found

    return take


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    folder = tmp_path / "skills" / "plank-shop"
    folder.mkdir(parents=True)
    body = "Measure them twice. " * 40
    (folder / "SKILL.md").write_text(f"---\nname: plank-shop\ndescription: Measures planks.\n---\n{body}\n")
    return folder.parent


@pytest.fixture
def anthropic(monkeypatch: pytest.MonkeyPatch) -> Any:
    def serve(*steps: Any) -> AnthropicServer:
        server = AnthropicServer(steps)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        return server

    return serve


def spec(skills: Path, **fields: Any) -> AgentSpec:
    given: dict[str, Any] = {"tools": (note,), "system_prompt": PROMPT, "skill_roots": (skills,)}
    return AgentSpec(model="anthropic:claude-sonnet-5-5", **{**given, **fields})


async def test_a_hundred_steps_a_resume_a_fork_and_an_activation_are_served_from_the_cache(
    anthropic: Any, store: Any, settings: Settings, tmp_path: Path, skills: Path, broken: Any
) -> None:
    steps = [*map(call, range(STEPS - 2)), load("plank-shop"), "one", call(1), "two", call(2), "three"]
    with anthropic(*steps) as server:
        agent = spec(skills)
        first = await AsyncConversation.create(agent, workspace=tmp_path, store=store, settings=settings)
        await first.send_message("measure all the planks")
        result = await first.run()
        assert result.output == "one"
        resumed = await AsyncConversation.open(first.id, agent=agent, store=store, settings=settings)
        await resumed.send_message("continue")
        assert (await resumed.run()).output == "two"
        fork = await resumed.fork()
        await fork.send_message("and on")
        assert (await fork.run()).output == "three"
        for conversation in (fork, resumed, first):
            await conversation.aclose()
    assert len(server.uses) == STEPS + 4
    assert server.measure_cached_share(start=2) >= 0.9
    for number in (STEPS - 1, STEPS, STEPS + 2):
        assert server.measure_cached_share(number, number + 1) >= 0.9, "an activation, a resume, a fork"
    assert broken() == []
    whole = sum(use.input for use in server.uses[:STEPS])
    assert result.usage.input_tokens == whole, "the cached part counts as input, as it is"
    assert result.usage.cache_read_tokens == sum(use.read for use in server.uses[:STEPS])
    assert result.usage.cached_share == server.measure_cached_share(0, STEPS)


@pytest.mark.parametrize("what", ["condensed", "model", "tools"])
async def test_a_prefix_breaks_where_it_has_to_and_nowhere_else(
    what: str, anthropic: Any, store: Any, settings: Settings, tmp_path: Path, skills: Path, broken: Any
) -> None:
    summary = ["the planks were measured"] if what == "condensed" else []
    steps = [*map(call, range(20)), "one", *summary, call(1), call(2), "two"]
    with anthropic(*steps) as server:
        conversation = await AsyncConversation.create(spec(skills), workspace=tmp_path, store=store, settings=settings)
        await conversation.send_message("measure the planks")
        await conversation.run()
        assert broken() == []
        match what:
            case "condensed":
                assert await conversation.condense()
            case "model":
                await conversation.set_model("anthropic:claude-opus-5")
            case _:
                conversation._agent.builder = AgentBuilder.from_blueprint(_with_more_tools(conversation))
        await conversation.send_message("continue")
        await conversation.run()
        await conversation.aclose()
    assert broken() == [what]
    assert server.measure_cached_share(2, 21) >= 0.9
    first = 21 + len(summary)
    kept = 0.9 if what == "condensed" else 0.01
    assert server.measure_cached_share(first, first + 1) < kept, "the first step afterwards is paid for"
    assert server.measure_cached_share(first + 1) >= 0.9, "and the next ones are not"


def _with_more_tools(conversation: AsyncConversation) -> Any:
    from bough.conversation.agent import make_blueprint

    more = conversation.agent.model_copy(update={"tools": (note, weigh)})
    return make_blueprint(more, conversation.workspace, conversation.settings)


async def test_an_agent_may_say_that_nothing_is_cached(
    anthropic: Any, store: Any, settings: Settings, tmp_path: Path
) -> None:
    from pydantic_ai import Agent

    with anthropic("hello") as server:
        agent = AgentSpec.of(Agent(model_settings={"cache": False}, instructions=PROMPT))
        agent = agent.model_copy(update={"model": "anthropic:claude-sonnet-5-5"})
        async with await AsyncConversation.create(agent, workspace=tmp_path, store=store, settings=settings) as c:
            await c.send_message("hello")
            await c.run()
    assert "cache_control" not in str(server.received[0].body)
