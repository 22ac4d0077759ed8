"""Where not all skills fit into the catalogue, the first message says which of them a model sees first."""

from __future__ import annotations

from pathlib import Path

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.settings import Settings
from bough.skills import KeywordTrigger, Skill
from bough.testing import ScriptedModel

pytestmark = pytest.mark.anyio


async def test_the_first_message_ranks_the_catalogue_and_later_ones_leave_it(tmp_path: Path) -> None:
    skills = [
        Skill(name=f"matter-{i:03}", description=f"Handles matter {i}.", content="x", trigger=KeywordTrigger(()))
        for i in range(900)
    ]
    skills.append(Skill(name="zebra", description="Counts stripes of zebras.", content="x", trigger=KeywordTrigger(())))
    model = ScriptedModel(["one", "two", "three"])
    settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)
    spec = AgentSpec(model=model, skills=tuple(skills))
    conversation = await AsyncConversation.create(spec, workspace=tmp_path, store="memory:", settings=settings)
    async with conversation:
        assert "zebra" not in conversation.state.instructions
        await conversation.send_message("How many stripes have the zebras?")
        first = conversation.state.instructions
        assert '<skill name="zebra">' in first and "<more count=" in first
        await conversation.run()
        await conversation.send_message("And what of matter 700?")
        await conversation.run()
        branch = await conversation.fork()
        async with branch:
            await branch.send_message("And matter 701?")
            assert branch.state.instructions == conversation.state.instructions == first
    assert all('<skill name="zebra">' in str(asked.instructions) for asked in model.asked)
