"""From model strings to models: what is taken when nothing is named, and what every mistake says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pydantic_ai import Agent
from pydantic_ai.models import known_model_names
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

from bough.agents.models.offline import OfflineModel
from bough.agents.models.resolve import resolve_model
from bough.errors import InvalidInput, Unavailable

URL = "http://127.0.0.1:9/v1"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_BASE_URL")):
            monkeypatch.delenv(name)


def test_nothing_named_and_no_key_is_offline_and_says_why() -> None:
    resolved = resolve_model(None, env={"OPENAI_API_KEY": ""})
    assert isinstance(resolved.model, OfflineModel)
    assert (resolved.name, resolved.reason) == ("offline", "no model named and no key set")


def test_a_key_in_env_chooses_that_providers_default_and_is_the_one_used() -> None:
    resolved = resolve_model(None, env={"OPENAI_API_KEY": "sk-from-env"})
    assert isinstance(resolved.model, OpenAIResponsesModel)
    assert resolved.name in known_model_names()
    assert resolved.reason == "OPENAI_API_KEY is set"
    assert resolved.model.client.api_key == "sk-from-env"


@pytest.fixture
def without_anthropic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package cannot be imported, as where it is not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "anthropic" or name.endswith(".anthropic")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "anthropic", None)


@pytest.mark.usefixtures("without_anthropic")
def test_a_key_without_its_package_is_told_and_does_not_stop_the_run() -> None:
    resolved = resolve_model(None, env={"ANTHROPIC_API_KEY": "x"})
    assert resolved.name == "offline"
    assert resolved.reason == "ANTHROPIC_API_KEY is set but bough[anthropic] is not installed"
    assert resolve_model(None, env={"ANTHROPIC_API_KEY": "x", "OPENAI_API_KEY": "y"}).name.startswith("openai:")


@pytest.mark.usefixtures("without_anthropic")
def test_a_missing_package_names_the_extra() -> None:
    with pytest.raises(Unavailable, match="anthropic") as caught:
        resolve_model("anthropic:claude-sonnet-5-5", env={"ANTHROPIC_API_KEY": "x"})
    assert caught.value.hint == 'pip install "bough[anthropic]"'


def test_every_default_is_a_model_that_is_known() -> None:
    from bough.agents.models.resolve import _KEYED

    assert {provider.default for provider in _KEYED.values()} <= set(known_model_names())


@pytest.mark.parametrize(
    ("name", "variable"), [("openai:gpt-6-luna", "OPENAI_API_KEY"), ("deepseek:deepseek-flash", "DEEPSEEK_API_KEY")]
)
def test_a_missing_key_names_its_variable(name: str, variable: str) -> None:
    with pytest.raises(Unavailable, match=variable) as caught:
        resolve_model(name, env={})
    assert f"export {variable}=" in caught.value.hint
    assert caught.value.exit_code == 6


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("opnai:gpt-6-luna", "did you mean openai:gpt-6-luna?"),
        ("gpt-6-luna", "did you mean openai:gpt-6-luna?"),
        ("claude-sonet-5-5", "did you mean anthropic:claude-sonnet-5-5?"),
        ("ofline", "did you mean offline?"),
        ("openai:", "openai:NAME"),
        ("anthropic", "anthropic:NAME"),
        ("", "provider:model"),
        ("test", "provider:model"),
        (":x", "known ones: "),
        ("gateway/nosuch:x", "known ones: "),
    ],
)
def test_an_unknown_string_says_what_was_probably_meant(name: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        resolve_model(name, env={})
    assert hint in caught.value.hint


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x/v1", "http://", "http://[::1", ""])
def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="base URL"):
        resolve_model("openai:x", base_url=url, env={})


def test_a_base_url_with_a_password_is_refused_without_repeating_it() -> None:
    with pytest.raises(InvalidInput) as caught:
        resolve_model("openai:x", base_url="http://me:hunter2@127.0.0.1/v1", env={})
    assert "hunter2" not in f"{caught.value.message}{caught.value.hint}"


def test_a_base_url_without_a_model_asks_for_one() -> None:
    with pytest.raises(InvalidInput, match="is set, but no model"):
        resolve_model(None, base_url=URL, env={"OPENAI_API_KEY": "x"})


def test_a_local_server_needs_no_key_and_speaks_chat_completions() -> None:
    resolved = resolve_model("openai:qwen3", base_url=URL, env={})
    assert isinstance(resolved.model, OpenAIChatModel)
    assert str(resolved.model.client.base_url).rstrip("/") == URL
    assert isinstance(resolve_model("openai-responses:x", base_url=URL, env={}).model, OpenAIResponsesModel)


def test_offline_needs_neither_key_nor_url_nor_the_openai_package() -> None:
    code = (
        "import sys; from bough.agents.models.resolve import resolve_model\n"
        "assert 'pydantic_ai' not in sys.modules\n"
        "assert resolve_model('offline', env={}).name == 'offline'\n"
        "assert 'openai' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.anyio
async def test_a_named_offline_model_runs() -> None:
    result = await Agent(resolve_model("offline", env={}).model).run("hello")
    assert result.output.startswith("Nothing fits")
