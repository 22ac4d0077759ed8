"""The ACP agent: answers `initialize` before it loads what runs conversations, and passes the other requests on.

Source: the Agent Client Protocol 1, https://agentclientprotocol.com; `fork` and form elicitation are its unstable part.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from acp import schema
from acp.connection import Connection
from acp.exceptions import RequestError
from acp.meta import AGENT_METHODS, PROTOCOL_VERSION
from pydantic import BaseModel, ValidationError

from bough import __version__
from bough.errors import BoughError
from bough.server.acp.editor import Editor, EditorSetup
from bough.server.acp.frames import StdioFrames

if TYPE_CHECKING:
    from bough.server.acp.sessions import EditorSessions

_LOG = logging.getLogger("bough.acp")

_SESSIONS: Final = "bough.server.acp.sessions"
_INVALID_REQUEST: Final = -32600
_NO_METHOD: Final = -32601
_NOT_FOUND: Final = -32002
_INVALID_PARAMS: Final = -32602
_INTERNAL: Final = -32603
_CLIENT_CODES: Final = frozenset({"invalid_input", "conflict", "permission_denied", "not_supported", "too_large"})

METHODS: Final[Mapping[str, type[BaseModel]]] = {
    AGENT_METHODS["session_new"]: schema.NewSessionRequest,
    AGENT_METHODS["session_load"]: schema.LoadSessionRequest,
    AGENT_METHODS["session_resume"]: schema.ResumeSessionRequest,
    AGENT_METHODS["session_fork"]: schema.ForkSessionRequest,
    AGENT_METHODS["session_list"]: schema.ListSessionsRequest,
    AGENT_METHODS["session_close"]: schema.CloseSessionRequest,
    AGENT_METHODS["session_prompt"]: schema.PromptRequest,
    AGENT_METHODS["session_cancel"]: schema.CancelNotification,
    AGENT_METHODS["session_set_mode"]: schema.SetSessionModeRequest,
    AGENT_METHODS["session_set_config_option"]: schema.SetSessionConfigOptionSelectRequest,
}
"""The methods after `initialize`, each with the model of its parameters."""


class AcpService:
    """Handles the messages of one client."""

    def __init__(self, frames: StdioFrames) -> None:
        self._frames = frames
        self.connection = Connection(self._handle, frames, listening=False)
        self.editor = Editor(self.connection)
        self.is_initialized = asyncio.Event()
        self.sessions: asyncio.Future[EditorSessions] = asyncio.get_running_loop().create_future()

    async def _handle(self, method: Any, params: Any, is_notification: bool) -> Any:
        """Answer a request.

        Raises:
            RequestError: The request is invalid or failed, as the client is told.
        """
        try:
            return await self._answer(method, params)
        except BoughError as error:
            if is_notification:
                return None
            raise _convert_error(error) from error
        except RequestError:
            if is_notification:
                return None
            raise
        except ConnectionError as error:
            raise RequestError(_INTERNAL, "the client has gone") from error
        except Exception as error:  # the boundary of a request: details of an unexpected error are only logged
            _LOG.exception("the request %s failed", method)
            raise RequestError(_INTERNAL, f"internal: the request {method} failed") from error

    async def _answer(self, method: Any, params: Any) -> Any:
        if method == AGENT_METHODS["initialize"]:
            return self._initialize(_parse(schema.InitializeRequest, params))
        if not isinstance(method, str) or method not in METHODS:
            raise RequestError(_NO_METHOD, f"there is no method {str(method)!r:.80}", {"method": str(method)[:80]})
        if not self.is_initialized.is_set():
            raise RequestError(_INVALID_REQUEST, "the first request must be `initialize`")
        request = _parse(METHODS[method], params)
        sessions = await asyncio.shield(self.sessions)  # the cancelled wait of one request must not cancel it for all
        return await sessions.handle(method, request)

    def _initialize(self, request: schema.InitializeRequest) -> schema.InitializeResponse:
        self.editor.capabilities = request.client_capabilities
        self._frames.written.clear()
        self.is_initialized.set()
        return schema.InitializeResponse(
            protocol_version=PROTOCOL_VERSION,  # a client of another version disconnects if it cannot use this one
            agent_info=schema.Implementation(name="bough", title="bough", version=__version__),
            auth_methods=[],
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(image=True, audio=True, embedded_context=True),
                mcp_capabilities=schema.McpCapabilities(),
                session_capabilities=schema.SessionCapabilities(
                    list=schema.SessionListCapabilities(),
                    resume=schema.SessionResumeCapabilities(),
                    close=schema.SessionCloseCapabilities(),
                    fork=schema.SessionForkCapabilities(
                        field_meta={"bough": {"at": ["event", "number"], "files": ["shared", "copy", "worktree"]}}
                    ),
                ),
            ),
        )


async def serve_stdio(setup: EditorSetup) -> None:
    """Serve one client over the standard streams until it closes them, or until SIGTERM."""
    frames = StdioFrames()
    service = AcpService(frames)
    listening = asyncio.create_task(service.connection.main_loop())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, listening.cancel)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(service.connection.close)
        initialized = asyncio.create_task(service.is_initialized.wait())
        await asyncio.wait({listening, initialized}, return_when=asyncio.FIRST_COMPLETED)
        if not initialized.done():
            initialized.cancel()
            return
        # PydanticAI is loaded after the answer is written, because editors start their agents before they are used.
        await frames.written.wait()
        try:
            service.sessions.set_result(await _open_sessions(setup, service.editor, stack))
        except BoughError as error:
            service.sessions.set_exception(error)  # the answer to each request
            service.sessions.exception()
        await asyncio.wait({listening})


async def _open_sessions(setup: EditorSetup, editor: Editor, stack: AsyncExitStack) -> EditorSessions:
    module = await asyncio.to_thread(import_module, _SESSIONS)
    store = await stack.enter_async_context(setup.open_store())
    broker = await stack.enter_async_context(setup.open_broker(store))
    sessions: EditorSessions = module.EditorSessions(setup, store, broker, editor)
    stack.push_async_callback(sessions.aclose)
    return sessions


def _parse(model: type[BaseModel], params: Any) -> Any:
    """Return the parameters of a request. Unknown fields are ignored.

    Raises:
        RequestError: They are invalid; the message names the first wrong one.
    """
    try:
        return model.model_validate({} if params is None else params)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"])) or "the parameters"
        raise RequestError(_INVALID_PARAMS, f"{field}: {first['msg']}", {"code": "invalid_input"}) from error


def _convert_error(error: BoughError) -> RequestError:
    message = error.message + (f" ({error.hint})" if error.hint else "")
    code = _INVALID_PARAMS if error.code in _CLIENT_CODES else _INTERNAL
    return RequestError(_NOT_FOUND if error.code == "not_found" else code, message, error.as_dict())
