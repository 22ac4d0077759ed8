"""Patterns of malicious skills: in instructions, in scripts, or in both.

The patterns are RE2 expressions, so that no file can make the scan slow; case is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bough.skills.model import Severity


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
