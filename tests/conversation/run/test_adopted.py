"""An agent made with PydanticAI itself, run as the agent of a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, SystemPromptPart, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.errors import InvalidInput
from bough.guard import AlwaysConfirm
from bough.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@dataclass
class Shop:
    """What the tools of the agent under test need."""

    prices: dict[str, int]


def seller(*steps: Any, **fields: Any) -> Agent[Shop, str]:
    agent = Agent(ScriptedModel(steps), deps_type=Shop, name="seller", **fields)

    @agent.tool
    def price(ctx: RunContext[Shop], thing: str) -> int:
        """Say what a thing costs."""
        return ctx.deps.prices[thing]

    return agent


SHOP = Shop({"tea": 3})
ASK = ToolCallPart("price", {"thing": "tea"})


def folder_of_skill(root: Path) -> Path:
    (root / "greet").mkdir(parents=True)
    (root / "greet" / "SKILL.md").write_text("---\nname: greet\ndescription: Greet people.\n---\nSay good morning.\n")
    return root


async def results(conversation: AsyncConversation) -> list[Any]:
    return [stored.event.result async for stored in conversation.events if stored.kind == "ToolReturned"]


async def test_its_tools_get_its_deps_and_every_call_is_recorded(start: Any) -> None:
    spec = AgentSpec.of(seller([ASK], "it costs 3"), deps=SHOP)
    async with await start(spec) as conversation:
        await conversation.send_message("tea?")
        result = await conversation.run()
        kinds = [stored.kind async for stored in conversation.events]
        assert result.output == "it costs 3"
        assert await results(conversation) == [3]
    assert kinds[-5:] == ["ModelResponded", "ToolCalled", "ToolReturned", "ModelResponded", "StateChanged"]


async def test_an_agent_is_taken_as_it_is(start: Any) -> None:
    agent = Agent(ScriptedModel(["hello"]))
    async with await start(agent) as conversation:
        await conversation.send_message("hi")
        assert (await conversation.run()).output == "hello"
        assert conversation.agent.name == "agent"


async def test_skills_and_their_tools_are_added_with_a_context_of_their_own(start: Any, tmp_path: Path) -> None:
    load = ToolCallPart("load_skill", {"skill_name": "greet"})
    agent = seller([ASK, load], "good morning, it costs 3")
    spec = AgentSpec(agent=agent, deps=SHOP, skill_roots=(folder_of_skill(tmp_path / "skills"),))
    async with await start(spec) as conversation:
        await conversation.send_message("tea?")
        await conversation.run()
        assert "greet" in conversation.state.active_skills
        assert 3 in await results(conversation)


async def test_prompts_of_both_reach_the_model_in_every_request(start: Any) -> None:
    seen: list[tuple[list[str], str]] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        first = messages[0]
        assert isinstance(first, ModelRequest)
        prompts = [str(part.content) for part in first.parts if isinstance(part, SystemPromptPart)]
        seen.append((prompts, info.instructions or ""))
        return ModelResponse(parts=[TextPart("ok")])

    agent = Agent(FunctionModel(answer), system_prompt="You sell.", instructions="Be brief.")
    async with await start(AgentSpec(agent=agent, system_prompt="Be kind.")) as conversation:
        for text in ("one", "two"):
            await conversation.send_message(text)
            await conversation.run()
    assert [prompts for prompts, _ in seen] == [["You sell."], ["You sell."]]
    assert all("Be brief." in told and "Be kind." in told for _, told in seen)


async def test_its_output_validator_stays_in_force(start: Any) -> None:
    agent = seller("three", "3")

    @agent.output_validator
    def digits(text: str) -> str:
        if not text.isdigit():
            raise ModelRetry("digits only")
        return text

    async with await start(AgentSpec.of(agent, deps=SHOP)) as conversation:
        await conversation.send_message("tea?")
        assert (await conversation.run()).output == "3"


async def test_the_policy_holds_for_its_tools(start: Any) -> None:
    spec = AgentSpec.of(seller([ASK], "never"), deps=SHOP)
    async with await start(spec, confirmation_policy=AlwaysConfirm()) as conversation:
        await conversation.send_message("tea?")
        assert (await conversation.run()).status == "waiting_for_confirmation"
        assert await results(conversation) == []


async def test_it_is_named_in_the_log_and_given_again(start: Any, store: Any, settings: Any) -> None:
    agent = seller("one", "two")
    async with await start(AgentSpec.of(agent, deps=SHOP)) as conversation:
        await conversation.send_message("a")
        await conversation.run()
        with pytest.raises(InvalidInput, match="given as code"):
            await AsyncConversation.open(conversation.id, store=store, settings=settings)
        head = conversation.state.head
        again = await AsyncConversation.open(conversation.id, store=store, settings=settings, agent=agent)
        async with again:
            assert again.state.head == head  # it is the same agent, so nothing has changed
            await again.send_message("b")
            assert (await again.run()).output == "two"


async def test_a_fork_goes_on_with_it_or_takes_another(start: Any) -> None:
    async with await start(AgentSpec.of(seller("one", "two"), deps=SHOP)) as conversation:
        await conversation.send_message("a")
        await conversation.run()
        async with (
            await conversation.fork() as same,
            await conversation.fork(agent=Agent(ScriptedModel(["new"]))) as other,
        ):
            for fork, wanted in ((same, "two"), (other, "new")):
                await fork.send_message("b")
                assert (await fork.run()).output == wanted


async def test_what_cannot_be_an_agent_is_refused(start: Any) -> None:
    with pytest.raises(InvalidInput, match="no agent can be made of int"):
        await start(3)
