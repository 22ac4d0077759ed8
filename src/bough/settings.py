"""Settings from arguments, the environment and `bough.yaml`.

`Settings` is a plain dataclass, because importing a settings library would slow down every command by half a second.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from bough.errors import InvalidInput

_PROJECT_MARKS = (".git", ".agents", ".bough", "bough.yaml")

PROJECT_KEYS = frozenset({"model", "timeout_seconds"})
"""The keys that a `bough.yaml` in a working folder may set. A cloned repository is not trusted, so settings that could
widen permissions (executor, packages, policy, base URL, store, skill roots) are read only from the home folder, the
environment and arguments."""

SECTIONS = frozenset({"server"})
"""Sections of the home's `bough.yaml` that are not part of `Settings`: `server` is read by the agent server."""


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
    """Locations and defaults.

    Attributes:
        home: bough's own folder, with the store, the trust records and the user's settings.
        store: URL of the event store.
        model: A model string; None for the first provider whose key is set, otherwise the offline planner.
        base_url: Address of an OpenAI-format server for `openai:` models.
        skill_roots: Folders of skills that are searched before the usual ones.
        executor: `sandbox`, `container:IMAGE` or `unsafe`. `container` alone uses `container_image`.
        container_image: Image in which `container` runs scripts; never pulled.
        packages: A virtual environment; sandboxed programs can import its packages, see `LocalSandboxCodeExecutor`. In
            a file the path must be absolute.
        policy: Confirmation policy: `allow`, `ask` or `rules`. None if not set: `rules` in `bough run` and `bough chat`
            if the agent may write, otherwise `allow`.
        timeout_seconds: Time limit of a script; None for the executor's default.
        stream_idle_seconds: How long a model may send nothing before its request is given up and repeated once. The
            agent's own `timeout` in its model settings takes precedence.
        fetch_networks: Private networks, such as `10.0.0.0/8`, from which images and files may be fetched, also over
            plain HTTP.
        prices: Prices by model name, such as `my-model` or `openai:my-model`, for models that bough has no price for or
            whose price differs. Costs in logs, limits, budgets and reports are calculated with them.
        copy_before_upgrade: Whether a SQLite store with an older schema is copied before it is upgraded.
        files: Folder of the kept files of Postgres stores; None for `files` in the home folder. The files of a SQLite
            store are kept beside it.
        keep_files: Whether the files of workspaces in which tools may write are kept.
        keep_ignored: Whether files are kept that a `.gitignore` of the workspace excludes.
        keep_max_files: The most files of a workspace; in a larger one, nothing is kept.
        keep_file_bytes: The largest file that is kept.
        keep_total_bytes: The most bytes of a workspace's files; in a larger one, nothing is kept.
        keep_place_bytes: The most bytes of all kept files of a store.
    """

    home: Path
    store: str
    model: str | None = None
    base_url: str | None = None
    skill_roots: tuple[Path, ...] = ()
    executor: str = "sandbox"
    container_image: str = "python:3.13-slim"
    packages: Path | None = None
    policy: str | None = None
    timeout_seconds: float | None = None
    stream_idle_seconds: float | None = 120.0
    fetch_networks: tuple[str, ...] = ()
    copy_before_upgrade: bool = True
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price], hash=False)
    files: Path | None = None
    keep_files: bool = True
    keep_ignored: bool = False
    keep_max_files: int = 50_000
    keep_file_bytes: int = 16 << 20
    keep_total_bytes: int = 1 << 30
    keep_place_bytes: int = 10 << 30

    @classmethod
    def load(
        cls,
        home: str | Path | None = None,
        store: str | None = None,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        **overrides: object,
    ) -> Settings:
        """Return the settings. Precedence: arguments, `BOUGH_*`, `./bough.yaml`, `<home>/bough.yaml`, defaults.

        Raises:
            InvalidInput: A file is not a YAML mapping, a key is unknown, or a value has the wrong type.
        """
        env = os.environ if env is None else env
        arguments: dict[str, Any] = {"home": home, "store": store, **overrides}
        explicit = _read_env(env) | {key: value for key, value in arguments.items() if value is not None}
        default_home = Path(env.get("HOME") or Path.home()) / ".bough"
        home_folder = Path(explicit.get("home") or default_home).expanduser().absolute()
        home_values = _read_file(home_folder / "bough.yaml", (_KEYS - {"home"}) | SECTIONS)
        _refuse_relative_packages(home_values, home_folder / "bough.yaml")
        values = (
            {key: value for key, value in home_values.items() if key not in SECTIONS}
            | _read_file((cwd or Path.cwd()) / "bough.yaml", PROJECT_KEYS)
            | explicit
            | {"home": home_folder}
        )
        values.setdefault("store", f"sqlite:///{home_folder / 'bough.db'}")
        settings = cls(**{key: _PARSERS[key](key, value) for key, value in values.items()})
        if settings.executor == "container":
            return replace(settings, executor=f"container:{settings.container_image}")
        return settings


_KEYS = frozenset(field.name for field in fields(Settings))


def find_project() -> str:
    """Return the project of the working folder: the nearest folder at or above it with a mark, below the home.

    Without a mark, it is the working folder itself.
    """
    # Resolved as the working folder is: `.bough` in a home behind a link would make the whole home one project.
    folder, home = Path.cwd(), Path.home().resolve()
    for parent in (folder, *folder.parents):
        if parent == home or parent == Path(parent.anchor):
            break
        if any((parent / mark).exists() for mark in _PROJECT_MARKS):
            return str(parent)
    return str(folder)


def _read_env(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings whose variables `BOUGH_*` are set and not empty."""
    names = {key: f"BOUGH_{key.upper()}" for key in _KEYS - {"prices"}}  # a mapping does not fit into a variable
    values = {key: env[name] for key, name in names.items() if env.get(name)}
    if "skill_roots" in values:
        return values | {"skill_roots": [root for root in values["skill_roots"].split(os.pathsep) if root]}
    return dict(values)


def _read_file(path: Path, allowed: frozenset[str]) -> dict[str, Any]:
    """Return the values of a `bough.yaml`; empty if the file does not exist.

    Raises:
        InvalidInput: The file cannot be read, is not a YAML mapping, or has a key that is not allowed.
    """
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
    """Return the key of a `bough.yaml`, or raise `InvalidInput` with the nearest known key if it is not allowed."""
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


def _refuse_relative_packages(values: Mapping[str, Any], file: Path) -> None:
    """Reject a relative `packages` path in a file, because it would depend on the folder in which bough is started."""
    packages = values.get("packages")
    if isinstance(packages, str) and not Path(packages).expanduser().is_absolute():
        raise InvalidInput(f"{file}: `packages` must be an absolute path", hint="or give --packages, or BOUGH_PACKAGES")


def _parse_text(key: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    raise InvalidInput(f"setting `{key}` must be text, not {value!r}", hint="leave it out for its default")


def _parse_path(key: str, value: Any) -> Path:
    if isinstance(value, (str, Path)) and str(value):
        return Path(value).expanduser().absolute()
    raise InvalidInput(f"setting `{key}` must be a path, not {value!r}", hint="leave it out for its default")


def _parse_paths(key: str, value: Any) -> tuple[Path, ...]:
    items = [value] if isinstance(value, (str, Path)) else value
    if not isinstance(items, (list, tuple)):
        raise InvalidInput(f"setting `{key}` must be a list of paths, not {value!r}", hint="give one path, or a list")
    return tuple(_parse_path(key, item) for item in items)  # pyright: ignore


def _parse_networks(key: str, value: Any) -> tuple[str, ...]:
    from ipaddress import ip_network

    items: Any = value.split(",") if isinstance(value, str) else value
    try:
        return tuple(str(ip_network(item.strip(), strict=False)) for item in items)
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"setting `{key}` must be a list of networks, not {value!r}", hint="for example [10.0.0.0/8]"
        ) from error


def _parse_prices(key: str, value: Any) -> dict[str, Price]:
    hint = "for example prices: {my-model: {input: 0.5, output: 1.5}}"
    if not isinstance(value, Mapping):
        raise InvalidInput(f"setting `{key}` must be a mapping of models to prices, not {value!r}", hint=hint)
    return {str(name): _parse_price(str(name), entry, hint) for name, entry in value.items()}  # pyright: ignore


def _parse_price(name: str, value: Any, hint: str) -> Price:
    if isinstance(value, Price):
        return value
    try:
        return Price(**value)
    except TypeError as error:
        raise InvalidInput(
            f"the price of {name} must have input, output and perhaps cache_read and cache_write, not {value!r}",
            hint=hint,
        ) from error


def _parse_seconds(key: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0  # rejected below
    if not 0 <= seconds < float("inf"):
        raise InvalidInput(
            f"setting `{key}` must be a number of seconds, 0 or more, not {value!r}", hint="for example 30"
        )
    return seconds


def _parse_positive_seconds(key: str, value: Any) -> float | None:
    seconds = _parse_seconds(key, value)
    if seconds == 0:  # every request would be given up at once
        raise InvalidInput(f"setting `{key}` must be more than 0", hint="leave it out for its default")
    return seconds


def _parse_boolean(key: str, value: Any) -> bool:
    words = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}
    parsed = value if isinstance(value, bool) else words.get(str(value).lower())
    if parsed is None:
        raise InvalidInput(f"setting `{key}` must be true or false, not {value!r}", hint="leave it out for its default")
    return parsed


def _parse_count(key: str, value: Any) -> int:
    try:
        count = -1 if isinstance(value, bool | float) else int(value)
    except (TypeError, ValueError):
        count = -1  # rejected below
    if count < 0:
        raise InvalidInput(
            f"setting `{key}` must be a whole number, 0 or more, not {value!r}", hint="leave it out for its default"
        )
    return count


def _make_choice_parser(*choices: str) -> Any:
    """Return a parser that accepts only these values."""

    def check(key: str, value: Any) -> str:
        if value in choices:
            return value
        raise InvalidInput(f"setting `{key}` is {value!r}", hint=f"choose one of: {', '.join(choices)}")

    return check


def _parse_executor(key: str, value: Any) -> str:
    if value in ("sandbox", "unsafe", "container") or (isinstance(value, str) and value.startswith("container:")):
        return value
    raise InvalidInput(
        f"setting `{key}` is {value!r}", hint="choose one of: sandbox, unsafe, container, container:IMAGE"
    )


_PARSERS: Mapping[str, Any] = {
    "home": _parse_path,
    "store": _parse_text,
    "model": _parse_text,
    "base_url": _parse_text,
    "skill_roots": _parse_paths,
    "executor": _parse_executor,
    "container_image": _parse_text,
    "packages": _parse_path,
    "policy": _make_choice_parser("allow", "ask", "rules"),
    "timeout_seconds": _parse_seconds,
    "stream_idle_seconds": _parse_positive_seconds,
    "fetch_networks": _parse_networks,
    "copy_before_upgrade": _parse_boolean,
    "prices": _parse_prices,
    "files": _parse_path,
    "keep_files": _parse_boolean,
    "keep_ignored": _parse_boolean,
    "keep_max_files": _parse_count,
    "keep_file_bytes": _parse_count,
    "keep_total_bytes": _parse_count,
    "keep_place_bytes": _parse_count,
}
"""For each setting, a function that takes its key and value and returns the checked value."""
