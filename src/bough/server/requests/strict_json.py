"""JSON that can be kept: in UTF-8, not too deep, every number finite, no text that a store refuses."""

from __future__ import annotations

import json
import math
from typing import Any, cast

from bough.errors import Malformed

MAX_DEPTH = 64


def parse_json(text: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        Malformed: It is not JSON in UTF-8, is too deep, or has a number or a text that cannot be kept.
    """
    try:
        value: Any = json.loads(text.decode("utf-8") if isinstance(text, bytes) else text, parse_constant=_refuse)
    except UnicodeDecodeError:
        raise Malformed("it is not UTF-8") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # a number of thousands of digits is none that can be read, too
        raise Malformed("it is not valid JSON", hint="send one JSON value in UTF-8") from None
    _check(value)
    return value


def is_text(text: str) -> bool:
    """Whether a text can be stored: no lone surrogates, no zero bytes (which Postgres refuses)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _refuse(name: str) -> Any:
    raise Malformed(f"{name} is not JSON")


def _too_deep() -> Malformed:
    return Malformed(f"it is deeper than {MAX_DEPTH} levels")


def _check(value: Any) -> None:
    """Check a JSON value without recursion."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                fields = cast("dict[str, Any]", each)
                below += [*fields, *fields.values()]
            elif isinstance(each, list):
                below += cast("list[Any]", each)
            elif isinstance(each, float) and not math.isfinite(each):
                raise Malformed("it has a number that is not finite")
            elif isinstance(each, str) and not is_text(each):
                raise Malformed("it has text that cannot be written as UTF-8")
        level = below
