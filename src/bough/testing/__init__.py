"""Building blocks of bough's own tests, for other tests of agents, skills and plug-ins. Imported lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bough.testing.anthropic_server import AnthropicServer as AnthropicServer
    from bough.testing.anthropic_server import CacheUse as CacheUse
    from bough.testing.openai_server import Answer as Answer
    from bough.testing.openai_server import Failure as Failure
    from bough.testing.openai_server import Hang as Hang
    from bough.testing.openai_server import OpenAIServer as OpenAIServer
    from bough.testing.openai_server import RawAnswer as RawAnswer
    from bough.testing.openai_server import Received as Received
    from bough.testing.openai_server import ServerCall as ServerCall
    from bough.testing.postgres import postgres_server as postgres_server
    from bough.testing.replay import assert_replays as assert_replays
    from bough.testing.scripted import Asked as Asked
    from bough.testing.scripted import ScriptedModel as ScriptedModel
    from bough.testing.scripted import tool_call as tool_call
    from bough.testing.store import EventStoreContract as EventStoreContract
else:
    from bough.lazy import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "bough.testing.anthropic_server": "AnthropicServer CacheUse",
            "bough.testing.openai_server": "Answer Failure Hang OpenAIServer RawAnswer Received ServerCall",
            "bough.testing.postgres": "postgres_server",
            "bough.testing.replay": "assert_replays",
            "bough.testing.scripted": "Asked ScriptedModel tool_call",
            "bough.testing.store": "EventStoreContract",
        },
    )
