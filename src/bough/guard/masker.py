"""Hides the values of secrets, also encoded ones, in output: text, bytes, JSON and streams."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, cast
from urllib.parse import quote, quote_plus

from bough.types import Json

if TYPE_CHECKING:
    from ahocorasick_rs import AhoCorasick, BytesAhoCorasick


class Masker:
    """Replaces every secret by `<secret:NAME>`, in any usual encoding. O(length) for any number of secrets.

    Overlapping values are replaced together, so that no part of a value remains.

    Args:
        values: All values of each name, including earlier ones.
    """

    def __init__(self, values: Mapping[str, Iterable[str]] | None = None) -> None:
        secrets = {name: tuple(versions) for name, versions in (values or {}).items()}
        self._text = _Forms(secrets)
        self._raw = _Forms(secrets, _encode_latin1)

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        return self._text.mask(text)

    def data(self, data: bytes) -> bytes:
        """Return bytes without secrets. The other bytes are unchanged, and need not be text."""
        return self._raw.mask(data.decode("latin-1")).encode("latin-1")

    def json(self, value: Json) -> Json:
        """Return a JSON value without secrets in its texts, keys and numbers."""
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
        """Return a stream that masks a text given in pieces."""
        return MaskStream(self._text)

    def data_stream(self) -> MaskByteStream:
        """Return a stream that masks bytes given in pieces."""
        return MaskByteStream(self._raw)

    def __repr__(self) -> str:
        return f"Masker({', '.join(self._text.names)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a masker contains secrets and cannot be pickled")


class MaskStream:
    """Masks a text given in pieces. An end that may be the beginning of a secret waits for the next piece."""

    def __init__(self, forms: _Forms) -> None:
        self._forms = forms
        self._pending = ""
        self._covered = 0  # number of leading pending characters that belong to a secret already replaced

    def feed(self, piece: str) -> str:
        """Take the next piece, and return the masked output that is now final; it may be empty."""
        text = self._pending + piece
        cut = self._forms.find_undecided(text)
        masked, self._covered = self._forms.mask_until(text, cut, self._covered)
        self._pending = text[cut:]
        return masked

    def close(self) -> str:
        """Return the masked remainder. The stream must not be fed afterwards."""
        masked, _ = self._forms.mask_until(self._pending, len(self._pending), self._covered)
        self._pending, self._covered = "", 0
        return masked


class MaskByteStream:
    """Masks bytes given in pieces, as `MaskStream` masks text."""

    def __init__(self, forms: _Forms) -> None:
        self._stream = MaskStream(forms)

    def feed(self, piece: bytes) -> bytes:
        """Take the next piece, and return the masked output that is now final; it may be empty."""
        return self._stream.feed(piece.decode("latin-1")).encode("latin-1")

    def close(self) -> bytes:
        """Return the masked remainder. The stream must not be fed afterwards."""
        return self._stream.close().encode("latin-1")


class _Span(NamedTuple):
    """Where a text contains a secret, and the name of the secret."""

    start: int
    end: int
    name: str


class _Forms:
    """Searches texts for all encoded forms of all secrets.

    There are many forms, because base64 may have a line break at any character. So a text is first searched for
    anchors: short texts, of which every form contains at least one. The forms themselves are computed only for a text
    that contains an anchor, and for streams.

    Args:
        secrets: All values of each name.
        encode: Converts a form to the characters of the searched texts.
    """

    def __init__(self, secrets: Mapping[str, tuple[str, ...]], encode: Callable[[str], str] = str) -> None:
        self._secrets = secrets
        self._encode = encode

    @cached_property
    def _forms(self) -> Mapping[str, str]:
        """The name of the secret of each form, sorted by form."""
        values = ((name, value) for name, versions in self._secrets.items() for value in versions)
        forms = {self._encode(form): name for name, value in values for form in _all_forms(value)}
        return dict(sorted(forms.items()))

    @cached_property
    def _sorted_forms(self) -> list[str]:
        return list(self._forms)

    @cached_property
    def _form_names(self) -> list[str]:
        return list(self._forms.values())

    @cached_property
    def _first_chars(self) -> set[str]:
        return {form[0] for form in self._sorted_forms}

    @cached_property
    def _max_length(self) -> int:
        return max(map(len, self._sorted_forms), default=0)

    @cached_property
    def _anchors(self) -> BytesAhoCorasick | None:
        """The automaton that finds anchors; None without secrets."""
        from ahocorasick_rs import BytesAhoCorasick, Implementation

        values = [value for versions in self._secrets.values() for value in versions]
        anchors = {self._encode(form)[:_ANCHOR_CHARS] for value in values for form in _list_unbroken_forms(value)}
        anchors |= {anchor for value in values for anchor in _list_base64_anchors(value)}
        # A DFA searches twice as fast, and takes about 2 KiB of memory for each anchor.
        implementation = Implementation.DFA if len(anchors) <= _MAX_DFA_ANCHORS else Implementation.ContiguousNFA
        patterns = [_to_bytes(anchor) for anchor in sorted(anchors)]
        return BytesAhoCorasick(patterns, implementation=implementation) if patterns else None

    @cached_property
    def _automaton(self) -> AhoCorasick:
        from ahocorasick_rs import AhoCorasick

        return AhoCorasick(self._sorted_forms)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._secrets))

    def mask(self, text: str) -> str:
        return self.mask_until(text, len(text), 0)[0]

    def mask_until(self, text: str, cut: int, covered: int) -> tuple[str, int]:
        """Mask `text[:cut]`.

        Args:
            covered: The number of leading characters that belong to a secret replaced in an earlier piece.

        Returns:
            The masked text, and the number of characters after `cut` that belong to a secret replaced in it.
        """
        masked: list[str] = []
        position = 0
        for span in self._merge_spans(text, covered):
            if span.start >= cut:
                break
            masked += [text[position : span.start], f"<secret:{span.name}>" if span.name else ""]
            position = span.end
        masked.append(text[position:cut])
        return "".join(masked), max(0, position - cut, covered - cut)

    def find_undecided(self, text: str) -> int:
        """Return the start of the longest end of `text` that may begin a form; `len(text)` if there is none."""
        for start in range(max(0, len(text) - self._max_length + 1), len(text)):
            if text[start] in self._first_chars and self._is_beginning(text[start:]):
                return start
        return len(text)

    def _is_beginning(self, tail: str) -> bool:
        """Whether a form is longer than `tail` and begins with it."""
        forms = self._sorted_forms
        index = bisect_left(forms, tail)
        if index < len(forms) and forms[index] == tail:  # forms that begin with `tail` follow it
            index += 1
        return index < len(forms) and forms[index].startswith(tail)

    def _merge_spans(self, text: str, covered: int) -> Iterator[_Span]:
        """Yield the spans to replace in order; overlapping ones are merged. The covered span has an empty name."""
        merged = _Span(0, covered, "") if covered else None
        for span in self._find(text):
            if merged is None:
                merged = span
            elif span.start < merged.end:
                merged = merged._replace(end=max(span.end, merged.end))
            else:
                yield merged
                merged = span
        if merged is not None:
            yield merged

    def _find(self, text: str) -> list[_Span]:
        """Return all spans of secrets, by start and then by length, longest first."""
        # As bytes: a search in a text first builds a table of its characters, which takes as long as the search.
        if not text or self._anchors is None or not self._anchors.find_matches_as_indexes(_to_bytes(text)):
            return []
        matches = self._automaton.find_matches_as_indexes(text, overlapping=True)
        spans = [_Span(start, end, self._form_names[form]) for form, start, end in matches]
        return sorted(spans, key=lambda span: (span.start, -span.end))


_ANCHOR_CHARS: Final = 8
"""Length of an anchor: long enough to be rare in texts without secrets, short enough for a small automaton."""

_MAX_DFA_ANCHORS: Final = 2_000
"""Maximum number of anchors that are searched with a DFA."""

_MIN_LINE_CHARS: Final = 16
"""Shorter lines of a value are not searched, because ordinary texts contain them too."""

_MAX_WRAPPED_BYTES: Final = 200
"""Maximum size of a value that is searched in base64 with line breaks anywhere; it limits the number of forms."""

_OFFSETS: Final = ((0, 0), (1, 2), (2, 3))
"""For each offset in a group of three bytes: the preceding bytes, and the base64 characters that depend on them."""

_LINE_WIDTHS: Final = (64, 76)
"""The line lengths of PEM and MIME (`base64`, `encodebytes`)."""


def _all_forms(value: str) -> set[str]:
    """Return all forms of a value."""
    return _list_unbroken_forms(value).union(*map(_wrap, _base64_at_each_offset(value)))


def _list_unbroken_forms(value: str) -> set[str]:
    """Return all forms of a value except base64 with line breaks. Each long line of the value is treated as a value."""
    lines = [line.strip() for line in value.splitlines()] if "\n" in value.strip() else []
    long_lines = [line for line in lines if len(line) >= _MIN_LINE_CHARS and not line.startswith("-----")]
    forms = {form for text in (value, *long_lines) for form in _encode_value(text)}
    return forms.union(_base64_lines(_to_bytes(value)))


def _encode_value(value: str) -> set[str]:
    """Return a value as it is, escaped for JSON, URLs, HTML, shells and Python, and in hex, base32 and base64."""
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
"""Characters that `printf %q` of a shell escapes with a backslash."""


def _base32_forms(data: bytes) -> Iterator[str]:
    """Yield a value in base32 at each offset in the encoded data, with and without padding."""
    for preceding_bytes in range(5):
        encoded = base64.b32encode(b"\0" * preceding_bytes + data).decode()
        stable = encoded[-(-preceding_bytes * 8 // 5) : (preceding_bytes + len(data)) * 8 // 5]
        forms = (stable, encoded, encoded.rstrip("=")) if not preceding_bytes else (stable,)
        yield from forms
        yield from (form.lower() for form in forms)


def _lower_escapes(text: str) -> str:
    """Return a percent-encoded text with its escapes in lower case."""
    pieces = text.split("%")
    return "%".join([pieces[0], *(piece[:2].lower() + piece[2:] for piece in pieces[1:])])


def _base64_forms(data: bytes) -> Iterator[str]:
    """Yield a value in base64 at each offset in the encoded data, in both alphabets, with and without padding."""
    for preceding_bytes, unstable_chars in _OFFSETS:
        encoded = base64.b64encode(b"\0" * preceding_bytes + data).decode()
        stable = encoded[unstable_chars : (preceding_bytes + len(data)) * 8 // 6]
        for form in (stable, encoded[unstable_chars:], encoded[unstable_chars:].rstrip("=")):
            yield form
            yield form.translate(_URL_SAFE)


def _base64_lines(data: bytes) -> Iterator[str]:
    """Yield the lines of a long value in base64, for encoded data that begin with the value."""
    if len(data) > _MAX_WRAPPED_BYTES:
        encoded = base64.b64encode(data).decode()
        lines = (encoded[start : start + width] for width in _LINE_WIDTHS for start in range(0, len(encoded), width))
        yield from (line for line in lines if len(line) >= _MIN_LINE_CHARS)


def _base64_at_each_offset(value: str) -> Iterator[str]:
    """Yield a short value in base64 without line breaks, at each offset in the encoded data."""
    data = _to_bytes(value)
    if len(data) <= _MAX_WRAPPED_BYTES:
        for preceding_bytes, unstable_chars in _OFFSETS:
            yield base64.b64encode(b"\0" * preceding_bytes + data).decode()[
                unstable_chars : (preceding_bytes + len(data)) * 8 // 6
            ]


def _list_base64_anchors(value: str) -> Iterator[str]:
    """Yield two adjacent parts of a value in base64. Line breaks every 64 characters leave at least one intact."""
    for encoded in _base64_at_each_offset(value):
        length = min(_ANCHOR_CHARS, len(encoded) // 2)
        yield from (encoded[:length], encoded[length : 2 * length]) if length else ()


def _wrap(text: str) -> Iterator[str]:
    """Yield a text broken into lines of the usual lengths, for each length of the first line."""
    for width in _LINE_WIDTHS:
        for first_length in range(1, min(width + 1, len(text))):
            other_lines = (text[start : start + width] for start in range(first_length, len(text), width))
            lines = [text[:first_length], *other_lines]
            yield "\n".join(lines)
            yield "\r\n".join(lines)


_URL_SAFE = str.maketrans("+/", "-_")


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _encode_latin1(form: str) -> str:
    return _to_bytes(form).decode("latin-1")
