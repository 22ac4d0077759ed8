"""The model of an agent that names none: `models.default` of the configuration.

A `config.yaml` that merely lies in the working folder does not choose it: it would choose who is sent every
conversation there. Only the file of bough's own folder counts, one that the user named, and one that the user trusted.
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
    """Return the fields `model`, `base_url` and `settings` of `models.default`; empty without it.

    Reads the files each time; of the rest of them, mistakes do not matter.

    Raises:
        InvalidInput: A file that counts cannot be read, or its default model is not described right.
        Unavailable: An environment variable is not set.
    """
    return _read(settings, env, with_key=False)


def find_default_key(
    model: str, base_url: str | None, settings: Settings, *, env: Mapping[str, str] = os.environ
) -> str | None:
    """Return the key of `models.default` if that is this very model at this address; None otherwise.

    A base URL of the settings is not the entry's address, so its key is not sent there.

    Raises:
        Unavailable: It is that model, and the environment variable of its key is not set.
    """
    try:
        default = _read(settings, env, with_key=False)
    except BoughError:
        return None  # what cannot be read did not choose this model
    if (default.get("model"), default.get("base_url")) != (model, base_url):
        return None
    return _read(settings, env, with_key=True).get("api_key")


def _read(settings: Settings, env: Mapping[str, str], *, with_key: bool) -> dict[str, Any]:
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
            entry = {key: value for key, value in cast("dict[str, Any]", entry).items() if key != "api_key"}
        models = cast("dict[str, Any]", {"default": entry})
    file.data = {"models": models}
    return read_model(None, validate(file), file, gate=CodeGate(home, file), env=env)


def _is_trusted(file: Path, home: Path) -> bool:
    try:
        return is_trusted(read_config(file), home)
    except BoughError:
        return False  # as another program's file of that name: nobody trusted it
