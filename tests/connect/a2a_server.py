"""A remote agent of the a2a-sdk on a free port of this machine, which speaks 1.0, 0.3 or both."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandlerV2
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.applications import Starlette


class Shouter(AgentExecutor):
    """Answers in capitals; `ask` asks first, `hang` never ends."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        task = context.current_task or new_task_from_user_message(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        prompt = context.get_user_input()
        await updater.start_work()
        if prompt == "hang":
            await asyncio.Event().wait()
        if prompt == "ask":
            await updater.requires_input(new_text_message("how loud?"))
            return
        await updater.add_artifact([new_text_part(prompt.upper())], name="result")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


@contextmanager
def serve_agent(*interfaces: tuple[str, str], elsewhere: str = "") -> Generator[str]:
    """Serve the agent and give its address.

    Args:
        interfaces: Binding and version of each that its card names.
        elsewhere: The address that its card gives instead of its own.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    card = AgentCard(
        name="Shouter",
        description="Says it loudly.",
        version="1",
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="shout", name="shout", description="Shouts.", tags=["text"])],
        supported_interfaces=[
            AgentInterface(url=elsewhere or url, protocol_binding=binding, protocol_version=version)
            for binding, version in interfaces
        ],
    )
    handler = DefaultRequestHandlerV2(agent_executor=Shouter(), task_store=InMemoryTaskStore(), agent_card=card)
    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
        *create_rest_routes(handler, enable_v0_3_compat=True),
    ]
    config = uvicorn.Config(Starlette(routes=routes), log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="a2a-server")
    thread.start()
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
