"""Scanning a skill for malicious patterns in its text, its scripts and its files.

A finding is a reason to review, not a proof. Files that could not be scanned are reported as well.
"""

from __future__ import annotations

import base64
import os
import re
import stat
import unicodedata
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from bough.skills.model import Diagnostic, Notes, Severity
from bough.skills.read.encoding import decode


@dataclass(frozen=True, slots=True)
class ScanRule:
    """A pattern, and the diagnostic for its matches.

    Attributes:
        where: What is searched: `text` (instructions and other text), `script` (programs) or `any` (both).
    """

    code: str
    severity: Severity
    where: Literal["text", "script", "any"]
    pattern: str
    message: str
    fix: str


RULES: tuple[ScanRule, ...] = (
    ScanRule("override-instructions", "error", "text",
          r"\b(?:ignore|disregard|forget|override)\b.{0,40}\b(?:previous|prior|above|earlier|all|system|safety)\b.{0,30}"
          r"\b(?:instructions?|prompts?|rules?|guidelines?|messages?)\b",
          "the text tells the model to ignore its instructions", "remove the sentence"),
    ScanRule("override-instructions", "error", "text",
          r"\b(?:do not|don't|never|without)\b.{0,30}\b(?:tell(?:ing)?|inform(?:ing)?|mention(?:ing)?|ask(?:ing)?|"
          r"reveal(?:ing)?|show(?:ing)?|alert(?:ing)?)\b.{0,20}\b(?:the )?users?\b",
          "the text tells the model to hide something from the user", "remove the sentence"),
    ScanRule("override-instructions", "warning", "text",
          r"\b(?:you are now|from now on you are|enter|enable)\b.{0,30}\b(?:developer mode|dan mode|jailbreak|"
          r"root mode|unrestricted|god mode)\b",
          "the text puts the model into an unrestricted role", "remove the sentence"),
    ScanRule("fake-role", "error", "text", r"<\|(?:im_start|im_end|system|endoftext)\|>|\[/?INST\]|<</?SYS>>",
          "the text contains chat template tokens", "remove them"),
    ScanRule("hidden-style", "warning", "text",
         r"display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0|opacity\s*:\s*0\b",
          "text is hidden by styling", "remove it"),
    ScanRule("download-and-run", "error", "any",
          r"\b(?:curl|wget|iwr|invoke-webrequest)\b[^\n|;]{0,300}\|\s*(?:sudo\s+)?(?:env\s+)?(?:ba|z|da)?sh\b|"
          r"\b(?:ba|z)?sh\s+(?:-c\s+)?[\"']?(?:<\(|\$\()\s*(?:curl|wget)|"
          r"\b(?:curl|wget)\b[^\n|;]{0,300}\|\s*(?:sudo\s+)?(?:python|perl|ruby|node)",
          "code is downloaded and run unchecked", "download a pinned version, verify its digest, then run it"),
    ScanRule("encoded-run", "error", "any",
          r"base64\s+(?:-d|--decode|-D)\b[^\n]{0,200}\|\s*(?:ba|z)?sh\b|"
          r"\b(?:exec|eval)\s*\(\s*(?:__import__\(|base64|codecs|zlib|bytes\.fromhex|compile\(|atob|Buffer\.from)",
          "encoded code is decoded and run", "ship it unencoded"),
    ScanRule("dynamic-code", "warning", "script",
         r"(?:^|[^.\w])(?:exec|eval)\s*\(|new\s+Function\s*\(",
          "code is generated from text at run time", "write the code out"),
    ScanRule("network", "warning", "script",
          r"\b(?:requests|httpx|aiohttp|urllib3)\s*\.\s*(?:get|post|put|patch|delete|request|stream|Session|Client)\b|"
          r"\burllib\.request\b|\bhttp\.client\b|\bsocket\.(?:socket|create_connection)\b|\bsmtplib\b|\bftplib\b|\bparamiko\b|"
          r"\bfetch\s*\(\s*['\"`]https?:|\bXMLHttpRequest\b|\baxios\b|\brequire\(\s*['\"](?:https?|net|dgram)['\"]|"
          r"(?m:^\s*(?:sudo\s+)?(?:curl|wget|nc|ncat|scp|rsync|ssh)\s)|/dev/tcp/",
          "the script uses the network", "document it in `compatibility`; scripts have no network unless allowed"),
    ScanRule("exfiltration", "error", "any",
          r"\b(?:webhook\.site|requestbin|pipedream\.net|ngrok(?:-free)?\.(?:io|app)|burpcollaborator|interact\.sh|"
          r"oastify\.com|transfer\.sh|file\.io|discord(?:app)?\.com/api/webhooks|api\.telegram\.org/bot)",
          "data is sent to an anonymous collection service", "remove it"),
    ScanRule("credentials", "error", "any",
          r"(?:~|\$HOME|/root|/home/\w+|expanduser\([^)]{0,10})[/\"'\w.]{0,10}\.(?:ssh|aws|gnupg|kube|docker|netrc|npmrc|pypirc)\b|"
          r"/etc/shadow\b|\bid_(?:rsa|ed25519|ecdsa)\b|\.aws/credentials|\.config/gcloud|"
          r"\bsecurity\s+find-generic-password\b|Login Data|\.git-credentials",
          "a credential location is accessed", "remove it: skills must not access credentials"),
    ScanRule("environment", "warning", "script",
          r"os\.environ\s*(?:[^\s.\[]|\.(?:items|copy|values|keys)\(|$)|\bdict\(\s*os\.environ|(?m:^\s*(?:printenv|env)\s*(?:\||>|$))|"
          r"JSON\.stringify\(\s*process\.env\s*\)",
          "the whole environment is read", "read only the variable that is needed"),
    ScanRule("secret-variable", "warning", "script",
          r"(?:environ(?:\.get\(|\[)|process\.env[.\[]|getenv\(|\$\{?)\s*['\"]?\w*(?:API_KEY|SECRET|TOKEN|PASSWORD|PRIVATE_KEY)\w*",
          "a secret is read from the environment", "document it in `compatibility`"),
    ScanRule("persistence", "error", "any",
          r"\bcrontab\s+-|/etc/cron|\.bashrc\b|\.zshrc\b|\.profile\b|LaunchAgents|systemctl\s+(?:--user\s+)?enable|"
          r"authorized_keys|\bschtasks\b|CurrentVersion\\+Run",
          "code is installed to run later", "remove it"),
    ScanRule("destructive", "error", "any",
          r"\brm\s+-[a-z]*(?:rf|fr)[a-z]*\s+(?:--no-preserve-root\s+)?(?:/|~|\$HOME)(?:\s|$|/\*)|\bmkfs\.|\bdd\s+if=\S+\s+of=/dev/|"
          r":\(\)\s*\{\s*:\|:&\s*\};:|shutil\.rmtree\(\s*['\"](?:/|~)",
          "a command that deletes files outside its own folder", "remove it"),
    ScanRule("privilege", "warning", "any", r"(?m:^\s*sudo\s)|\bchmod\s+(?:-R\s+)?(?:777|[ugo+]*s)\b|\bsetuid\(",
          "elevated privileges are requested", "remove it: scripts run without privileges"),
    ScanRule("disable-guard", "error", "text",
          r"dangerously-skip-permissions|--no-sandbox\b|bypass(?:ing)?\s+(?:the\s+)?(?:sandbox|confirmation|approval|security)|"
          r"auto[- ]?approve\s+all",
          "the text asks to disable a safeguard", "remove it"),
    ScanRule("embedded-secret", "error", "any",
          r"-----BEGIN (?:RSA |EC |OPENSSH |DSA )?PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}\b|"
          r"\bsk-[A-Za-z0-9_-]{32,}\b|\bxox[baprs]-[A-Za-z0-9-]{10,}",
          "the file contains a secret", "remove and revoke it"),
)  # fmt: skip


MAX_FILE_BYTES = 2 << 20
MAX_FILES = 20_000
MAX_TOTAL_BYTES = 100 << 20
MAX_HITS = 20
"""How many matches of a rule are reported per file."""

_SCRIPTS = (".py", ".sh", ".bash", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".php", ".ps1", ".bat")
_BINARY = (
    ".png", ".jpg", ".jpeg", ".gif", ".webp", ".ico", ".pdf", ".ttf", ".otf", ".woff", ".woff2", ".docx", ".xlsx",
    ".pptx", ".mp3", ".mp4", ".wav",
)  # fmt: skip
_ARCHIVES = (b"PK\x03\x04", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"7z\xbc\xaf\x27\x1c", b"Rar!")
_MAX_MEMBERS = 8
"""How many file names of an archive are listed in a finding."""

_ENCODED = r"[A-Za-z0-9+/]{200,}={0,2}|(?:\\x[0-9a-fA-F]{2}){40,}"
_COMMANDS = r"\b(?:ignore|execute|run|send|upload|curl|exfiltrate|password|secret|token)\b"
_TAGS = range(0xE0000, 0xE0080)
_BLACK_FLAG = "\U0001f3f4"
_MAX_FLAG_TAGS = 7
"""A flag emoji is a black flag followed by at most this many tag characters."""

_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_INVISIBLE = frozenset("\u200b\u2060\u2061\u2062\u2063\u2064\u180e\u00ad\u115f\u1160\u3164\uffa0\ufeff")
_JOINERS = frozenset("\u200c\u200d\u200e\u200f\u061c")
_SEVERITIES = {"error": 0, "warning": 1, "info": 2}


def scan(folder: Path) -> list[Diagnostic]:
    """Return the findings in a skill's folder. Reads up to 100 MiB; runs nothing."""
    return Scanner().scan_folder(folder)


class Scanner:
    """Scans any number of skills with rules that are compiled once."""

    def __init__(self) -> None:
        self._rules = [(rule, _compile(rule.pattern)) for rule in RULES]
        self._encoded = _compile(_ENCODED)
        self._commands = _compile(_COMMANDS)

    def scan_folder(self, folder: Path) -> list[Diagnostic]:
        """Return the findings in a skill's folder, file by file. Reads up to 100 MiB and 20,000 files."""
        findings: list[Diagnostic] = []
        total_bytes = 0
        for count, path in enumerate(_walk_files(folder, findings)):
            if count >= MAX_FILES or total_bytes > MAX_TOTAL_BYTES:
                message = "too many files or bytes; the rest was not scanned"
                findings.append(_make_finding("scan-incomplete", "warning", folder, message))
                break
            data = _read_file(path, findings)
            total_bytes += len(data)
            findings += self._scan_data(path, data)
        return findings

    def scan_text(self, text: str, path: str = "", *, is_script: bool = False) -> list[Diagnostic]:
        """Return the findings in one text, errors first, then by line. O(n)."""
        data = text.encode("utf-8", "replace")
        findings = [
            *_find_invisible(text, path),
            *self._find_encoded_texts(data, path),
            *self._find_hidden_comments(data, path),
        ]
        for rule, pattern in self._rules:
            if rule.where == "any" or (rule.where == "script") == is_script:
                findings += [
                    _make_match_finding(rule, line, match, path) for line, match in _find_matching_lines(pattern, data)
                ]
        return sorted(findings, key=lambda finding: (_SEVERITIES[finding.severity], finding.line or 0, finding.code))

    def _scan_data(self, path: Path, data: bytes) -> list[Diagnostic]:
        """Return the findings in a file by its kind: bytecode, archive, program, other binary file or text."""
        if path.suffix.lower() in (".pyc", ".pyo") or "__pycache__" in path.parts[:-1]:
            message = "bytecode, which an interpreter runs instead of the source"
            return [_make_finding("bytecode", "error", path, message, "remove it and every __pycache__")]
        if data.startswith(_ARCHIVES) and path.suffix.lower() not in _BINARY:
            return [
                _make_finding(
                    "archive", "warning", path, f"an archive, not unpacked: {_list_members(path)}", "ship the files"
                )
            ]
        if _is_executable(data):
            return [_make_finding("binary-program", "error", path, "a compiled program", "ship its source")]
        # UTF-16 text has NUL bytes, too, but it starts with a byte order mark.
        if b"\0" in data[:8192] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
            has_binary_suffix = path.suffix.lower() in _BINARY
            return [] if has_binary_suffix else [_make_finding("scan-binary", "info", path, "not scanned: not text")]
        is_script = path.suffix.lower() in _SCRIPTS or data.startswith(b"#!")
        return self.scan_text(decode(data, Notes()), str(path), is_script=is_script)

    def _find_encoded_texts(self, data: bytes, path: str) -> Iterator[Diagnostic]:
        """Yield a finding for each long encoded text: an error if a rule matches the decoded text, else a warning."""
        for line, match in _find_matching_lines(self._encoded, data):
            # Data URLs of images and fonts are always encoded.
            prefix = data[max(0, match.start() - 60) : match.start()]
            if re.search(rb"data:(?:image|font|audio|video)/[\w.+-]+;base64,$", prefix):
                continue
            decoded = _decode(match.group())
            is_harmful = any(rule.severity == "error" and pattern.search(decoded) for rule, pattern in self._rules)
            message = "an encoded text that contains something harmful" if is_harmful else "a long encoded text"
            severity: Severity = "error" if is_harmful else "warning"
            yield Diagnostic("encoded-payload", severity, message, line, "ship it unencoded", path)

    def _find_hidden_comments(self, data: bytes, path: str) -> Iterator[Diagnostic]:
        """Yield a finding for each HTML comment with instructions, because rendered Markdown does not show comments."""
        search_start = 0
        line = 1
        hit_count = 0
        while hit_count < MAX_HITS:
            comment_start = data.find(b"<!--", search_start)
            if comment_start < 0:
                return
            line += data.count(b"\n", search_start, comment_start)
            comment_end = data.find(b"-->", comment_start)
            if comment_end < 0:
                comment_end = len(data)
            if self._commands.search(data[comment_start:comment_end]):
                hit_count += 1
                message = "instructions in a hidden comment"
                yield Diagnostic("hidden-comment", "warning", message, line, "move it into the text or remove it", path)
            line += data.count(b"\n", comment_start, comment_end)
            search_start = comment_end


def _compile(pattern: str) -> Any:
    # RE2 instead of `re`: the scanned text is untrusted, and backtracking could take exponential time.
    re2: Any = import_module("re2")
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    return re2.compile(f"(?m){pattern}".encode(), options)


def _find_matching_lines(pattern: Any, data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (line number, match) for the first match in each line, up to `MAX_HITS` lines. O(n)."""
    line = 1
    counted_until = 0
    last_line = 0
    hit_count = 0
    for match in pattern.finditer(data):
        line += data.count(b"\n", counted_until, match.start())
        counted_until = match.start()
        if line == last_line:
            continue
        last_line = line
        hit_count += 1
        yield line, match
        if hit_count == MAX_HITS:
            return


def _make_match_finding(rule: ScanRule, line: int, match: Any, path: str) -> Diagnostic:
    excerpt = " ".join(match.group().decode("utf-8", "replace").split())[:80]
    return Diagnostic(rule.code, rule.severity, f"{rule.message}: {excerpt}", line, rule.fix, path)


def _walk_files(folder: Path, findings: list[Diagnostic]) -> Iterator[Path]:
    """Yield every regular file in the folder; add a finding for special files and for links out of the folder."""
    root = os.path.realpath(folder)
    for parent, subfolders, file_names in os.walk(root):
        subfolders.sort()
        links = [name for name in subfolders if os.path.islink(os.path.join(parent, name))]
        for name in sorted([*file_names, *links]):
            path = Path(parent, name)
            if path.is_symlink():
                if not os.path.realpath(path).startswith(root + os.sep):
                    findings.append(
                        _make_finding(
                            "link-out", "error", path, "a link out of the skill", "replace the link with the file"
                        )
                    )
            elif stat.S_ISREG(path.lstat().st_mode):
                yield path
            else:
                findings.append(_make_finding("special-file", "error", path, "not a regular file", "remove it"))


def _read_file(path: Path, findings: list[Diagnostic]) -> bytes:
    """Return the first 2 MiB of a file; add a finding if it is unreadable, longer, setuid or setgid."""
    try:
        with path.open("rb") as handle:
            mode = os.fstat(handle.fileno()).st_mode
            data = handle.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        findings.append(_make_finding("scan-unreadable", "warning", path, f"not scanned: {error.strerror}"))
        return b""
    if len(data) > MAX_FILE_BYTES:
        findings.append(_make_finding("scan-incomplete", "warning", path, "only the first 2 MB were scanned"))
    if mode & (stat.S_ISUID | stat.S_ISGID):
        findings.append(_make_finding("setuid", "error", path, "the file is setuid or setgid", "remove that bit"))
    return data[:MAX_FILE_BYTES]


def _list_members(path: Path) -> str:
    """Return the first file names of a zip archive, for a message; for other archives, why they are not listed."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
                return ", ".join(names[:_MAX_MEMBERS]) + (", …" if len(names) > _MAX_MEMBERS else "")
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return "its file names are unreadable"
    return "its file names are compressed"


def _is_executable(data: bytes) -> bool:
    return data.startswith(
        (b"\x7fELF", b"MZ\x90", b"\xfe\xed\xfa", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"\x00asm")
    )


def _find_invisible(text: str, path: str) -> Iterator[Diagnostic]:
    """Yield findings about characters that people cannot see but models read."""
    if text.isascii():
        return
    lines_by_kind: dict[str, tuple[int, int]] = {}  # first line, number of lines
    for number, line in enumerate(text.split("\n"), 1):
        if line.isascii():
            continue
        for kind in _find_invisible_kinds(line):
            first_line, count = lines_by_kind.get(kind, (number, 0))
            lines_by_kind[kind] = (first_line, count + 1)
    if "tags" in lines_by_kind:
        hidden_text = "".join(chr(ord(char) - 0xE0000) for char in text if 0xE0020 <= ord(char) <= 0xE007E)
        message = f"text in invisible tag characters: {hidden_text[:120]}"
        yield Diagnostic("hidden-text", "error", message, lines_by_kind["tags"][0], "remove it", path)
    if "bidi" in lines_by_kind:
        yield Diagnostic(
            "hidden-text", "error", "bidirectional control characters", lines_by_kind["bidi"][0], "remove them", path
        )
    if "invisible" in lines_by_kind:
        line, count = lines_by_kind["invisible"]
        yield Diagnostic("hidden-text", "warning", f"invisible characters on {count} lines", line, "remove them", path)


def _find_invisible_kinds(line: str) -> set[str]:
    """Return the kinds of invisible characters in a line: `tags`, `bidi`, `invisible`."""
    kinds: set[str] = set()
    for position, char in enumerate(line):
        if ord(char) in _TAGS:
            if not _is_in_flag_emoji(line, position):
                kinds.add("tags")
        elif char in _BIDI:
            kinds.add("bidi")
        elif char in _INVISIBLE or (unicodedata.category(char) == "Cf" and char not in _JOINERS):
            kinds.add("invisible")
    return kinds


def _is_in_flag_emoji(line: str, position: int) -> bool:
    """Whether the tag character at `position` belongs to a flag emoji, the only legitimate use of tag characters."""
    tags_start = position
    while tags_start > 0 and position - tags_start <= _MAX_FLAG_TAGS and ord(line[tags_start - 1]) in _TAGS:
        tags_start -= 1
    tag_count = position - tags_start + 1
    return tags_start > 0 and line[tags_start - 1] == _BLACK_FLAG and tag_count <= _MAX_FLAG_TAGS


def _decode(data: bytes) -> bytes:
    r"""Return the bytes of a text of `\x` escapes, hexadecimal digits or base64; empty if it is none of these."""
    try:
        if data.startswith(b"\\x"):
            return bytes.fromhex(data.replace(b"\\x", b"").decode())
        if re.fullmatch(rb"[0-9a-fA-F]+", data):
            return bytes.fromhex(data[: len(data) // 2 * 2].decode())
        return base64.b64decode(data + b"=" * (-len(data) % 4))
    except ValueError:
        return b""


def _make_finding(code: str, severity: Severity, path: Path, message: str, fix: str = "") -> Diagnostic:
    return Diagnostic(code, severity, message, None, fix, str(path))
