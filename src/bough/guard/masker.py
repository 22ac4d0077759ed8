"""Hides secret values in whatever leaves: text, bytes, JSON and streams, also encoded ones."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast
from urllib.parse import quote, quote_plus

from bough.types import Json

if TYPE_CHECKING:
    from ahocorasick_rs import AhoCorasick, BytesAhoCorasick


class Masker:
    """Replaces every secret by `<secret:NAME>`, however it is encoded. O(length), however many there are.

    Overlapping values are hidden together, so that no end of one is left over.

    Args:
        values: For each name its values, also earlier ones.
    """

    def __init__(self, values: Mapping[str, Iterable[str]] | None = None) -> None:
        secrets = {name: tuple(versions) for name, versions in (values or {}).items()}
        self._text = _Forms(secrets)
        self._raw = _Forms(secrets, _as_bytes)

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        return self._text.mask(text)

    def data(self, data: bytes) -> bytes:
        """Return bytes without secrets; the rest is as it was, text or not."""
        return self._raw.mask(data.decode("latin-1")).encode("latin-1")

    def json(self, value: Json) -> Json:
        """Return a JSON value without secrets in any text, key or number."""
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self.text(str(k)): self.json(v) for k, v in cast(dict[str, Any], value).items()}
            case list() | tuple():
                return [self.json(item) for item in cast(list[Any], value)]
            case bytes():
                return self.data(value)
            case int() | float() if not isinstance(value, bool):
                masked = self.text(str(value))
                return value if masked == str(value) else masked
            case _:
                return value

    def text_stream(self) -> MaskStream:
        """Return what masks a text that comes in pieces."""
        return MaskStream(self._text)

    def data_stream(self) -> MaskByteStream:
        """Return what masks bytes that come in pieces."""
        return MaskByteStream(self._raw)

    def __repr__(self) -> str:
        return f"Masker({', '.join(self._text.names)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a masker holds secrets and is not pickled")


class MaskStream:
    """Masks pieces of one text. What might be the beginning of a secret is held back until it is known."""

    def __init__(self, forms: _Forms) -> None:
        self._forms = forms
        self._held = ""
        self._covered = 0  # leading characters of what is held that belong to a secret which was replaced already

    def feed(self, piece: str) -> str:
        """Return what is certain after the next piece; it may be empty."""
        text = self._held + piece
        cut = self._forms.find_undecided(text)
        out, self._covered = self._forms.mask_until(text, cut, self._covered)
        self._held = text[cut:]
        return out

    def close(self) -> str:
        """Return the rest. Nothing may be fed afterwards."""
        out, _ = self._forms.mask_until(self._held, len(self._held), self._covered)
        self._held, self._covered = "", 0
        return out


class MaskByteStream:
    """Masks pieces of one stream of bytes, as `MaskStream` does."""

    def __init__(self, forms: _Forms) -> None:
        self._stream = MaskStream(forms)

    def feed(self, piece: bytes) -> bytes:
        """Return what is certain after the next piece; it may be empty."""
        return self._stream.feed(piece.decode("latin-1")).encode("latin-1")

    def close(self) -> bytes:
        """Return the rest. Nothing may be fed afterwards."""
        return self._stream.close().encode("latin-1")


class _Forms:
    """Every form of every secret, ready to be found.

    The forms are many: base64 alone may be broken at any character. So a text is searched for short anchors first, of
    which every form contains one. The forms themselves are made for texts that contain an anchor, and for streams.

    Args:
        secrets: For each name its values.
        encode: Brings a form into the characters that are searched.
    """

    def __init__(self, secrets: Mapping[str, tuple[str, ...]], encode: Callable[[str], str] = str) -> None:
        self._secrets = secrets
        self._encode = encode

    @cached_property
    def _forms(self) -> Mapping[str, str]:
        """For each form the name of its secret, sorted by form."""
        values = ((name, value) for name, versions in self._secrets.items() for value in versions)
        forms = {self._encode(form): name for name, value in values for form in _all_forms(value)}
        return dict(sorted(forms.items()))

    @cached_property
    def _sorted(self) -> list[str]:
        return list(self._forms)

    @cached_property
    def _names(self) -> list[str]:
        return list(self._forms.values())

    @cached_property
    def _first(self) -> set[str]:
        return {form[0] for form in self._sorted}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._sorted), default=0)

    @cached_property
    def _anchors(self) -> BytesAhoCorasick | None:
        """Finds a part of every form. None without secrets."""
        from ahocorasick_rs import BytesAhoCorasick, Implementation

        values = [value for versions in self._secrets.values() for value in versions]
        anchors = {self._encode(form)[:_ANCHOR] for value in values for form in _unbroken_forms(value)}
        anchors |= {anchor for value in values for anchor in _base64_anchors(value)}
        # A table of all transitions is searched twice as fast, and takes about 2 KiB for each anchor.
        implementation = Implementation.DFA if len(anchors) <= _MAX_TABLE else Implementation.ContiguousNFA
        patterns = [_to_bytes(anchor) for anchor in sorted(anchors)]
        return BytesAhoCorasick(patterns, implementation=implementation) if patterns else None

    @cached_property
    def _automaton(self) -> AhoCorasick:
        from ahocorasick_rs import AhoCorasick

        return AhoCorasick(self._sorted)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._secrets))

    def mask(self, text: str) -> str:
        return self.mask_until(text, len(text), 0)[0]

    def mask_until(self, text: str, cut: int, covered: int) -> tuple[str, int]:
        """Return `text[:cut]` without secrets, and how much after `cut` belongs to a secret replaced in it.

        Args:
            covered: So many leading characters belong to a secret whose name was written before.
        """
        out: list[str] = []
        position = 0
        for start, end, name in self._spans(text, covered):
            if start >= cut:
                break
            out += [text[position:start], f"<secret:{name}>" if name else ""]
            position = end
        out.append(text[position:cut])
        return "".join(out), max(0, position - cut, covered - cut)

    def find_undecided(self, text: str) -> int:
        """Return where the first end of `text` begins that may become a secret with what comes next."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._first and self._is_beginning(text[start:]):
                return start
        return len(text)

    def _is_beginning(self, tail: str) -> bool:
        at = bisect_left(self._sorted, tail)
        if at < len(self._sorted) and self._sorted[at] == tail:  # complete itself; a longer one would come next
            at += 1
        return at < len(self._sorted) and self._sorted[at].startswith(tail)

    def _spans(self, text: str, covered: int) -> Iterator[tuple[int, int, str]]:
        """Yield (start, end, name) of what is to be hidden, merged where secrets overlap."""
        span = (0, covered, "") if covered else None
        for start, end, name in self._find(text):
            if span is None:
                span = (start, end, name)
            elif start < span[1]:
                span = (span[0], max(end, span[1]), span[2])
            else:
                yield span
                span = (start, end, name)
        if span is not None:
            yield span

    def _find(self, text: str) -> list[tuple[int, int, str]]:
        # Bytes: a search of text first builds a table of its characters, which takes as long as the search itself.
        if not text or self._anchors is None or not self._anchors.find_matches_as_indexes(_to_bytes(text)):
            return []
        matches = self._automaton.find_matches_as_indexes(text, overlapping=True)
        return sorted(
            ((start, end, self._names[form]) for form, start, end in matches), key=lambda span: (span[0], -span[1])
        )


_ANCHOR: Final = 8
"""Characters of an anchor: rare in texts without secrets, and few enough for a small table."""

_MAX_TABLE: Final = 2_000
"""Up to so many anchors are searched by a table of all transitions."""

_MIN_LINE: Final = 16
"""Shorter lines of a value stand in other texts, too."""

_MAX_WRAPPED: Final = 200
"""Up to so many bytes of a value are looked for in base64 that is broken anywhere; the number of forms is bounded."""

_OFFSETS: Final = ((0, 0), (1, 2), (2, 3))
"""Bytes before a value in its group of three, and how many characters of its base64 depend on them."""

_WIDTHS: Final = (64, 76)
"""Where PEM and MIME (`base64`, `encodebytes`) break lines."""


def _all_forms(value: str) -> set[str]:
    """Return every way in which a value may be written."""
    return _unbroken_forms(value).union(*map(_wrap, _base64_at_each_offset(value)))


def _unbroken_forms(value: str) -> set[str]:
    """Return every way of writing a value but base64 that is broken anywhere; of many lines also each long one."""
    lines = [line.strip() for line in value.splitlines()] if "\n" in value.strip() else []
    secret_lines = [line for line in lines if len(line) >= _MIN_LINE and not line.startswith("-----")]
    forms = {form for text in (value, *secret_lines) for form in _encode_value(text)}
    return forms.union(_base64_lines(_to_bytes(value)))


def _encode_value(value: str) -> set[str]:
    """A value as it is, escaped for JSON, a URL, HTML, a shell or Python, hexadecimal, base32 and base64."""
    data = _to_bytes(value)
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    escaped |= {text.replace("/", "\\/") for text in escaped}
    twice = {json.dumps(text)[1:-1] for text in escaped}
    in_urls = {quote(data, safe=""), quote(data), quote_plus(data)}
    lower = {_lower_escapes(text) for text in in_urls}
    in_html = {html.escape(value, quote=False), html.escape(value), html.escape(value).replace("&#x27;", "&#39;")}
    in_code = {shlex.quote(value)[1:-1] if "'" in value else value, repr(value)[1:-1], repr(data)[2:-1]}
    in_code |= {value.replace("'", "\\'"), _SHELL_SPECIAL.sub(r"\\\g<0>", value)}
    base32 = set(_base32_forms(data))
    plain = {value, data.hex(), data.hex().upper(), *base32}
    return {*plain, *escaped, *twice, *in_urls, *lower, *in_html, *in_code, *_base64_forms(data)} - {""}


_SHELL_SPECIAL: Final = re.compile(r"[^A-Za-z0-9_@%+=:,./\n-]")
"""What `printf %q` of a shell puts a backslash before."""


def _base32_forms(data: bytes) -> Iterator[str]:
    """What base32 makes of the value wherever it stands in the text around it, padded or not."""
    for before in range(5):
        whole = base64.b32encode(b"\0" * before + data).decode()
        stable = whole[-(-before * 8 // 5) : (before + len(data)) * 8 // 5]
        forms = (stable, whole, whole.rstrip("=")) if not before else (stable,)
        yield from forms
        yield from (form.lower() for form in forms)


def _lower_escapes(text: str) -> str:
    pieces = text.split("%")
    return "%".join([pieces[0], *(piece[:2].lower() + piece[2:] for piece in pieces[1:])])


def _base64_forms(data: bytes) -> Iterator[str]:
    """What base64 makes of the value wherever it stands in the text around it, in both alphabets, padded or not."""
    for before, touched in _OFFSETS:
        whole = base64.b64encode(b"\0" * before + data).decode()
        stable = whole[touched : (before + len(data)) * 8 // 6]
        for form in (stable, whole[touched:], whole[touched:].rstrip("=")):
            yield form
            yield form.translate(_URL_SAFE)


def _base64_lines(data: bytes) -> Iterator[str]:
    """Yield the lines of a long value in base64, where it begins the encoded text."""
    if len(data) > _MAX_WRAPPED:
        whole = base64.b64encode(data).decode()
        lines = (whole[at : at + width] for width in _WIDTHS for at in range(0, len(whole), width))
        yield from (line for line in lines if len(line) >= _MIN_LINE)


def _base64_at_each_offset(value: str) -> Iterator[str]:
    """Yield what a short value is in base64 wherever it stands in the encoded text, without line breaks."""
    data = _to_bytes(value)
    if len(data) <= _MAX_WRAPPED:
        for before, touched in _OFFSETS:
            yield base64.b64encode(b"\0" * before + data).decode()[touched : (before + len(data)) * 8 // 6]


def _base64_anchors(value: str) -> Iterator[str]:
    """Yield two neighbouring parts of a value in base64: a line break, or one every 64 characters, leaves one whole."""
    for encoded in _base64_at_each_offset(value):
        length = min(_ANCHOR, len(encoded) // 2)
        yield from (encoded[:length], encoded[length : 2 * length]) if length else ()


def _wrap(text: str) -> Iterator[str]:
    """Return a text with lines broken at the usual widths, wherever its first line begins."""
    for width in _WIDTHS:
        for first in range(1, min(width + 1, len(text))):
            lines = [text[:first], *(text[at : at + width] for at in range(first, len(text), width))]
            yield "\n".join(lines)
            yield "\r\n".join(lines)


_URL_SAFE = str.maketrans("+/", "-_")


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _as_bytes(form: str) -> str:
    return _to_bytes(form).decode("latin-1")
