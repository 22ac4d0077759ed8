"""Resolve a model string: `offline`, a PydanticAI provider, or an OpenAI-format server at a base URL."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from hashlib import blake2b
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from bough.errors import BoughError, InvalidInput, Unavailable

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider
    from pydantic_ai.providers.openai import OpenAIProvider


OFFLINE = "offline"
"""The model string of the built-in planner."""

_OPENAI = ("openai", "openai-chat", "openai-responses")
_PLACEHOLDER_KEY = "none"
_URL_HINT = "for example http://127.0.0.1:8000/v1"
_BOUGH_EXTRAS = frozenset({"anthropic", "google", "groq", "mistral", "bedrock"})
_VARIABLE = re.compile(r"`([A-Z][A-Z0-9_]{4,})`")
_EXTRA = re.compile(r"pydantic-ai-slim\[([\w-]+)\]")


@dataclass(frozen=True, kw_only=True)
class ResolvedModel:
    """A model, the string that identifies it, and why it was chosen.

    Attributes:
        make: Creates the model. Its key and package have already been checked.
        name: The model string; resolving it again gives the same model.
    """

    make: Callable[[], Model[Any]]
    name: str
    reason: str

    @cached_property
    def model(self) -> Model[Any]:
        """The model, created on first use, so that callers who need only the name create no HTTP client."""
        return self.make()


@dataclass(frozen=True, kw_only=True)
class _KeyedProvider:
    """A provider that needs only a key in the environment.

    Attributes:
        keys: Environment variables for its key; the first one that is set is used.
        package: The package that it needs; bough's extra with the provider's name installs it.
        default: Its model string if the user names no model; every supported version of PydanticAI knows the model.
    """

    keys: tuple[str, ...]
    package: str
    default: str

    def key(self, env: Mapping[str, str]) -> tuple[str, str] | None:
        """Return (variable, value) of the first key that is set; None if no key is set."""
        return next(((name, env[name]) for name in self.keys if env.get(name, "").strip()), None)


_KEYED: Mapping[str, _KeyedProvider] = {
    "anthropic": _KeyedProvider(
        keys=("ANTHROPIC_API_KEY",), package="anthropic", default="anthropic:claude-sonnet-5-5"
    ),
    "openai": _KeyedProvider(keys=("OPENAI_API_KEY",), package="openai", default="openai:gpt-6.1-sol"),
    "google": _KeyedProvider(
        keys=("GOOGLE_API_KEY", "GEMINI_API_KEY"), package="google.genai", default="google:gemini-3.8-flash"
    ),
    "groq": _KeyedProvider(keys=("GROQ_API_KEY",), package="groq", default="groq:openai/gpt-oss-120b"),
    "mistral": _KeyedProvider(keys=("MISTRAL_API_KEY",), package="mistralai", default="mistral:mistral-large-latest"),
}
"""The providers in the order in which they are tried if no model is named."""


def resolve_model(
    name: str | None,
    *,
    base_url: str | None = None,
    env: Mapping[str, str],
    api_key: str | Callable[[], str] | None = None,
    shared: bool = False,
) -> ResolvedModel:
    """Return the model that `name` identifies. Sends no request; importing a provider takes up to a second.

    The provider's client does not retry; the run does, and records each retry.

    Args:
        name: `offline`, `provider:model`, or None for the default model of the first provider whose key is set and
            whose package is installed, or `offline` if there is no such provider.
        base_url: Address of an OpenAI-format server, used for `openai:`, `openai-chat:` and `openai-responses:`.
        env: The environment with the keys. Providers that bough does not know read the process's environment instead.
        api_key: The provider's key, or a function that returns it; None reads it from `env`.
        shared: Share one HTTP client with other models that have the same provider, address and key. The model then
            works only on the running event loop.

    Raises:
        InvalidInput: The provider or the model is unknown, or the base URL is invalid.
        Unavailable: The provider's key or package is missing.
    """
    if base_url is not None:
        _check_url(base_url)
    if name is None:
        return _resolve_default(base_url, env, shared=shared)
    if name == OFFLINE:
        return _make_offline("named")
    provider, _, model = name.partition(":")
    if not provider or not model.strip():
        raise _make_unknown_model_error(name)
    key = api_key() if callable(api_key) else api_key
    if base_url is not None and provider in _OPENAI:
        make = partial(_make_local_model, provider, model, base_url, env, key, shared=shared)
        return ResolvedModel(make=make, name=name, reason=f"served at {base_url}")
    return ResolvedModel(make=_prepare_hosted(name, provider, env, key, shared=shared), name=name, reason="named")


def name_default_model(env: Mapping[str, str]) -> str:
    """Return the model string that `resolve_model` chooses if none is named. Imports no provider."""
    usable_providers = (
        provider for provider in _KEYED.values() if provider.key(env) and _is_installed(provider.package)
    )
    return next((provider.default for provider in usable_providers), OFFLINE)


def takes_base_url(model: object) -> bool:
    """Return whether requests to a model are sent to `base_url`; False unless the model is a model string."""
    return isinstance(model, str) and model.partition(":")[0] in _OPENAI


def _resolve_default(base_url: str | None, env: Mapping[str, str], *, shared: bool) -> ResolvedModel:
    """Return the model to use if none is named."""
    if base_url is not None:
        # An error, because a default model would send the conversation to another provider than this address.
        raise InvalidInput(
            f"a base URL ({base_url}) is set, but no model", hint="choose a model of that server: --model openai:NAME"
        )
    missing: list[str] = []
    for name, provider in _KEYED.items():
        key = provider.key(env)
        if key is None:
            continue
        variable, _ = key
        if _is_installed(provider.package):
            make = _prepare_hosted(provider.default, name, env, None, shared=shared)
            return ResolvedModel(make=make, name=provider.default, reason=f"{variable} is set")
        missing.append(f"{variable} is set but bough[{name}] is not installed")
    return _make_offline("; ".join(missing) or "no model named and no key set")


def _make_offline(reason: str) -> ResolvedModel:
    from bough.agents.models.offline import OfflineModel

    return ResolvedModel(make=OfflineModel, name=OFFLINE, reason=reason)


def _disable_retries(model: Model[Any]) -> Model[Any]:
    # Retries of the SDK would be missing in the log, and would multiply the retries of the run.
    client: Any = getattr(model, "client", None)
    if hasattr(client, "max_retries"):
        client.max_retries = 0
    return model


def _make_local_model(
    kind: str, model: str, base_url: str, env: Mapping[str, str], api_key: str | None, *, shared: bool
) -> Model[Any]:
    """Return a model of an OpenAI-format server."""
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    env_key = _KEYED["openai"].key(env)
    # A placeholder, because the SDK refuses an empty key, while a local server needs none.
    key = api_key or (env_key[1] if env_key else _PLACEHOLDER_KEY)

    def make() -> OpenAIProvider:
        return _check_answers(OpenAIProvider(base_url=base_url, api_key=key))

    provider = find_providers().find("openai", base_url, key, make) if shared else make()
    model_object = (OpenAIResponsesModel if kind == "openai-responses" else OpenAIChatModel)(model, provider=provider)
    return _disable_retries(model_object)


def _check_answers(provider: OpenAIProvider) -> OpenAIProvider:
    """Make the provider's HTTP client refuse answers that are neither JSON nor a stream."""
    from bough.agents.models.failure import check_format

    http: Any = provider.client._client  # pyright: ignore[reportPrivateUsage] - the SDK has no other name for it
    hooks: dict[str, list[Any]] = http.event_hooks
    http.event_hooks = {**hooks, "response": [*hooks.get("response", ()), check_format]}
    return provider


def with_v1(model: Model[Any]) -> Model[Any] | None:
    """Return an OpenAI-format model with `/v1` after its address; None if its address has a path.

    It uses the same key and the same HTTP client, which belongs to the given model.
    """
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    if not isinstance(model, OpenAIChatModel | OpenAIResponsesModel) or urlsplit(model.base_url).path.strip("/"):
        return None
    client = model.client.copy(base_url=f"{model.base_url.rstrip('/')}/v1")
    return type(model)(model.model_name, provider=OpenAIProvider(openai_client=client), settings=model.settings)


def _prepare_hosted(
    name: str, kind: str, env: Mapping[str, str], api_key: str | None, *, shared: bool
) -> Callable[[], Model[Any]]:
    """Return a function that creates a provider's model. The errors of `resolve_model` are raised here already."""
    from pydantic_ai.providers import infer_provider_class

    # Checked here, so that a wrong name or a missing key is reported when the conversation is created, and not at its
    # first request.
    try:
        infer_provider_class(kind)
    except ValueError as error:
        raise _make_unknown_model_error(name) from error
    except ImportError as error:
        raise _make_missing_package_error(kind, error) from error
    keyed = _KEYED.get("openai" if kind in _OPENAI else kind)
    key = api_key
    if api_key is None and keyed is not None:
        env_key = keyed.key(env)
        if env_key is None:
            raise _make_missing_key_error(kind, keyed.keys[0])
        key = env_key[1]
    make = partial(_make_hosted_model, name, kind, key, shared=shared)
    if keyed is None:
        # What an unknown provider requires is not known; creating the model shows whether something is missing.
        model = make()
        return lambda: model
    return make


def _make_hosted_model(name: str, kind: str, key: str | None, *, shared: bool) -> Model[Any]:
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model

    def provide(provider: str) -> Provider[Any]:
        make = partial(_make_provider, provider, key)
        # The three OpenAI kinds share one client, because they differ only in the API that they call.
        namespace = "openai" if provider in _OPENAI else provider
        return find_providers().find(namespace, None, key, make) if shared else make()

    try:
        return _disable_retries(infer_model(name, provide))
    except ImportError as error:
        raise _make_missing_package_error(kind, error) from error
    except UserError as error:
        raise _explain_refusal(name, kind, str(error)) from error


def _make_provider(kind: str, key: str | None) -> Provider[Any]:
    """Return a provider; without a key, PydanticAI configures it from the environment."""
    from pydantic_ai.providers import infer_provider, infer_provider_class

    if key is None:
        return infer_provider(kind)
    make: Any = infer_provider_class(kind)
    return make(api_key=key)


def _make_missing_key_error(kind: str, variable: str) -> Unavailable:
    local = "; a local server needs only its address, in BOUGH_BASE_URL" if kind in _OPENAI else ""
    return Unavailable(
        f"{kind} needs {variable}, which is not set",
        hint=f"export {variable}=…, or use --model offline, which needs no key{local}",
        details={"provider": kind, "variable": variable},
    )


def _make_missing_package_error(kind: str, error: ImportError) -> Unavailable:
    match = _EXTRA.search(str(error))
    extra = match[1] if match else kind
    package = f"bough[{extra}]" if extra in _BOUGH_EXTRAS else f"pydantic-ai-slim[{extra}]"
    return Unavailable(
        f"the package that {kind} needs is not installed",
        hint=f'pip install "{package}"',
        details={"provider": kind, "package": package},
    )


def _explain_refusal(name: str, kind: str, text: str) -> BoughError:
    """Return bough's error for an error of PydanticAI: a missing variable, an unknown model, or another reason."""
    if variable := _VARIABLE.search(text):
        return _make_missing_key_error(kind, variable[1])
    if text.startswith("Unknown model"):
        return _make_unknown_model_error(name)
    return InvalidInput(f"model {name} cannot be used: {text}", hint="see the provider's documentation")


def _make_unknown_model_error(name: str) -> InvalidInput:
    """Return the error for an unknown model string, with the most similar provider or model in the hint."""
    from pydantic_ai.models import known_model_names

    known_names = [
        full_name for full_name in known_model_names() if ":" in full_name and not full_name.startswith("gateway/")
    ]
    provider, separator, model = name.partition(":")
    providers = sorted(
        {full_name.partition(":")[0] for full_name in known_names} | {"azure", "ollama", "openrouter", *_OPENAI}
    )
    if provider in providers and not model:
        return InvalidInput(f"not a model name: {name!r}", hint=f"expected {provider}:NAME")
    if separator and model.strip():
        near_providers = get_close_matches(provider, [*providers, OFFLINE], 1)
        hint = f"did you mean {near_providers[0]}:{model}?" if near_providers else f"known ones: {', '.join(providers)}"
        return InvalidInput(f"unknown provider {provider!r}", hint=hint)
    near_name = _find_near(name, known_names)
    hint = (
        f"did you mean {near_name}?"
        if near_name
        else f"use {OFFLINE}, or provider:model, for example openai:gpt-6-luna"
    )
    return InvalidInput(f"unknown model {name!r}", hint=hint)


def _find_near(name: str, known_names: list[str]) -> str | None:
    """Return the model string most similar to `name`, compared with and without its provider, if any is similar."""
    # Providers in `_KEYED` come last, so that they replace other providers of the same model in the dict.
    sorted_names = sorted(known_names, key=lambda known_name: known_name.partition(":")[0] in _KEYED)
    candidates: dict[str, str] = {}
    for known_name in sorted_names:
        candidates[known_name] = known_name
        candidates[known_name.partition(":")[2]] = known_name
    candidates[OFFLINE] = OFFLINE
    similar_names = get_close_matches(name, candidates, 1, cutoff=0.7)
    return candidates[similar_names[0]] if similar_names else None


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def _check_url(base_url: str) -> None:
    try:
        parts = urlsplit(base_url)
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        raise InvalidInput("the base URL cannot be read", hint=_URL_HINT) from None
    if parts.username or parts.password:
        raise InvalidInput("the base URL contains a password", hint="put the key into OPENAI_API_KEY")
    if not is_usable:
        raise InvalidInput(f"{base_url!r} is not a base URL", hint=_URL_HINT)


def can_stream(model: Model) -> bool:
    """Return whether `model` supports streaming; a wrapper does if all wrapped models do."""
    # Not at the top: commands that only resolve a name would load all of PydanticAI.
    from pydantic_ai.models import Model
    from pydantic_ai.models.fallback import FallbackModel
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.models.wrapper import WrapperModel

    match model:
        case WrapperModel():
            return can_stream(model.wrapped)
        case FallbackModel():
            return all(can_stream(member) for member in model.models)
        case FunctionModel():
            return model.stream_function is not None
        case _:
            return type(model).request_stream is not Model.request_stream


_MAX_PROVIDERS = 64


class SharedProviders:
    """Caches providers per event loop, because a connection works only on the loop that opened it.

    A provider is closed when `asyncio.run` or bough's own loop shuts down its asynchronous generators.

    Args:
        size: Maximum number of open providers per loop. The least recently used one is evicted, and closed as soon as
            no run uses it.
    """

    def __init__(self, *, size: int = _MAX_PROVIDERS) -> None:
        self._size = size
        self._salt = os.urandom(16)
        self._lock = threading.Lock()
        self._providers_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, OrderedDict[bytes, _OpenProvider]] = (
            WeakKeyDictionary()
        )

    def find(
        self, kind: str, base_url: str | None, api_key: str | None, make: Callable[[], Provider[Any]]
    ) -> Provider[Any]:
        """Return the provider of the running loop, created by `make` at the first call; without a loop, a new one.

        Args:
            kind: The provider's name, as in a model string.
            api_key: Its key; None if the provider reads the environment. After a change of the environment, a new
                provider is created.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return make()  # without a loop, nothing would close a cached provider
        providers = self._get_providers(loop)
        digest = self._make_cache_key(kind, base_url, api_key)
        if digest not in providers:
            providers[digest] = _OpenProvider(make(), loop, on_close=partial(_forget, providers, digest))
        providers.move_to_end(digest)
        while len(providers) > self._size:
            _, evicted = providers.popitem(last=False)
            evicted.release()
        return providers[digest].provider

    def _get_providers(self, loop: asyncio.AbstractEventLoop) -> OrderedDict[bytes, _OpenProvider]:
        # The lock guards only the dictionary of loops; the providers of a loop are used by its thread alone.
        with self._lock:
            # The clients of a closed loop refer to it, so it would never be garbage-collected.
            for closed_loop in [known_loop for known_loop in self._providers_by_loop if known_loop.is_closed()]:
                del self._providers_by_loop[closed_loop]
            return self._providers_by_loop.setdefault(loop, OrderedDict())

    def _make_cache_key(self, kind: str, base_url: str | None, api_key: str | None) -> bytes:
        """Return the cache key of a provider: a keyed hash that reveals neither API key nor environment."""
        environment = sorted(os.environ.items())  # SDKs read addresses, organizations and proxies from the environment
        return blake2b(repr((kind, base_url, api_key, environment)).encode(), key=self._salt).digest()


class _OpenProvider:
    """A provider that is held open until `release`, because PydanticAI closes its client when the last user leaves."""

    def __init__(
        self, provider: Provider[Any], loop: asyncio.AbstractEventLoop, *, on_close: Callable[[_OpenProvider], object]
    ) -> None:
        self.provider = provider
        self._on_close = on_close
        self._lifetime = self._keep_open()
        self._loop = loop
        # A task, because `find` is not asynchronous. A run that starts before the task also enters the provider, so the
        # client is open in any case.
        self._opening = loop.create_task(self._open(), name=f"open {provider.name}")
        self._closing: asyncio.Task[None] | None = None

    def release(self) -> None:
        """Leave the provider; its client is closed as soon as no run uses it."""
        self._closing = self._loop.create_task(self._close(), name=f"close {self.provider.name}")

    async def _open(self) -> None:
        await anext(self._lifetime)

    async def _close(self) -> None:
        await asyncio.wait({self._opening})  # `aclose` of a generator that has not started would run no `finally`
        await self._lifetime.aclose()

    async def _keep_open(self) -> AsyncGenerator[None]:
        # A generator, because a loop closes its unfinished generators when it ends, so that no caller has to.
        try:
            async with self.provider:
                yield
        finally:
            self._on_close(self)


def _forget(providers: OrderedDict[bytes, _OpenProvider], digest: bytes, closed_provider: _OpenProvider) -> None:
    if providers.get(digest) is closed_provider:  # after an eviction, the key may already belong to a new provider
        del providers[digest]


_shared = SharedProviders()
# A forked process must not use its parent's connections, and the lock may be held by a thread of the parent.
os.register_at_fork(after_in_child=_shared.__init__)


def find_providers() -> SharedProviders:
    """Return the providers of this process."""
    return _shared
