"""The web page: serves screens, actions, parts and static files beside the API, with the same keys and limits."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from gzip import compress
from typing import Any, TypeAlias, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from jinja2 import PackageLoader
from markupsafe import Markup
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match, Route
from starlette.types import Scope

import bough
from bough.errors import BoughError, NotFound
from bough.html.environment import make_environment
from bough.server.access import Access, authenticate, read_services
from bough.server.auth.cookies import CSRF_FIELD, CSRF_HEADER, make_csrf_token, read_session, require_own_page
from bough.server.bodies.conversations import ConversationQuery
from bough.server.requests.problems import answer_to, read_request_id
from bough.server.routes.conversations import count_conversations
from bough.types import JsonObject
from bough.web.assets import COMMON_MODULES, Assets
from bough.web.screen import Action, HtmlPart, Visit, WebScreen
from bough.web.screens import ACTIONS, PARTS, SCREENS
from bough.web.signin import TicketKeys, enter, read_return_path, sign_in, sign_out

_HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
    "Vary": "Accept, Accept-Encoding, Cookie",
}
_IMMUTABLE = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
_ASSETS_HEADER = "X-Bough-Assets"
_MIN_COMPRESSED = 1024
_MAX_FIELDS, _MAX_FILES = 200, 20
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


class _HtmlRoute(Route):
    """A route of requests that ask for HTML, as browsers do; programs reach the API's route of the same path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return no match for a request whose `Accept` does not name HTML."""
        match, child_scope = super().matches(scope)
        if match is Match.PARTIAL:
            return Match.NONE, {}  # the API's route of this path lists its methods
        if match is not Match.NONE and "text/html" not in Request(scope).headers.get("accept", "").lower():
            return Match.NONE, {}
        return match, child_scope


class WebPage:
    """Makes the responses of the web page."""

    def __init__(self) -> None:
        self._assets = Assets()
        self._environment = make_environment(PackageLoader("bough.web", "templates"))
        cast("dict[str, Any]", self._environment.globals).update(
            {
                "assets": self._assets,
                "icons": self._assets.files["icons.svg"].url,
                "version": bough.__version__,
                "style_sheet": Markup(self._assets.style),  # noqa: S704 - files of this package
                "theme_script": Markup(self._assets.theme),  # noqa: S704
            }
        )

    def make_routes(self) -> list[Route]:
        """Return the routes of all screens, actions, parts and static files."""
        routes = [Route("/static/{version}/{name}", self._serve_static, include_in_schema=False)]
        routes += [
            Route("/signin", self._explain_errors(_skip_sign_in), methods=["GET"], include_in_schema=False),
            Route("/signin", self._explain_errors(_sign_in), methods=["POST"], include_in_schema=False),
            Route("/signout", self._explain_errors(_sign_out), methods=["POST"], include_in_schema=False),
            Route("/enter/{ticket}", self._explain_errors(_enter), methods=["GET"], include_in_schema=False),
        ]
        routes += [
            _HtmlRoute(screen.path, self._make_screen(screen), methods=["GET"], include_in_schema=False)
            for screen in SCREENS
        ]
        routes += [Route(part.path, self._make_part(part), methods=["GET"], include_in_schema=False) for part in PARTS]
        routes += [
            Route(f"/do/{action.verb}", self._make_action(action), methods=["POST"], include_in_schema=False)
            for action in ACTIONS
        ]
        # Last, so that it gets only what no other route takes.
        routes.append(_HtmlRoute("/{path:path}", self._explain_errors(_refuse), include_in_schema=False))
        return routes

    def _make_screen(self, screen: WebScreen) -> Endpoint:
        async def answer(request: Request) -> Response:
            access = await _authenticate(request)
            access.caller.require(screen.role, *screen.scopes)
            return await self._show(screen, self._make_visit(access, request))

        return self._explain_errors(answer)

    def _make_part(self, part: HtmlPart) -> Endpoint:
        """Return the endpoint of a script's address. Its errors are problem documents, as those of the API."""

        async def answer(request: Request) -> Response:
            access = await _authenticate(request)
            access.caller.require(part.role, *part.scopes)
            response = await part.handle(self._make_visit(access, request))
            response.headers[_ASSETS_HEADER] = self._assets.version  # a script learns from it that its page is old
            return response

        return self._explain_errors(answer) if part.is_page else answer

    def _make_visit(self, access: Access, request: Request) -> Visit:
        return Visit(access=access, request=request, path=request.path_params, render=self._render_part)

    def _render_part(self, template: str, context: Mapping[str, Any]) -> str:
        return self._environment.get_template(template).render(context)

    def _make_action(self, action: Action) -> Endpoint:
        async def answer(request: Request) -> Response:
            access = await _authenticate(request)  # before the form is read: a form without a key must not cost memory
            form = await request.form(max_files=_MAX_FILES, max_fields=_MAX_FIELDS)
            _require_own_form(request, form)
            access.caller.require(action.role, *action.scopes)
            ids = {name: value for name, value in form.items() if isinstance(value, str)}
            visit = replace(self._make_visit(access, request), path=ids, form=form)
            try:
                result = await action.handle(visit)
            except (BoughError, RequestValidationError) as error:
                if action.screen is None:
                    raise
                return await self._show_again(action.screen, visit, error)
            return RedirectResponse(result, 303, headers=_HEADERS) if isinstance(result, str) else result

        return self._explain_errors(answer)

    def _explain_errors(self, answer: Endpoint) -> Endpoint:
        """Return an endpoint that responds to every error with a page."""

        async def answer_or_explain(request: Request) -> Response:
            try:
                return await answer(request)
            except Exception as error:  # noqa: BLE001 - the boundary of a request; `answer_to` logs unexpected errors
                return self._show_error(request, error)

        return answer_or_explain

    async def _show_again(self, screen: WebScreen, visit: Visit, error: Exception) -> Response:
        """Return the screen of a refused form, with its fields as they were and what is wrong with them."""
        refused = answer_to(error, read_request_id(visit.request.scope))
        problem: JsonObject = json.loads(bytes(refused.body))
        return await self._show(screen, replace(visit, problem=problem), status=refused.status_code)

    async def _show(self, screen: WebScreen, visit: Visit, *, status: int = 200) -> Response:
        data = await screen.data(visit)
        modules = (*COMMON_MODULES, *screen.modules)
        waiting = await count_conversations(ConversationQuery(status="waiting_for_confirmation"), visit.access)
        context = {
            **self._describe(visit.request, modules),
            "place": screen.place,
            "waiting": waiting,
            "query": visit.query,
            "form": visit.form,
            "problem": visit.problem,
            **data,
        }
        return self._render(visit.request, screen.template, context, modules, status=status)

    def _show_error(self, request: Request, error: Exception) -> Response:
        """Return a page about an error: the sign-in if a key is needed, else what is wrong and the way back."""
        refused = answer_to(error, read_request_id(request.scope))
        problem: JsonObject = json.loads(bytes(refused.body))
        template = "signin.html" if refused.status_code == 401 else "error.html"
        context = {
            **self._describe(request, COMMON_MODULES),
            "title": "Sign in" if template == "signin.html" else problem["title"],
            "place": "",
            "waiting": None,
            "query": request.query_params,
            "problem": problem,
            "next": read_return_path(request),
            "tried": request.method == "POST" and request.url.path == "/signin",
            "has_tickets": isinstance(read_services(request).keys, TicketKeys),
        }
        headers = {name: refused.headers[name] for name in ("Retry-After", "Allow") if name in refused.headers}
        return self._render(request, template, context, COMMON_MODULES, status=refused.status_code, headers=headers)

    def _describe(self, request: Request, modules: tuple[str, ...]) -> dict[str, Any]:
        """Return what the frame of every page shows."""
        session = read_session(request)
        return {
            "caller": request.scope["state"].get("caller"),
            "csrf": "" if session is None else make_csrf_token(session),
            "modules": modules,
            "path": request.url.path,
        }

    def _render(
        self,
        request: Request,
        template: str,
        context: Mapping[str, Any],
        modules: tuple[str, ...],
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        content = self._environment.get_template(template).render(context).encode("utf-8", "replace")
        sent = {
            **_HEADERS,
            **(headers or {}),
            "Content-Security-Policy": self._assets.make_policy(modules),
            _ASSETS_HEADER: self._assets.version,
        }
        # Compression tells nobody the token: cookies are SameSite=Strict, so no other site can repeat such a request.
        if len(content) >= _MIN_COMPRESSED and "gzip" in request.headers.get("accept-encoding", ""):
            content = compress(content, 5, mtime=0)
            sent["Content-Encoding"] = "gzip"
        return Response(content, status, headers=sent, media_type="text/html; charset=utf-8")

    async def _serve_static(self, request: Request) -> Response:
        """Return a file of `static/`. Its address contains the version, so browsers may keep it for ever."""
        asset = self._assets.files.get(request.path_params["name"])
        # A page of another version must not get this script: its integrity differs, and browsers keep it for ever.
        if asset is None or request.path_params["version"] != self._assets.version:
            raise HTTPException(404, "there is no such file; reload the page")
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(asset.content, media_type=asset.media_type, headers=_IMMUTABLE)
        headers = {**_IMMUTABLE, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return Response(asset.compressed, media_type=asset.media_type, headers=headers)


async def _refuse(request: Request) -> Response:
    """Tell a person that nothing is at an address.

    Raises:
        NotFound: Always.
    """
    await _authenticate(request)
    raise NotFound("there is no page at this address", hint="check the address, or go back to the list")


async def _skip_sign_in(request: Request) -> Response:
    """Go on if the caller needs no sign-in; the error of a caller who does is shown as its form."""
    await _authenticate(request)
    return RedirectResponse("/", 303, headers=_HEADERS)


async def _sign_in(request: Request) -> Response:
    return _with_headers(await sign_in(request))


async def _sign_out(request: Request) -> Response:
    access = await _authenticate(request)
    _require_own_form(request, await request.form(max_files=0, max_fields=_MAX_FIELDS))
    return _with_headers(await sign_out(request, access.caller))


async def _enter(request: Request) -> Response:
    return _with_headers(await enter(request))


def _with_headers(response: Response) -> Response:
    response.headers.update(_HEADERS)
    return response


async def _authenticate(request: Request) -> Access:
    """Return the access of a person, whose browser sends a session as a cookie."""
    return await authenticate(request, read_session(request))


def _require_own_form(request: Request, form: FormData) -> None:
    """Check that a form was filled in on a page of this server."""
    session = read_session(request)
    if session is not None:
        token = form.get(CSRF_FIELD) or request.headers.get(CSRF_HEADER)
        require_own_page(request, session, token if isinstance(token, str) else None)


def mount(app: FastAPI) -> None:
    """Serve the web page beside the routes of a server's application."""
    routes = WebPage().make_routes()
    # The other routes come last, so that requests to the API do not pass them.
    app.router.routes[:0] = [route for route in routes if route.path == "/"]  # the API has this path, too
    app.router.routes += [route for route in routes if route.path != "/"]
