"""A server program with `a2a-sdk` 1.x, after its helloworld: answers in capitals, hangs, fails or asks on request.

Its card names `http://localhost:8000`, not the port of the first argument; the second is the binding that it names.
"""

import asyncio
import sys

import uvicorn
from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.applications import Starlette


class Shouter(AgentExecutor):
    async def execute(self, context, event_queue):
        task = context.current_task or new_task_from_user_message(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        prompt = context.get_user_input()
        await updater.start_work()
        if prompt == "hang":
            await asyncio.Event().wait()
        if prompt == "fail":
            await updater.failed(new_text_message("no paper"))
            return
        if prompt == "ask":
            await updater.requires_input(new_text_message("how loud?"))
            return
        await updater.add_artifact([new_text_part(prompt.upper())], name="result")
        await updater.complete()

    async def cancel(self, context, event_queue):
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


port, binding = int(sys.argv[1]), sys.argv[2]
card = AgentCard(
    name="Shouter",
    description="Says it loudly.",
    version="1.0.0",
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    capabilities=AgentCapabilities(streaming=True),
    supported_interfaces=[
        AgentInterface(url="http://localhost:8000/", protocol_binding=binding, protocol_version="1.0")
    ],
    skills=[AgentSkill(id="shout", name="Shout", description="Shouts.", tags=["text"])],
)
handler = DefaultRequestHandler(agent_executor=Shouter(), task_store=InMemoryTaskStore(), agent_card=card)
routes = create_jsonrpc_routes(handler, "/") if binding == "JSONRPC" else create_rest_routes(handler)
app = Starlette(routes=[*create_agent_card_routes(card), *routes])
uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", timeout_graceful_shutdown=1)
