"""The offline planner behind a plain PydanticAI agent: what it calls, what it says, and what it refuses to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, ModelRetry, Tool
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    SystemPromptPart,
    TextPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDenied

from bough.agents.models.offline import OfflineModel
from bough.errors import ModelError

pytestmark = pytest.mark.anyio


async def test_a_plain_prompt_loads_the_skill_runs_its_script_and_answers_with_what_it_printed(library: Any) -> None:
    result = await library.agent(OfflineModel()).run("How many words are in notes.md?")
    assert result.output == "notes.md: 3 words"
    assert library.calls == [
        ("load_skill", {"skill_name": "word-count"}),
        ("run_skill_script", {"skill": "word-count", "script": "scripts/count.py", "args": ["notes.md"]}),
    ]


async def test_a_command_passes_its_arguments_verbatim_split_as_a_shell_would(library: Any) -> None:
    (library.workspace / "a b.txt").write_text("x y")
    result = await library.agent(OfflineModel()).run("/word-count 'a b.txt' notes.md")
    assert result.output == "a b.txt: 2 words\nnotes.md: 3 words"
    assert library.calls[-1][1]["args"] == ["a b.txt", "notes.md"]


async def test_a_command_with_an_open_quotation_says_so_and_calls_nothing(library: Any) -> None:
    result = await library.agent(OfflineModel()).run("/word-count don't.txt")
    assert "no closing quotation" in result.output
    assert library.calls == []


async def test_an_unknown_command_names_the_nearest_skill(library: Any) -> None:
    result = await library.agent(OfflineModel()).run("/word-cuont notes.md")
    assert "no skill named word-cuont" in result.output
    assert "Did you mean /word-count?" in result.output
    assert library.calls == []


async def test_nothing_fits_is_said_with_what_there_is_and_nothing_is_called(library: Any) -> None:
    result = await library.agent(OfflineModel()).run("What is the capital of France?")
    assert result.output.startswith("Nothing fits")
    assert "- word-count: Counts words in text files.\n" in result.output
    assert "- csv-profile: Profiles CSV files: rows, columns & values." in result.output
    assert "Use when" not in result.output
    assert library.calls == []


async def test_what_is_not_understood_is_named_and_the_run_says_that_nothing_fits(library: Any) -> None:
    result = await library.agent(OfflineModel()).run("Count the words in notes.md tomorrow")
    assert "“tomorrow”.\nTo run it without: /word-count notes.md" in result.output
    assert [tool for tool, _ in library.calls] == ["load_skill"]
    library.calls.clear()
    result = await library.agent(OfflineModel()).run("Please do not count the words in notes.md")
    assert result.output.startswith("Not run: the request says not to (“not count”).")
    assert library.calls == []
    (*_, response) = [message for message in result.all_messages() if isinstance(message, ModelResponse)]
    assert response.provider_details == {"nothing_fits": True}


@pytest.mark.parametrize(
    ("prompt", "script"),
    [
        ("Profile the columns of sales.csv", "scripts/profile.py"),
        ("Show the first rows of the table in sales.csv", "scripts/head.py"),
    ],
)
async def test_of_several_scripts_the_one_whose_text_fits_is_run(library: Any, prompt: str, script: str) -> None:
    await library.agent(OfflineModel()).run(prompt)
    assert library.calls[-1][1]["script"] == script


async def test_a_script_that_fails_is_reported_with_code_and_error(library: Any) -> None:
    result = await library.agent(OfflineModel()).run("/word-count missing.md")
    assert "scripts/count.py of the skill word-count failed with exit code 1 (EXECUTION_ERROR)" in result.output
    assert "FileNotFoundError" in result.output
    assert "Its arguments were: missing.md." in result.output
    assert len(library.calls) == 2


async def test_a_missing_argument_says_what_the_script_wants(library: Any) -> None:
    result = await library.agent(OfflineModel()).run("/word-count")
    assert "usage: count.py FILE..." in result.output
    assert "Try: /word-count ARGUMENTS" in result.output


async def test_a_skill_without_scripts_answers_with_its_own_section_labelled(library: Any) -> None:
    result = await library.agent(OfflineModel()).run("Which house style is there for dates?")
    assert "This is its text" in result.output
    assert "Dates are written as 20 November 2026." in result.output
    assert "sentence case" not in result.output
    assert [tool for tool, _ in library.calls] == ["load_skill"]


async def test_a_follow_up_with_only_a_path_reuses_the_script_used_last(library: Any) -> None:
    (library.workspace / "more.md").write_text("a b c d")
    agent = library.agent(OfflineModel())
    first = await agent.run("/word-count notes.md")
    second = await agent.run("and for more.md?", message_history=first.all_messages())
    assert second.output == "more.md: 4 words"
    for other in ("translate more.md to German", "show me more.md", "Which files are in this folder?"):
        third = await agent.run(other, message_history=second.all_messages())
        assert third.output.startswith("Nothing fits"), (
            f"a path is not a follow-up when something else is asked: {other}"
        )


async def test_a_new_request_after_a_turn_is_planned_afresh(library: Any) -> None:
    agent = library.agent(OfflineModel())
    first = await agent.run("/word-count notes.md")
    second = await agent.run("Profile the columns of sales.csv", message_history=first.all_messages())
    assert second.output == "profile of sales.csv: 2 rows, columns region, amount"


async def test_an_activated_skill_is_used_without_being_loaded_again(library: Any) -> None:
    text = f'<skill name="word-count">\n{(library.root / "word-count" / "SKILL.md").read_text()}</skill>'
    agent = library.agent(OfflineModel())
    history = [ModelRequest([UserPromptPart("tally notes.md"), UserPromptPart(text)])]
    result = await agent.run(message_history=history)
    assert result.output == "notes.md: 3 words"
    assert [tool for tool, _ in library.calls] == ["run_skill_script"]


@pytest.mark.parametrize("without", ["load_skill", "run_skill_script"])
async def test_a_tool_that_is_not_offered_is_named(library: Any, without: str) -> None:
    result = await library.agent(OfflineModel(), without=without).run("count the words in notes.md")
    assert f"call {without}, and that tool is not available" in result.output


async def test_a_rejected_call_is_reported_with_its_reason_and_not_repeated(library: Any) -> None:
    runner = Tool(library.run_skill_script, requires_approval=True)
    agent = Agent(
        OfflineModel(),
        instructions=library.catalog(),
        tools=[library.load_skill, runner],
        output_type=[str, DeferredToolRequests],
    )
    asked = await agent.run("count the words in notes.md")
    assert isinstance(asked.output, DeferredToolRequests)
    results = asked.output.build_results(approve_all=False)
    results.approvals = {call.tool_call_id: ToolDenied("not on a Sunday") for call in asked.output.approvals}
    answer = await agent.run(message_history=asked.all_messages(), deferred_tool_results=results)
    assert "was not run: not on a Sunday" in str(answer.output)
    assert [tool for tool, _ in library.calls] == ["load_skill"]


async def test_a_tool_that_asks_for_another_try_is_answered_and_not_called_again(library: Any) -> None:
    calls: list[str] = []

    def load_skill(skill_name: str) -> str:
        """Load."""
        calls.append(skill_name)
        raise ModelRetry("the disk is on fire")

    agent = Agent(OfflineModel(), instructions=library.catalog(), tools=[load_skill, library.run_skill_script])
    result = await agent.run("count the words in notes.md")
    assert "could not be loaded: the disk is on fire" in result.output
    assert calls == ["word-count"]


async def test_an_answer_that_the_agent_rejects_is_given_again_and_nothing_runs_twice(library: Any) -> None:
    agent = library.agent(OfflineModel())
    seen: list[str] = []

    @agent.output_validator
    def check(output: str) -> str:
        seen.append(output)
        if len(seen) == 1:
            raise ModelRetry("profile sales.csv instead")
        return output

    await agent.run("count the words in notes.md")
    assert seen == ["notes.md: 3 words"] * 2
    assert len(library.calls) == 2, "feedback is not the user's word, so it starts no new plan"


async def test_an_interrupted_call_is_not_made_again(library: Any) -> None:
    call = ToolCallPart("run_skill_script", {"skill_name": "word-count", "script_path": "scripts/count.py", "args": []})
    back = ToolReturnPart("run_skill_script", "did not finish", call.tool_call_id, outcome="interrupted")
    history = [ModelRequest([UserPromptPart("/word-count notes.md")]), ModelResponse([call]), ModelRequest([back])]
    result = await library.agent(OfflineModel()).run(message_history=history)
    assert "was interrupted, so there is no result: did not finish" in result.output
    assert library.calls == []


async def test_a_cut_catalogue_is_searched(library: Any) -> None:
    queries: list[str] = []

    def search_skills(query: str) -> list[dict[str, str]]:
        """Find skills."""
        queries.append(query)
        return [{"name": name, "description": text} for name, text in library.descriptions.items()]

    tools = [library.load_skill, library.run_skill_script, search_skills]
    agent = Agent(OfflineModel(), instructions="<available_skills/>", tools=tools)
    assert (await agent.run("count the words in notes.md")).output == "notes.md: 3 words"
    assert queries == ["count words markdown"]
    assert (await agent.run("what is the capital of France")).output.startswith("Nothing fits")


async def test_a_missing_or_broken_catalogue_is_replaced_by_the_list(library: Any) -> None:
    def list_skills() -> list[dict[str, str]]:
        """List."""
        return [{"name": name, "description": text} for name, text in library.descriptions.items()]

    tools = [library.load_skill, library.run_skill_script, list_skills]
    agent = Agent(OfflineModel(), instructions="<available_skills><skill></available_skills>", tools=tools)
    assert (await agent.run("count the words in notes.md")).output == "notes.md: 3 words"


async def test_the_catalogue_is_read_from_a_system_prompt_too(library: Any) -> None:
    agent = Agent(OfflineModel(), tools=[library.load_skill, library.run_skill_script])
    history = [ModelRequest([SystemPromptPart(library.catalog()), UserPromptPart("count the words in notes.md")])]
    assert (await agent.run(message_history=history)).output == "notes.md: 3 words"


async def test_streaming_gives_the_same_answer_in_several_deltas(library: Any) -> None:
    text: list[str] = []
    args: list[str] = []
    agent = library.agent(OfflineModel())
    async with agent.iter("How many words are in notes.md?") as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    async for event in stream:
                        if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                            text.append(event.delta.content_delta)
                        if isinstance(event, PartDeltaEvent) and isinstance(event.delta, ToolCallPartDelta):
                            args.append(str(event.delta.args_delta))
    assert run.result is not None
    assert run.result.output == "notes.md: 3 words"
    assert len(text) >= 2
    assert len(args) >= 4, "the arguments of two calls, each in more than one delta"
    assert len(library.calls) == 2


async def test_usage_is_zero_and_the_name_is_offline(library: Any) -> None:
    result = await library.agent(OfflineModel()).run("count the words in notes.md")
    responses = [message for message in result.all_messages() if isinstance(message, ModelResponse)]
    assert {(r.model_name, r.usage.total_tokens) for r in responses} == {("offline", 0)}
    assert result.usage.total_tokens == 0


async def test_the_same_messages_give_the_same_step(library: Any) -> None:
    agent = library.agent(OfflineModel())
    first, second = [await agent.run("count the words in notes.md") for _ in range(2)]
    steps = [
        [
            (part.tool_name, part.args)
            for m in run.all_messages()
            if isinstance(m, ModelResponse)
            for part in m.tool_calls
        ]
        for run in (first, second)
    ]
    assert steps[0] == steps[1]
    assert len(steps[0]) == 2


async def test_structured_output_is_refused_with_a_hint() -> None:
    class Answer(BaseModel):
        number: int

    with pytest.raises(ModelError, match="text only") as caught:
        await Agent(OfflineModel(), output_type=Answer).run("count")
    assert "--model" in caught.value.hint


async def test_without_skills_it_says_that_there_are_none(tmp_path: Path) -> None:
    response = await OfflineModel().request(
        [ModelRequest([UserPromptPart("count words in a.md")])], None, ModelRequestParameters()
    )
    assert "No skills found in this project." in str(response.text)
