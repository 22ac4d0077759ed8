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
        where: `text`: instructions and other text, `script`: programs, `any`: both.
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
"""How many matches of one rule are reported in one file."""

_SCRIPTS = (".py", ".sh", ".bash", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".php", ".ps1", ".bat")
_BINARY = (
    ".png", ".jpg", ".jpeg", ".gif", ".webp", ".ico", ".pdf", ".ttf", ".otf", ".woff", ".woff2", ".docx", ".xlsx",
    ".pptx", ".mp3", ".mp4", ".wav",
)  # fmt: skip
_ARCHIVES = (b"PK\x03\x04", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"7z\xbc\xaf\x27\x1c", b"Rar!")
_MAX_MEMBERS = 8
"""How many names of an archive are reported."""

_ENCODED = r"[A-Za-z0-9+/]{200,}={0,2}|(?:\\x[0-9a-fA-F]{2}){40,}"
_COMMANDS = r"\b(?:ignore|execute|run|send|upload|curl|exfiltrate|password|secret|token)\b"
_TAGS = range(0xE0000, 0xE0080)
_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_INVISIBLE = frozenset("\u200b\u2060\u2061\u2062\u2063\u2064\u180e\u00ad\u115f\u1160\u3164\uffa0\ufeff")
_JOINERS = frozenset("\u200c\u200d\u200e\u200f\u061c")
_SEVERITIES = {"error": 0, "warning": 1, "info": 2}


def scan(folder: Path) -> list[Diagnostic]:
    """Return the findings in a skill's folder. O(bytes), bounded; runs nothing."""
    return Scanner().scan_folder(folder)


class Scanner:
    """Scans any number of skills with rules that are compiled once."""

    def __init__(self) -> None:
        self._rules = [(rule, _compile(rule.pattern)) for rule in RULES]
        self._encoded = _compile(_ENCODED)
        self._commands = _compile(_COMMANDS)

    def scan_folder(self, folder: Path) -> list[Diagnostic]:
        """Return the findings in a skill's folder, file by file. O(bytes), bounded."""
        findings: list[Diagnostic] = []
        total = 0
        for count, path in enumerate(_walk_files(folder, findings)):
            if count >= MAX_FILES or total > MAX_TOTAL_BYTES:
                message = "too many files or bytes; the rest was not scanned"
                findings.append(_make_finding("scan-incomplete", "warning", folder, message))
                break
            data = _read(path, findings)
            total += len(data)
            findings += self._scan_data(path, data)
        return findings

    def scan_text(self, text: str, path: str = "", *, is_script: bool = False) -> list[Diagnostic]:
        """Return the findings in one text, errors first, then by line. O(n)."""
        data = text.encode("utf-8", "replace")
        findings = [*_find_hidden(text, path), *self._find_payloads(data, path), *self._find_comments(data, path)]
        for rule, pattern in self._rules:
            if rule.where == "any" or (rule.where == "script") == is_script:
                findings += [_report_match(rule, line, match, path) for line, match in _find_hits(pattern, data)]
        return sorted(findings, key=lambda finding: (_SEVERITIES[finding.severity], finding.line or 0, finding.code))

    def _scan_data(self, path: Path, data: bytes) -> list[Diagnostic]:
        if path.suffix.lower() in (".pyc", ".pyo") or "__pycache__" in path.parts[:-1]:
            message = "bytecode, which an interpreter runs instead of the source"
            return [_make_finding("bytecode", "error", path, message, "remove it and every __pycache__")]
        if data.startswith(_ARCHIVES) and path.suffix.lower() not in _BINARY:
            return [
                _make_finding(
                    "archive", "warning", path, f"an archive, not unpacked: {_list_members(path)}", "ship the files"
                )
            ]
        if _is_program(data):
            return [_make_finding("binary-program", "error", path, "a compiled program", "ship its source")]
        # UTF-16 text has NUL bytes, too, but it starts with a byte order mark.
        if b"\0" in data[:8192] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
            has_binary_suffix = path.suffix.lower() in _BINARY
            return [] if has_binary_suffix else [_make_finding("scan-binary", "info", path, "not scanned: not text")]
        is_script = path.suffix.lower() in _SCRIPTS or data.startswith(b"#!")
        return self.scan_text(decode(data, Notes()), str(path), is_script=is_script)

    def _find_payloads(self, data: bytes, path: str) -> Iterator[Diagnostic]:
        """Yield long encoded texts; an error if they decode to something harmful."""
        for line, match in _find_hits(self._encoded, data):
            # Images and fonts in data URLs are encoded in any case.
            prefix = data[max(0, match.start() - 60) : match.start()]
            if re.search(rb"data:(?:image|font|audio|video)/[\w.+-]+;base64,$", prefix):
                continue
            inner = _decode(match.group())
            bad = any(rule.severity == "error" and pattern.search(inner) for rule, pattern in self._rules)
            description = "an encoded text that contains something harmful" if bad else "a long encoded text"
            severity: Severity = "error" if bad else "warning"
            yield Diagnostic("encoded-payload", severity, description, line, "ship it unencoded", path)

    def _find_comments(self, data: bytes, path: str) -> Iterator[Diagnostic]:
        """Yield instructions in comments, which are invisible in the rendered text."""
        start, line, comment_count = 0, 1, 0
        while comment_count < MAX_HITS and (at := data.find(b"<!--", start)) >= 0:
            line += data.count(b"\n", start, at)
            end = data.find(b"-->", at)
            end = len(data) if end < 0 else end
            if self._commands.search(data[at:end]):
                comment_count += 1
                message = "instructions in a hidden comment"
                yield Diagnostic("hidden-comment", "warning", message, line, "move it into the text or remove it", path)
            line += data.count(b"\n", at, end)
            start = end


def _compile(pattern: str) -> Any:
    # RE2 instead of `re`: the scanned text is untrusted, and backtracking could take exponential time.
    re2: Any = import_module("re2")
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    return re2.compile(f"(?m){pattern}".encode(), options)


def _find_hits(pattern: Any, data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (line, match) of the first match in each line, at most `MAX_HITS`. O(n)."""
    line, counted, last, hit_count = 1, 0, 0, 0
    for match in pattern.finditer(data):
        line += data.count(b"\n", counted, match.start())
        counted = match.start()
        if line == last:
            continue
        last = line
        hit_count += 1
        yield line, match
        if hit_count == MAX_HITS:
            return


def _report_match(rule: ScanRule, line: int, match: Any, path: str) -> Diagnostic:
    excerpt = " ".join(match.group().decode("utf-8", "replace").split())[:80]
    return Diagnostic(rule.code, rule.severity, f"{rule.message}: {excerpt}", line, rule.fix, path)


def _walk_files(folder: Path, findings: list[Diagnostic]) -> Iterator[Path]:
    """Yield every regular file in the folder; anything else is a finding."""
    root = os.path.realpath(folder)
    for place, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(
            [*names, *(subfolder for subfolder in folders if os.path.islink(os.path.join(place, subfolder)))]
        ):
            path = Path(place, name)
            if path.is_symlink():
                if not os.path.realpath(path).startswith(root + os.sep):
                    findings.append(
                        _make_finding(
                            "link-out", "error", path, "a link out of the skill", "replace the link by the file"
                        )
                    )
            elif stat.S_ISREG(path.lstat().st_mode):
                yield path
            else:
                findings.append(_make_finding("special-file", "error", path, "not a regular file", "remove it"))


def _read(path: Path, findings: list[Diagnostic]) -> bytes:
    try:
        with path.open("rb") as handle:
            mode, data = os.fstat(handle.fileno()).st_mode, handle.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        findings.append(_make_finding("scan-unreadable", "warning", path, f"not scanned: {error.strerror}"))
        return b""
    if len(data) > MAX_FILE_BYTES:
        findings.append(_make_finding("scan-incomplete", "warning", path, "only the first 2 MB were scanned"))
    if mode & (stat.S_ISUID | stat.S_ISGID):
        findings.append(_make_finding("setuid", "error", path, "the file is setuid or setgid", "remove that bit"))
    return data[:MAX_FILE_BYTES]


def _list_members(path: Path) -> str:
    """Return the first file names in an archive for a message, if they can be listed without unpacking it."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
                return ", ".join(names[:_MAX_MEMBERS]) + (", …" if len(names) > _MAX_MEMBERS else "")
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return "its file names are unreadable"
    return "its file names are compressed"


def _is_program(data: bytes) -> bool:
    return data.startswith(
        (b"\x7fELF", b"MZ\x90", b"\xfe\xed\xfa", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"\x00asm")
    )


def _find_hidden(text: str, path: str) -> Iterator[Diagnostic]:
    """Yield characters that are invisible to readers but not to models."""
    if text.isascii():
        return
    kinds: dict[str, tuple[int, int]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        for kind in () if line.isascii() else _find_hidden_kinds(line):
            first, count = kinds.get(kind, (number, 0))
            kinds[kind] = (first, count + 1)
    if "tags" in kinds:
        hidden = "".join(chr(ord(char) - 0xE0000) for char in text if 0xE0020 <= ord(char) <= 0xE007E)
        yield Diagnostic("hidden-text", "error", f"text in invisible tag characters: {hidden[:120]}", kinds["tags"][0],
                         "remove it", path)  # fmt: skip
    if "bidi" in kinds:
        yield Diagnostic(
            "hidden-text", "error", "bidirectional control characters", kinds["bidi"][0], "remove them", path
        )
    if "invisible" in kinds:
        line, count = kinds["invisible"]
        yield Diagnostic("hidden-text", "warning", f"invisible characters on {count} lines", line, "remove them", path)


def _find_hidden_kinds(line: str) -> set[str]:
    kinds: set[str] = set()
    for i, char in enumerate(line):
        if ord(char) in _TAGS:
            if not _in_flag(line, i):
                kinds.add("tags")
        elif char in _BIDI:
            kinds.add("bidi")
        elif char in _INVISIBLE or (unicodedata.category(char) == "Cf" and char not in _JOINERS):
            kinds.add("invisible")
    return kinds


def _in_flag(line: str, i: int) -> bool:
    """Whether the tag characters belong to a flag emoji, their only legitimate use."""
    start = i
    while start > 0 and i - start < 8 and ord(line[start - 1]) in _TAGS:
        start -= 1
    return start > 0 and line[start - 1] == "\U0001f3f4" and i - start < 7


def _decode(data: bytes) -> bytes:
    """Return the decoded bytes of an encoded text; empty if it cannot be decoded."""
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
