"""config.yaml: the example of the documentation works, and every mistake is told with its line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from bough.agents.agent import get_agent
from bough.agents.config.agents import AgentConfig, find_faults
from bough.agents.config.code import digest_project_configs
from bough.agents.config.schema import json_schema
from bough.agents.spec import AgentSpec
from bough.errors import InvalidInput, NotFound, PermissionDenied, Unavailable
from bough.guard import AllowList, AlwaysConfirm, ConfirmRisky
from bough.settings import Settings
from bough.skills import TrustStore

EXAMPLE = """\
models:
  default: openai:gpt-5
  azure_gpt4: {model_family: azure, model_name: gpt-4, api_key: "${AZURE_KEY}", endpoint: "https://x.openai.azure.com/",
               api_version: "2024-02-15-preview", timeout: 120, parallel_tool_calls: true}
  local: {model: "openai-chat:llama3", base_url: "http://127.0.0.1:11434/v1", settings: {temperature: 0.2}}
agents:
  coordinator:
    description: Coordinates analysis tasks
    model: default
    system_prompt_path: prompts/coordinator.md
    tools: ["acme_tools.files:get_all_tools"]
    mcp_servers: [data_analysis]
    skill_roots: [skills/]
    skills: [code-review]
    sub_agents: [analyst, researcher]
    workspace_access: read
    ask: true
    confirmation_policy: rules
    limits: {requests: 60, cost_usd: 2}
  analyst: {model: default, description: Answers questions about the tables, mcp_servers: [sql], workspace: readonly,
            allow_list: [read_file, list_files, sql_query], limits: {requests: 15}}
  researcher: {model: local, description: Searches the web and sums up, queue: web}
mcp_servers:
  data_analysis: {url: "http://127.0.0.1:8001/mcp", bearer_token: "${MCP_TOKEN}", start_timeout: 30, read_timeout: 60,
                  tool_prefix: data, allowed_tools: [describe, plot]}
  sql: {command: uvx, args: [sql-mcp, "--readonly"], env: {DB: "${DB:-sqlite:///x.db}"}}
a2a: {clients: {nl2sql: {url: "https://agents.example/nl2sql", bearer_token: "${NL2SQL_TOKEN}", timeout: 300}}}
secrets: {GITHUB_TOKEN: {env: GITHUB_TOKEN}, DB_PASSWORD: {file: /run/secrets/db}}
"""

TOOLS = """\
def add(a: int, b: int) -> int:
    "Add."
    return a + b

def get_all_tools():
    return [add]
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "prompts").mkdir(parents=True)
    (folder / "acme_tools").mkdir()
    (folder / "acme_tools" / "__init__.py").write_text("")
    (folder / "acme_tools" / "files.py").write_text(TOOLS)
    (folder / "prompts" / "coordinator.md").write_text('Work. {"a": 1}\n{sub_agents_catalog}')
    skill = folder / "skills" / "code-review"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: code-review\ndescription: Review code.\n---\nReview.\n")
    (folder / "config.yaml").write_text(EXAMPLE)
    monkeypatch.setenv("MCP_TOKEN", "mcp-key-1")
    monkeypatch.delenv("BOUGH_CONFIG", raising=False)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if not k.startswith("acme_tools")})
    return folder


def trust(project: Path, settings: Settings) -> None:
    TrustStore(settings.home).trust(project, other_files=digest_project_configs(project))


def test_the_example_becomes_a_tree_of_agents(project: Path, settings: Settings) -> None:
    trust(project, settings)
    spec = AgentSpec.from_config("coordinator", settings=settings)
    assert (spec.name, spec.model, spec.ask, spec.workspace_access) == ("coordinator", "openai:gpt-5", True, "read")
    assert [getattr(tool, "__name__", "") for tool in spec.tools] == ["add"]
    assert spec.confirmation_policy == ConfirmRisky()
    assert spec.limits is not None
    assert (spec.limits.requests, spec.limits.cost_usd) == (60, 2)
    assert [skill.name for skill in spec.skills or ()] == ["code-review"]
    assert spec.prompt().startswith('Work. {"a": 1}')
    (server,) = spec.mcp_servers
    assert (server.bearer_token, server.tool_prefix, server.allowed_tools) == (
        "mcp-key-1",
        "data",
        ("describe", "plot"),
    )
    analyst, researcher = spec.sub_agents
    assert analyst.mcp_servers[0].env == {"DB": "sqlite:///x.db"}
    assert analyst.workspace == "readonly"
    assert (researcher.base_url, researcher.settings, researcher.queue) == (
        "http://127.0.0.1:11434/v1", {"temperature": 0.2}, "web",
    )  # fmt: skip
    assert "mcp-key-1" not in f"{spec.snapshot()} {spec!r}"


def test_the_example_fits_the_schema_and_a_mistake_does_not() -> None:
    schema = json_schema()
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    data = yaml.safe_load(EXAMPLE)
    assert list(validator.iter_errors(data)) == []
    data["agents"]["analyst"]["modle"] = "x"
    data["mcp_servers"]["both"] = {"url": "http://x", "command": "y"}
    assert len(list(validator.iter_errors(data))) == 2


def test_code_programs_and_variables_of_a_cloned_project_need_trust(project: Path, settings: Settings) -> None:
    for name in ("coordinator", "analyst", "researcher"):
        with pytest.raises(PermissionDenied, match="not trusted") as refused:
            AgentSpec.from_config(name, settings=settings)
        assert "bough skills trust" in refused.value.hint
        assert refused.value.exit_code == 4
    trust(project, settings)
    AgentSpec.from_config("coordinator", settings=settings)
    (project / "acme_tools" / "files.py").write_text(TOOLS + "\n# changed")
    with pytest.raises(PermissionDenied):
        AgentSpec.from_config("coordinator", settings=settings)


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        ("system_prompt_path: SECRET", "outside its folder"),
        ("system_prompt_path: link.md", "outside its folder"),
        ("skill_roots: [skills]", "skill_roots"),
        ("workspace_access: run", "workspace_access 'run'"),
        ("workspace_access: write", "workspace_access 'write'"),
        ("confirmation_policy: allow", "confirmation_policy 'allow'"),
        ("confirmation_policy: {kind: ConfirmRisky, threshold: HIGH, confirm_unknown: false}", "confirmation_policy"),
        ("limits: {per: run, steps: 100000}", "limits"),
        ("limits: {cost_usd: 1, unpriced: allow}", "limits"),
        ("settings: {extra_body: {a: 1}}", "extra_body"),
        ("model: keyed", "a key"),
        ("mcp_servers: [theirs]", "http://127.0.0.1:9/mcp"),
        ("mcp_servers: [mine]", "'mine' of another file"),
        ("a2a_clients: [far]", "'far' of another file"),
        ("sub_agents: [careful]", "'careful' of another file"),
    ],
)
def test_an_agent_of_an_untrusted_file_is_refused_what_needs_trust(
    project: Path, settings: Settings, tmp_path: Path, agent: str, says: str
) -> None:
    settings.home.mkdir()
    (settings.home / "config.yaml").write_text(
        "agents: {careful: {}}\nmcp_servers: {mine: {command: x}}\na2a: {clients: {far: {url: http://127.0.0.1:9}}}\n"
    )
    secret = tmp_path / "secret.txt"
    secret.write_text("a private text")
    (project / "link.md").symlink_to(secret)
    (project / "config.yaml").write_text(
        f"agents:\n  new: {{{agent.replace('SECRET', str(secret))}}}\n"
        'models: {keyed: {model: "openai:gpt-5", api_key: theirs}}\n'
        'mcp_servers: {theirs: {url: "http://127.0.0.1:9/mcp"}}\n'
    )
    with pytest.raises(PermissionDenied, match=says):
        AgentSpec.from_config("new", settings=settings)
    trust(project, settings)
    AgentSpec.from_config("new", settings=settings)


def test_an_untrusted_file_narrows_and_replaces_nothing(
    project: Path, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.home.mkdir()
    (settings.home / "config.yaml").write_text(
        "models: {default: offline}\n"
        "agents:\n"
        "  a: {system_prompt: mine, workspace_access: write, confirmation_policy: rules, limits: {requests: 5},\n"
        "      sub_agents: [b]}\n"
        "  b: {queue: slow}\n"
        "secrets: {TOKEN: {env: TOKEN}}\n"
    )
    (project / "config.yaml").write_text(
        "models: {default: openai:gpt-5, more: offline}\n"
        "agents:\n"
        "  a: {system_prompt: mine, workspace_access: read, confirmation_policy: ask,\n"
        "      limits: {requests: 3, steps: 9}, allow_list: [read_file], sub_agents: []}\n"
        "  b: {queue: fast, limits: {requests: 10}, model: more}\n"
        "  c: {model: more}\n"
        "secrets: {TOKEN: {env: OTHER}}\n"
    )
    a = AgentSpec.from_config("a", settings=settings)
    assert (a.system_prompt, a.workspace_access, a.confirmation_policy) == ("mine", "read", AlwaysConfirm())
    assert a.limits is not None
    assert (a.limits.requests, a.limits.steps) == (3, 9)
    assert (a.allow_list, a.sub_agents, a.model) == (AllowList.of("read_file"), (), "offline")
    b = AgentSpec.from_config("b", settings=settings)
    assert (b.queue, b.model) == ("slow", "offline")
    assert AgentSpec.from_config("c", settings=settings).model == "offline"
    ignored = [fault.message.partition(": ")[2].split(" ")[0] for fault in find_faults(None, settings=settings)]
    assert ignored == ["models.default", "secrets.TOKEN", "agents.b.queue", "agents.b.model"]
    assert "models.default is ignored" in caplog.text


def test_a_mistake_in_an_untrusted_file_is_not_mended_by_the_homes_values(project: Path, settings: Settings) -> None:
    settings.home.mkdir()
    (settings.home / "config.yaml").write_text(
        "models: {default: offline}\na2a: {clients: {far: {url: 'http://127.0.0.1:9'}}}\n"
    )
    (project / "config.yaml").write_text("models: {default: openai:gpt-5}\na2a: {clients: {far: {timeout: 5}}}\n")
    with pytest.raises(InvalidInput, match=r"a2a.clients.far"):
        AgentConfig.load(settings=settings)


def test_a_mistake_in_the_homes_file_is_found_beside_an_untrusted_file(project: Path, settings: Settings) -> None:
    settings.home.mkdir()
    (settings.home / "config.yaml").write_text("models: 5\n")
    (project / "config.yaml").write_text("models: {default: openai:gpt-5}\n")
    [fault] = find_faults(None, settings=settings)
    assert fault.details["file"] == str(settings.home / "config.yaml")


def test_a_file_below_the_home_is_not_the_homes(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = settings.home / "workspaces" / "a"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("agents: {a: {tools: ['acme_tools.files:get_all_tools']}}\n")
    monkeypatch.chdir(folder)
    with pytest.raises(PermissionDenied):
        AgentSpec.from_config("a", settings=settings)


def test_a_file_that_was_named_may_read_the_environment_but_names_no_code(project: Path, settings: Settings) -> None:
    file = project / "config.yaml"
    assert AgentSpec.from_config("analyst", config_path=file, settings=settings).mcp_servers[0].command == "uvx"
    with pytest.raises(PermissionDenied):
        AgentSpec.from_config("coordinator", config_path=file, settings=settings)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("mcp_servers: [data_analysis]", "mcp_servers: [data_analyis]",
         '12: …mcp_servers[0]: no server named "data_analyis"; did you mean "data_analysis"'),
        ("sub_agents: [analyst, researcher]", "sub_agents: [analist]",
         "15: …sub_agents[0]: no agent named 'analist'; did you mean 'analyst'?"),
        ("    ask: true", "    aks: true", "17: …aks: unknown key; did you mean 'ask'?"),
        ("    ask: true", "    ask: perhaps", "17: …ask: Input should be a valid boolean"),
        ("    model: default", "    model: defualt", "9: …model: no model named 'defualt'"),
        ("requests: 60", "requests: -1", "19: …limits.requests: Input should be greater"),
        ("sql: {command: uvx", "sql: {url: http://x, command: uvx", "26: mcp_servers.sql: needs exactly one"),
        ("model: local, description", "sub_agents: [coordinator], description", "is its own sub-agent"),
        ("secrets: {", "secrets: [", "28: not valid YAML"),
        ("agents:\n", "agents:\n  analyst: {}\n", "21: 'analyst' appears twice"),
        ("tools: [\"acme_tools.files:get_all_tools\"]", "tools: [\"acme tools\"]", "expected module:factory"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(project: Path, settings: Settings, old: str, new: str, says: str) -> None:
    assert old in EXAMPLE
    (project / "config.yaml").write_text(EXAMPLE.replace(old, new))
    with pytest.raises(InvalidInput) as raised:
        AgentSpec.from_config("coordinator", settings=settings)
    said = raised.value.message.replace("agents.coordinator.", "…").replace('"', "'")
    assert said.partition("config.yaml:")[2].startswith(says.replace('"', "'")) or says in said


def test_all_mistakes_of_a_file_are_found_before_the_first_is_raised(project: Path, settings: Settings) -> None:
    text = EXAMPLE.replace("[data_analysis]", "[nowhere]").replace("mcp_servers: [sql]", "mcp_servers: [sqll]")
    (project / "config.yaml").write_text(text)
    with pytest.raises(InvalidInput) as raised:
        AgentConfig.load(settings=settings)
    assert raised.value.details["line"] == 12
    assert raised.value.details["key"] == "agents.coordinator.mcp_servers[0]"
    assert len(raised.value.details["more"]) == 1
    assert len(find_faults(None, settings=settings)) == 2


def test_an_unset_variable_is_told_when_its_entry_is_used(
    project: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(project, settings)
    monkeypatch.delenv("MCP_TOKEN")
    AgentSpec.from_config("researcher", settings=settings)
    with pytest.raises(Unavailable, match=r"mcp_servers\.data_analysis\.bearer_token needs .* MCP_TOKEN"):
        AgentSpec.from_config("coordinator", settings=settings)


def test_what_is_given_wins_over_the_file_for_every_parameter(project: Path, settings: Settings) -> None:
    trust(project, settings)
    spec = AgentSpec.from_config(
        "coordinator", "offline", None, [], [], [], [], None,
        description="", system_prompt="Mine.", sub_agent_names=[], executor=None, limits=None, settings=settings,
    )  # fmt: skip
    assert (spec.model, spec.system_prompt, spec.description) == ("offline", "Mine.", "")
    assert (*spec.tools, *spec.mcp_servers, *spec.sub_agents, *spec.skill_roots) == ()
    assert (spec.limits, spec.skills) == (None, None)
    with pytest.raises(NotFound, match="no MCP server named 'x'"):
        AgentSpec.from_config("coordinator", mcp_server_names=["x"], settings=settings)
    with pytest.raises(NotFound, match="no model named 'x'"):
        AgentSpec.from_config("coordinator", model_name="x", settings=settings)
    with pytest.raises(NotFound, match="did you mean 'analyst'"):
        AgentSpec.from_config("analist", settings=settings)


def test_files_extend_one_another_and_the_home_lies_below(project: Path, settings: Settings, tmp_path: Path) -> None:
    settings.home.mkdir(parents=True)
    (settings.home / "config.yaml").write_text("models: {default: offline, extra: offline}\n")
    (tmp_path / "base.yaml").write_text("agents:\n  analyst: {description: base, queue: slow, limits: {requests: 1}}\n")
    (project / "config.yaml").write_text(
        "extends: ../base.yaml\nagents:\n  analyst: {description: mine, limits: {requests: 2}}\n  b: {model: extra}\n"
    )
    with pytest.raises(PermissionDenied, match="outside its project"):
        AgentSpec.from_config("analyst", settings=settings)
    trust(project, settings)
    spec = AgentSpec.from_config("analyst", settings=settings)
    assert (spec.description, spec.queue, spec.model) == ("mine", "slow", "offline")
    assert spec.limits is not None
    assert spec.limits.requests == 2
    (tmp_path / "base.yaml").write_text("extends: project/config.yaml\n")
    with pytest.raises(InvalidInput, match="extends itself"):
        AgentSpec.from_config("analyst", settings=settings)


def test_braces_that_are_no_variables_stay(project: Path, settings: Settings) -> None:
    agents = "agents: {a: {system_prompt: 'say ${X} and {y}'}}\n"
    models = "models: {default: {model: offline, settings: {stop: '$$5'}}}\n"
    (project / "config.yaml").write_text(agents + models)
    spec = AgentSpec.from_config("a", settings=settings)
    assert spec.system_prompt == "say ${X} and {y}"
    assert spec.settings == {"stop": "$5"}


def test_an_alias_bomb_is_refused(project: Path, settings: Settings) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (project / "config.yaml").write_text("\n".join(lines))
    with pytest.raises(InvalidInput, match="too large"):
        AgentConfig.load(settings=settings)


def test_an_agent_is_made_of_a_model_entry(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUGH_CONFIG", str(project / "config.yaml"))
    monkeypatch.setenv("AZURE_KEY", "k")
    agent: Any = get_agent(config_name="azure_gpt4", model_settings={"temperature": 0.5})
    assert agent.model.model_name == "gpt-4"
    assert agent.model_settings == {"timeout": 120, "parallel_tool_calls": True, "temperature": 0.5}
    with pytest.raises(NotFound, match="no model named 'nowhere'"):
        get_agent(config_name="nowhere")


def test_remote_agents_are_clients_by_name(project: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    text = EXAMPLE.replace("    ask: true\n", "    ask: true\n    a2a_clients: [nl2sql]\n")
    (project / "config.yaml").write_text(text)
    with pytest.raises(PermissionDenied):  # its address would be sent prompts
        AgentSpec.from_config("coordinator", settings=settings)
    trust(project, settings)
    monkeypatch.setenv("NL2SQL_TOKEN", "a-token")
    [client] = AgentSpec.from_config("coordinator", settings=settings).a2a_clients
    assert (client.config.name, client.config.timeout, client.config.bearer_token) == ("nl2sql", 300, "a-token")
    assert AgentSpec(a2a_clients=[client]).snapshot()["a2a_clients"] == ["nl2sql"]
