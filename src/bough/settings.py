"""One frozen `Settings`, read once from arguments, the environment and `bough.yaml`.

Stdlib dataclass on purpose: a settings library would cost a read-only command half a second of imports.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from bough.errors import InvalidInput

PROJECT_KEYS = frozenset({"model", "timeout_seconds"})
"""What a `bough.yaml` in a working folder may set. Whatever could widen what may happen (executor, policy, base URL,
store, skill roots) is read from the home folder, the environment and arguments only: 
a cloned repository is not trusted."""

SECTIONS = frozenset({"server"})
"""Sections of the home's `bough.yaml` that others read: the agent server its own."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a model costs, in dollars per million tokens.

    Attributes:
        input: Tokens of the request that the provider's cache did not serve.
        output: Tokens of the response.
        cache_read: Tokens that the provider's cache served; None for the price of input.
        cache_write: Tokens that were written to that cache; None for the price of input.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def __post_init__(self) -> None:
        values: dict[str, object] = vars(self)
        for name, price in values.items():
            if price is None and name.startswith("cache_"):
                continue
            if not isinstance(price, int | float) or isinstance(price, bool) or not 0 <= price < float("inf"):
                raise InvalidInput(
                    f"the price {name} cannot be {price!r}", hint="give dollars per million tokens, 0 or more"
                )

    def calculate_usd(
        self, *, input_tokens: int, output_tokens: int, cache_read_tokens: int = 0, cache_write_tokens: int = 0
    ) -> float:
        """Return the cost of a request in dollars.

        Args:
            input_tokens: All input, including what the cache served and what was written to it.
        """
        uncached_tokens = max(input_tokens - cache_read_tokens - cache_write_tokens, 0)
        read_price = self.input if self.cache_read is None else self.cache_read
        write_price = self.input if self.cache_write is None else self.cache_write
        cost = (
            uncached_tokens * self.input
            + cache_read_tokens * read_price
            + cache_write_tokens * write_price
            + output_tokens * self.output
        )
        return cost / 1_000_000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where things are and what is used by default.

    Attributes:
        home: bough's own folder: store, trust, user settings.
        store: URL of the event store.
        model: A model string; None chooses by the keys that are set, else the offline planner.
        base_url: Address of an OpenAI-format server for `openai:` models.
        skill_roots: Folders of skills to use besides the usual places; these come first.
        executor: `sandbox`, `container:IMAGE`, or `unsafe` by explicit wish. `container` takes `container_image`.
        container_image: What `container` runs scripts in; never pulled.
        policy: Confirmation policy: `allow`, `ask` or `rules`; None where nobody said: `rules` in `bough run` and
            `chat` where the model may write, else `allow`.
        timeout_seconds: Wall time of a script; None takes the executor's default.
        fetch_networks: Private networks, such as `10.0.0.0/8`, that URLs of images and files may lead to, over plain
            HTTP too.
        prices: Prices of models by name, such as `my-model` or `openai:my-model`, for models whose prices are not
            known, or are others. Costs in logs, limits, budgets and reports are calculated with them.
    """

    home: Path
    store: str
    model: str | None = None
    base_url: str | None = None
    skill_roots: tuple[Path, ...] = ()
    executor: str = "sandbox"
    container_image: str = "python:3.13-slim"
    policy: str | None = None
    timeout_seconds: float | None = None
    fetch_networks: tuple[str, ...] = ()
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])

    @classmethod
    def load(
        cls,
        home: str | Path | None = None,
        store: str | None = None,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> Settings:
        """Return the settings: arguments over `BOUGH_*` over `./bough.yaml` over `<home>/bough.yaml` over defaults.

        Raises:
            InvalidInput: A file is not a YAML mapping, a key is unknown, or a value has the wrong shape.
        """
        env = os.environ if env is None else env
        chosen = _from_env(env)
        chosen |= {k: v for k, v in {"home": home, "store": store, **overrides}.items() if v is not None}
        where = Path(chosen.get("home") or Path(env.get("HOME") or Path.home()) / ".bough").expanduser().absolute()
        own = _from_file(where / "bough.yaml", (_KEYS - {"home"}) | SECTIONS)
        values = (
            {key: value for key, value in own.items() if key not in SECTIONS}
            | _from_file((cwd or Path.cwd()) / "bough.yaml", PROJECT_KEYS)
            | chosen
            | {"home": where}
        )
        values.setdefault("store", f"sqlite:///{where / 'bough.db'}")
        settings = cls(**{key: _SHAPES[key](key, value) for key, value in values.items()})
        if settings.executor == "container":
            return replace(settings, executor=f"container:{settings.container_image}")
        return settings


_KEYS = frozenset(field.name for field in fields(Settings))


def _from_env(env: Mapping[str, str]) -> dict[str, Any]:
    values = {key: env[f"BOUGH_{key.upper()}"] for key in _KEYS if env.get(f"BOUGH_{key.upper()}")}
    if "skill_roots" in values:
        return values | {"skill_roots": [root for root in values["skill_roots"].split(os.pathsep) if root]}
    return dict(values)


def _from_file(path: Path, allowed: frozenset[str]) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}", hint="fix the file or its permissions") from error
    import yaml

    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidInput(f"{path} is not valid YAML: {error}", hint="fix the line it names") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InvalidInput(f"{path} must contain `key: value` lines", hint=f"known keys: {', '.join(sorted(allowed))}")
    return {_check_key(str(key), allowed, path): value for key, value in data.items()}  # pyright: ignore


def _check_key(key: str, allowed: frozenset[str], path: Path) -> str:
    if key in allowed:
        return key
    if key in _KEYS:
        raise InvalidInput(
            f"{path} may not set `{key}`",
            hint="put it into bough.yaml in bough's home folder, or give it as an option",
        )
    near = get_close_matches(key, allowed, 1)
    raise InvalidInput(
        f"{path}: unknown key `{key}`",
        hint=f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(sorted(allowed))}",
    )


def _text(key: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    raise InvalidInput(f"setting `{key}` must be text, not {value!r}", hint="leave it out for its default")


def _path(key: str, value: Any) -> Path:
    if isinstance(value, (str, Path)) and str(value):
        return Path(value).expanduser().absolute()
    raise InvalidInput(f"setting `{key}` must be a path, not {value!r}", hint="leave it out for its default")


def _paths(key: str, value: Any) -> tuple[Path, ...]:
    items = [value] if isinstance(value, (str, Path)) else value
    if not isinstance(items, (list, tuple)):
        raise InvalidInput(f"setting `{key}` must be a list of paths, not {value!r}", hint="give one path, or a list")
    return tuple(_path(key, item) for item in items)  # pyright: ignore


def _networks(key: str, value: Any) -> tuple[str, ...]:
    from ipaddress import ip_network

    items: Any = value.split(",") if isinstance(value, str) else value
    try:
        return tuple(str(ip_network(item.strip(), strict=False)) for item in items)
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"setting `{key}` must be a list of networks, not {value!r}", hint="for example [10.0.0.0/8]"
        ) from error


def _prices(key: str, value: Any) -> dict[str, Price]:
    hint = "for example prices: {my-model: {input: 0.5, output: 1.5}}"
    if not isinstance(value, Mapping):
        raise InvalidInput(f"setting `{key}` must be a mapping of models to prices, not {value!r}", hint=hint)
    return {str(name): _price(str(name), entry, hint) for name, entry in value.items()}  # pyright: ignore


def _price(name: str, value: Any, hint: str) -> Price:
    if isinstance(value, Price):
        return value
    try:
        return Price(**value)
    except TypeError as error:
        raise InvalidInput(
            f"the price of {name} must have input, output and perhaps cache_read and cache_write, not {value!r}",
            hint=hint,
        ) from error


def _seconds(key: str, value: Any) -> float | None:
    try:
        seconds = None if value is None else float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if seconds is not None and not 0 <= seconds < float("inf"):
        raise InvalidInput(
            f"setting `{key}` must be a number of seconds, 0 or more, not {value!r}", hint="for example 30"
        )
    return seconds


def _choice(*choices: str) -> Any:
    def check(key: str, value: Any) -> str:
        if value in choices:
            return value
        raise InvalidInput(f"setting `{key}` is {value!r}", hint=f"choose one of: {', '.join(choices)}")

    return check


def _executor(key: str, value: Any) -> str:
    if value in ("sandbox", "unsafe", "container") or (isinstance(value, str) and value.startswith("container:")):
        return value
    raise InvalidInput(
        f"setting `{key}` is {value!r}", hint="choose one of: sandbox, unsafe, container, container:IMAGE"
    )


_SHAPES: Mapping[str, Any] = {
    "home": _path,
    "store": _text,
    "model": _text,
    "base_url": _text,
    "skill_roots": _paths,
    "executor": _executor,
    "container_image": _text,
    "policy": _choice("allow", "ask", "rules"),
    "timeout_seconds": _seconds,
    "fetch_networks": _networks,
    "prices": _prices,
}
