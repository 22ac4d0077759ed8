"""Decoding the bytes of a file in any common encoding, with a diagnostic for everything that had to be guessed."""

from __future__ import annotations

import codecs

from bough.skills.model import Diagnostic, Notes

_SAMPLE_BYTES = 8 << 10
_MIN_BYTES_FOR_NUL_CHECK = 100
"""In shorter files, a single NUL byte is already more than one percent."""

_SIGNATURES = (
    *(b"\x7fELF", b"MZ\x90", b"PK\x03\x04", b"%PDF-", b"\x89PNG\r\n", b"\x1f\x8b\x08", b"\xca\xfe\xba\xbe"),
    *(b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf", b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe"),
)
_CONTROLS = bytes(code for code in range(32) if code not in b"\0\t\n\r\f\x1b")
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def is_binary(data: bytes) -> bool:
    """Whether a file is not text, by its signature, NUL bytes and control characters. Examines 8 KiB."""
    head = data[:_SAMPLE_BYTES]
    if head.startswith(_SIGNATURES):
        return True
    if not head or _detect_wide_encoding(data) is not None:
        return False
    controls = len(head) - len(head.translate(None, _CONTROLS))
    has_many_nuls = len(head) > _MIN_BYTES_FOR_NUL_CHECK and head.count(0) * 100 > len(head)
    return has_many_nuls or controls * 10 > len(head)


def decode(data: bytes, notes: Notes) -> str:
    """Return the text of `data` with line feeds as line ends; add a diagnostic for each repair. O(n); never raises."""
    text = _decode_bytes(data, notes)
    if "\0" in text:
        text = text.replace("\0", "")
        notes.warn("nul-bytes", "the file contains NUL bytes, which were removed", "remove them")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        notes.append(Diagnostic("crlf", "info", "the file has CRLF line endings", fix="save with LF line endings"))
    return text


def _decode_bytes(data: bytes, notes: Notes) -> str:
    """Return the text of a file by its byte order mark, or as UTF-8, or else as Windows-1252."""
    if data.startswith(codecs.BOM_UTF8):
        notes.warn("bom", "the file starts with a byte order mark", "save as UTF-8 without BOM")
        return _decode_bytes(data[3:], notes)
    encoding = _detect_wide_encoding(data)
    if encoding is not None:
        notes.warn(encoding[:6], f"the file is {encoding[:6].upper()}", "save as UTF-8")
        return data.decode(encoding, "replace").removeprefix("\ufeff")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        notes.warn("not-utf-8", "the file is not UTF-8 and was read as Windows-1252", "save as UTF-8", line)
        return data.decode("cp1252", "replace")


def _detect_wide_encoding(data: bytes) -> str | None:
    """Return the UTF-16 or UTF-32 encoding of a text, by its byte order mark or its zeros; None for others."""
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return encoding
    sample = data[:64]
    if len(sample) >= 4 and sample.count(0) * 5 >= len(sample) * 2:  # every other byte of ASCII text in UTF-16 is 0
        return "utf-16-le" if sample[1::2].count(0) > sample[::2].count(0) else "utf-16-be"
    return None
