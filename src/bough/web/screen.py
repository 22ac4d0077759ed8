"""What a screen and an action are: addresses, rights, data, templates. Modules of `screens/` define them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlencode
from uuid import UUID

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response

from bough.errors import InvalidInput, NotFound
from bough.server.access import Access
from bough.server.auth.caller import Role
from bough.types import JsonObject

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One request of a person: who asks, for what.

    Attributes:
        render: Returns the HTML of a template, given its name and its values.
        path: The parameters of the screen's path. For an action they come from the form's fields of the same names.
        form: The fields of the form; empty for a GET. A screen that shows a refused form again fills them in.
        problem: The problem document of the action that was refused; None otherwise.
    """

    access: Access
    request: Request
    render: Callable[[str, Mapping[str, Any]], str]
    path: Mapping[str, str] = field(default_factory=dict[str, str])
    form: FormData = field(default_factory=FormData)
    problem: JsonObject | None = None

    @property
    def query(self) -> QueryParams:
        """The parameters of the address."""
        return self.request.query_params

    def read_id(self, name: str = "id") -> UUID:
        """Return an id of the path.

        Raises:
            NotFound: It is not a UUID, so nothing has it.
        """
        try:
            return UUID(self.path[name])
        except (KeyError, ValueError):
            raise NotFound("there is no conversation with this id", hint="check the address") from None

    def read_text(self, name: str) -> str:
        """Return a field of the form without surrounding blanks; empty if it is missing or a file."""
        value = self.form.get(name, "")
        return value.strip() if isinstance(value, str) else ""

    def read_field(self, name: str) -> str:
        """Return a field of the form, or of the address if there is no form; empty if it is missing or a file."""
        value = self.form.get(name) if self.form else self.query.get(name)
        return value if isinstance(value, str) else ""

    def read_seq(self, name: str) -> int | None:
        """Return a seq or a number of the form or the address; None if it is missing.

        Raises:
            InvalidInput: It is not a number.
        """
        text = self.read_field(name)
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise InvalidInput(f"{name}: not a number", hint="give the number of an event or a turn")
        return int(text)

    def change_query(self, **changes: str | None) -> str:
        """Return the query of this address with some parameters replaced, or removed if None. Begins at page one."""
        changes = {"page_id": None, **changes}
        pairs = [(name, value) for name, value in self.query.multi_items() if name not in changes]
        pairs += [(name, value) for name, value in changes.items() if value is not None]
        return "?" + urlencode(pairs)


def parse_body(kind: type[Body], fields: JsonObject) -> Body:
    """Return the body of an API request from the fields of a form.

    Raises:
        RequestValidationError: A field is invalid; the problem names it.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        errors = [{**item, "loc": ("body", *item["loc"])} for item in error.errors(include_url=False)]
        raise RequestValidationError(errors) from None


def read_number(text: str) -> float | str:
    """Return the number that a field of a form contains, or the text itself, which the API then refuses by name."""
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


Data: TypeAlias = Callable[[Visit], Awaitable[dict[str, Any]]]
Handler: TypeAlias = Callable[[Visit], Awaitable[str | Response]]


@dataclass(frozen=True, kw_only=True)
class WebScreen:
    """One screen.

    Attributes:
        path: Its address, with parameters as `{id}`.
        data: Returns what the template shows: texts, numbers, lists and dictionaries, among them `title`.
        modules: Its scripts in `static/`, besides those of every screen.
        role: The role that its caller must have.
        scopes: The scopes that its caller must have.
        place: The entry of the navigation that is the current one.
    """

    path: str
    template: str
    data: Data
    modules: tuple[str, ...] = ()
    role: Role = "read"
    scopes: tuple[str, ...] = ("conversations",)
    place: str = ""


@dataclass(frozen=True, kw_only=True)
class Action:
    """What a form does: a POST to `/do/{verb}`.

    Attributes:
        handle: Does it, and returns the address of the next screen or a response.
        screen: Shows a refused form again with its fields filled in; None for the page of errors.
    """

    verb: str
    handle: Handler
    screen: WebScreen | None = None
    role: Role = "write"
    scopes: tuple[str, ...] = ("conversations",)


@dataclass(frozen=True, kw_only=True)
class HtmlPart:
    """HTML, or a stream of it, that a script asks for at an address. The handler returns the whole response.

    Attributes:
        is_page: Whether a person opens the address, so that errors are pages instead of problem documents.
    """

    path: str
    handle: Callable[[Visit], Awaitable[Response]]
    is_page: bool = False
    role: Role = "read"
    scopes: tuple[str, ...] = ("conversations",)
