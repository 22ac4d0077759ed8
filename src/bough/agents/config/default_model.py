"""The default model of agents: `models.default` of the configuration.

An untrusted `config.yaml` in the working folder cannot set the default model, because it would then decide where every
conversation in the folder is sent. Only the file in bough's own folder, a file that the user passed, and a file that
the user trusted are read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from bough.agents.config.check import validate
from bough.agents.config.code import CodeGate, is_trusted
from bough.agents.config.file import NAME, find_config, read_config
from bough.agents.config.layers import load_layers
from bough.agents.config.models import read_model
from bough.errors import BoughError
from bough.settings import Settings


def read_default_model(settings: Settings, *, env: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the fields `model`, `base_url` and `settings` of `models.default`; empty if it is not set.

    Reads the files at each call. Mistakes in other parts of the files are not reported.

    Raises:
        InvalidInput: A file cannot be read, or its default model is invalid.
        Unavailable: An environment variable is not set.
    """
    return _read_fields(settings, env, with_key=False)


def find_default_key(
    model: str, base_url: str | None, settings: Settings, *, env: Mapping[str, str] = os.environ
) -> str | None:
    """Return the key of `models.default` if that entry has this model and address; otherwise None.

    So the key is never sent to another address, such as a base URL of the settings.

    Raises:
        Unavailable: The entry matches, and the environment variable of the key is not set.
    """
    try:
        default = _read_fields(settings, env, with_key=False)
    except BoughError:
        return None  # an unreadable entry cannot have set this model
    if (default.get("model"), default.get("base_url")) != (model, base_url):
        return None
    return _read_fields(settings, env, with_key=True).get("api_key")


def _read_fields(settings: Settings, env: Mapping[str, str], *, with_key: bool) -> dict[str, Any]:
    """Return the fields of `models.default`; `api_key` only if `with_key`."""
    home, is_named = settings.home, bool(env.get("BOUGH_CONFIG"))
    files = find_config(None, home=home, cwd=Path.cwd(), env=env)
    files = [file for file in files if is_named or file == home / NAME or _is_trusted(file, home)]
    if not files:
        return {}
    file = load_layers(files, home=home, is_named=is_named, policy=settings.policy)
    models: Any = file.data.get("models")
    if not models or (isinstance(models, dict) and "default" not in models):
        return {}
    if isinstance(models, dict):
        entry: Any = cast("dict[str, Any]", models)["default"]
        if isinstance(entry, dict) and not with_key:
            # Dropped before variables are expanded, so that the model can be read even if the key's variable is unset.
            entry = {key: value for key, value in cast("dict[str, Any]", entry).items() if key != "api_key"}
        models = cast("dict[str, Any]", {"default": entry})
    file.data = {"models": models}
    return read_model(None, validate(file), file, gate=CodeGate(home, file), env=env)


def _is_trusted(file: Path, home: Path) -> bool:
    try:
        return is_trusted(read_config(file), home)
    except BoughError:
        return False  # may be another program's config.yaml
