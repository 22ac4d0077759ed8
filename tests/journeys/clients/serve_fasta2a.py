"""A server program with `fasta2a` 0.6 or 2.1, after its README: answers in capitals, with a message alone, or fails.

Its card names the default address `http://localhost:8000`, not the port of the argument.
"""

import sys
import uuid
from contextlib import asynccontextmanager
from importlib.metadata import version

import uvicorn
from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.schema import Artifact, Message
from fasta2a.storage import InMemoryStorage

IS_2 = version("fasta2a").startswith("2.")
KIND = {} if IS_2 else {"kind": "text"}


class Shouter(Worker):
    async def run_task(self, params):
        task = await self.storage.load_task(params["id"])
        await self.storage.update_task(task["id"], state="working")
        prompt = params["message"]["parts"][0]["text"]
        if prompt == "fail":
            await self.storage.update_task(task["id"], state="failed", new_messages=[say("no paper")])
            return
        if prompt == "talk":
            await self.storage.update_task(task["id"], state="completed", new_messages=[say("no artifact")])
            return
        artifacts = self.build_artifacts(prompt.upper())
        if IS_2:
            await self.publish_artifact(task["id"], task["context_id"], artifacts[0], last_chunk=True)
        await self.storage.update_task(
            task["id"], state="completed", new_messages=[say(prompt.upper())], new_artifacts=artifacts
        )

    async def cancel_task(self, params):
        await self.storage.update_task(params["id"], state="canceled")

    def build_message_history(self, history):
        return history

    def build_artifacts(self, result):
        return [Artifact(artifact_id=str(uuid.uuid4()), parts=[{"text": result, **KIND}])]


def say(text):
    message = Message(role="agent", parts=[{"text": text, **KIND}], message_id=str(uuid.uuid4()))
    return message | ({"kind": "message"} if KIND else {})


storage, broker = InMemoryStorage(), InMemoryBroker()
worker = Shouter(storage=storage, broker=broker)


@asynccontextmanager
async def lifespan(app):
    async with app.task_manager, worker.run():
        yield


app = FastA2A(storage=storage, broker=broker, lifespan=lifespan, name="Shouter", description="Says it loudly.")
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", timeout_graceful_shutdown=1)
