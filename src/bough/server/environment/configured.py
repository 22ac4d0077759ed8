"""The operator's agents: those of the `config.yaml` in bough's own folder."""

from __future__ import annotations

from bough.agents.config.agents import AgentConfig
from bough.agents.spec import AgentSpec
from bough.settings import Settings
from bough.tasks.agents import is_data


def load_configured(settings: Settings) -> dict[str, AgentSpec]:
    """Return the agents of the home's `config.yaml` by name; none without the file. Code that it names is imported.

    A project's `config.yaml` is ignored: what a server serves does not depend on the folder it was started in.

    Raises:
        InvalidInput: The file has a mistake.
        NotFound: It refers to something that does not exist.
    """
    path = settings.home / "config.yaml"
    if not path.is_file():
        return {}
    names = AgentConfig.load(path, settings=settings).names
    return {name: AgentSpec.from_config(name, config_path=path, settings=settings) for name in names}


def list_for_workers(settings: Settings) -> list[AgentSpec]:
    """Return the configured agents that a worker must be given: their records are incomplete (sub-agents, code).

    Their definitions are found as for any worker: a project's `config.yaml` may narrow the home's, and
    replace its values once it is trusted.

    Raises: see `load_configured`.
    """
    specs = [AgentSpec.from_config(name, settings=settings) for name in load_configured(settings)]
    return [spec for spec in specs if not is_data(spec.snapshot())]
