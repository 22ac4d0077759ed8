"""What is no rule, no agent, no limit is an error with a hint, before anything is written; never a raw exception."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import Conversation
from bough.errors import BoughError, InvalidInput
from bough.guard import AlwaysConfirm, Secrets
from bough.settings import Settings
from bough.testing import ScriptedModel


def look() -> str:
    """Look."""
    return "looked"


@pytest.fixture
def conversation(tmp_path: Path, settings: Settings) -> Iterator[Any]:
    spec = AgentSpec(model=ScriptedModel(["one"]), skills=())
    with Conversation(spec, workspace=tmp_path, store="memory:", settings=settings) as opened:
        yield opened


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"confirmation_polcy": AlwaysConfirm()}, "no rule named 'confirmation_polcy'"),
        ({"confirmation_policy": "ask"}, "confirmation_policy: this is a str"),
        ({"security_analyzer": "rules"}, "security_analyzer: a str has no method analyze"),
        ({"hooks": ["x"]}, "hooks: this is a list"),
        ({"allow_list": ["look"]}, "allow_list: this is a list"),
        ({"condenser": 3}, "condenser: a int has no method condense"),
        ({"secrets": {"TOKEN": "x"}}, "secrets: this is a dict"),
        ({"limits": 3}, "limits: this is a int"),
        ({"limits": [3]}, "invalid limits"),
        ({"tags": 3}, "tags: this is a int"),
        ({"tags": {"a": 1}}, "tags must map names to texts"),
        ({"title": 3}, "a title must be text"),
        ({"executor": "sandbox"}, "executor: a str executes nothing"),
        ({"id": "x"}, "not an id"),
        ({"workspace": "/nowhere/at/all"}, "is not a folder"),
    ],
)
def test_a_new_conversation_refuses_what_it_does_not_know(
    given: dict[str, Any], says: str, tmp_path: Path, settings: Settings
) -> None:
    spec = AgentSpec(model=ScriptedModel(["one"]), skills=())
    with pytest.raises(InvalidInput) as refused:
        Conversation(spec, **{"workspace": tmp_path, "store": "memory:", "settings": settings, **given})
    assert says in refused.value.message
    assert refused.value.hint


def test_a_rule_that_is_misspelled_names_the_nearest(conversation: Any) -> None:
    named: Any = {"confirmation_polcy": AlwaysConfirm()}
    with pytest.raises(InvalidInput) as refused:
        Conversation.open(conversation.id, store="memory:", settings=conversation.settings, **named)
    assert refused.value.hint == "did you mean `confirmation_policy`?"


@pytest.mark.parametrize(
    "use",
    [
        lambda c: c.set_confirmation_policy("ask"),
        lambda c: c.set_limits(3),
        lambda c: c.set_model(3),
        lambda c: c.fork(reset_metrics="no"),
        lambda c: c.fork(inherit_tags="no"),
        lambda c: c.fork(ephemeral="no"),
        lambda c: c.set_title(3),
        lambda c: c.set_tags(3),
        lambda c: c.ask(3),
        lambda c: c.ask(" "),
        lambda c: c.run(limits=3),
        lambda c: c.run(on_event=3),
        lambda c: c.append("x"),
        lambda c: c.compare(3),
        lambda c: c.graft(3),
        lambda c: c.send_message("x", images="dot.png"),
        lambda c: c.send_message("x", files=3),
        lambda c: c.send_message(3, images=[b"x"]),
        lambda c: c.reject(reason=3),
        lambda c: c.approve(by=3),
        lambda c: c.fork(at="x"),
        lambda c: c.fork(tags=["a"]),
        lambda c: c.fork(tags={"a": 1}),
        lambda c: c.fork(overrides={"bogus": 1}),
        lambda c: c.fork(overrides={"model": 3}),
        lambda c: c.fork(overrides={"system_prompt": 3}),
        lambda c: c.fork(overrides={"confirmation_policy": "ask"}),
    ],
)
def test_a_wrong_argument_is_told_and_nothing_is_written(conversation: Any, use: Callable[[Any], object]) -> None:
    head = conversation.state.head
    with pytest.raises(BoughError) as refused:
        use(conversation)
    assert refused.value.message
    assert refused.value.hint
    assert conversation.state.head == head
    conversation.send_message("go")
    assert conversation.run().output == "one"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"modle": "offline"}, "an agent has no field 'modle'"),
        ({"model": 3}, "AgentSpec.model"),
        ({"fallback": "openai:gpt-5"}, "AgentSpec.fallback: expected a list"),
        ({"tools": look}, "AgentSpec.tools: expected a list"),
        ({"tools": [3]}, "not a tool: 3"),
        ({"tools": [lambda: 1]}, "invalid tool name '<lambda>'"),
        ({"tools": [look, look]}, "two tools are named 'look'"),
        ({"retry": {"tries": 3}}, "AgentSpec.retry: expected a RetryPolicy"),
        ({"retry": 3}, "AgentSpec.retry: expected a RetryPolicy"),
        ({"settings": 3}, "AgentSpec.settings: expected a mapping"),
        ({"output_type": "City"}, "AgentSpec.output_type: expected a type"),
        ({"executor": "sandbox"}, "the executor has no method `execute`"),
        ({"sub_agents": [3]}, "valid dictionary or instance of AgentSpec"),
        ({"system_prompt": "x", "system_prompt_path": "y"}, "system_prompt and system_prompt_path are both set"),
        ({"limits": 3}, "invalid limits"),
    ],
)
def test_an_agent_says_what_of_it_is_wrong(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        AgentSpec(**fields)
    assert says in refused.value.message
    assert refused.value.hint


def test_a_secret_that_is_given_as_text_is_refused() -> None:
    """It would be read by nobody and masked nowhere."""
    providers: Any = {"TOKEN": "swordfish"}
    with pytest.raises(InvalidInput) as refused:
        Secrets(providers)
    assert "swordfish" not in refused.value.message + refused.value.hint


def test_a_run_that_fails_has_a_result_of_its_own(tmp_path: Path, settings: Settings) -> None:
    spec = AgentSpec(model=ScriptedModel(["one", ValueError("broken")]), skills=())
    with Conversation(spec, workspace=tmp_path, store="memory:", settings=settings) as conversation:
        conversation.send_message("go")
        conversation.run()
        conversation.send_message("again")
        with pytest.raises(BoughError):
            conversation.run()
        assert conversation.result is not None
        assert (conversation.result.status, conversation.result.output, conversation.result.steps) == ("error", "", 1)
        assert conversation.result.reason
