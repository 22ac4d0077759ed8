"""A server program with `a2a-sdk` 0.3, after its helloworld: answers in capitals, hangs, fails or asks on request.

Its card names `http://localhost:8000`, not the port of the first argument; the second is the transport that it prefers.
"""

import asyncio
import sys

import uvicorn
from a2a.server.agent_execution import AgentExecutor
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part, TextPart
from a2a.utils import new_agent_text_message, new_task


class Shouter(AgentExecutor):
    async def execute(self, context, event_queue):
        task = context.current_task or new_task(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        prompt = context.get_user_input()
        await updater.start_work()
        if prompt == "hang":
            await asyncio.Event().wait()
        if prompt == "fail":
            await updater.failed(new_agent_text_message("no paper"))
            return
        if prompt == "ask":
            await updater.requires_input(new_agent_text_message("how loud?"), final=True)
            return
        await updater.add_artifact([Part(root=TextPart(text=prompt.upper()))], name="result")
        await updater.complete()

    async def cancel(self, context, event_queue):
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


port, transport = int(sys.argv[1]), sys.argv[2]
card = AgentCard(
    name="Shouter",
    description="Says it loudly.",
    url="http://localhost:8000/",
    version="1.0.0",
    preferred_transport=transport,
    default_input_modes=["text"],
    default_output_modes=["text"],
    capabilities=AgentCapabilities(streaming=True),
    skills=[AgentSkill(id="shout", name="Shout", description="Shouts.", tags=["text"])],
)
handler = DefaultRequestHandler(agent_executor=Shouter(), task_store=InMemoryTaskStore())
application = A2AStarletteApplication if transport == "JSONRPC" else A2ARESTFastAPIApplication
app = application(agent_card=card, http_handler=handler).build()
uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", timeout_graceful_shutdown=1)
