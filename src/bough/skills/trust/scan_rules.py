"""What a skill that means harm does, as patterns: in its instructions, in its scripts, in either.

The patterns are RE2's, so that a file made to be slow to scan is not; upper and lower case are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bough.skills.model import Severity


@dataclass(frozen=True, slots=True)
class ScanRule:
    """What is looked for.

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
          "the text tells the model to pass over its instructions", "remove the sentence"),
    ScanRule("override-instructions", "error", "text",
          r"\b(?:do not|don't|never|without)\b.{0,30}\b(?:tell(?:ing)?|inform(?:ing)?|mention(?:ing)?|ask(?:ing)?|"
          r"reveal(?:ing)?|show(?:ing)?|alert(?:ing)?)\b.{0,20}\b(?:the )?users?\b",
          "the text tells the model to hide something from the user", "remove the sentence"),
    ScanRule("override-instructions", "warning", "text",
          r"\b(?:you are now|from now on you are|enter|enable)\b.{0,30}\b(?:developer mode|dan mode|jailbreak|"
          r"root mode|unrestricted|god mode)\b",
          "the text puts the model into another role without bounds", "remove the sentence"),
    ScanRule("fake-role", "error", "text", r"<\|(?:im_start|im_end|system|endoftext)\|>|\[/?INST\]|<</?SYS>>",
          "the text holds the marks of a chat template", "remove them"),
    ScanRule("hidden-style", "warning", "text",
         r"display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0|opacity\s*:\s*0\b",
          "text is hidden by a style", "remove it"),
    ScanRule("download-and-run", "error", "any",
          r"\b(?:curl|wget|iwr|invoke-webrequest)\b[^\n|;]{0,300}\|\s*(?:sudo\s+)?(?:env\s+)?(?:ba|z|da)?sh\b|"
          r"\b(?:ba|z)?sh\s+(?:-c\s+)?[\"']?(?:<\(|\$\()\s*(?:curl|wget)|"
          r"\b(?:curl|wget)\b[^\n|;]{0,300}\|\s*(?:sudo\s+)?(?:python|perl|ruby|node)",
          "something is fetched and run unseen", "fetch a fixed version, check its digest, then run it"),
    ScanRule("encoded-run", "error", "any",
          r"base64\s+(?:-d|--decode|-D)\b[^\n]{0,200}\|\s*(?:ba|z)?sh\b|"
          r"\b(?:exec|eval)\s*\(\s*(?:__import__\(|base64|codecs|zlib|bytes\.fromhex|compile\(|atob|Buffer\.from)",
          "an encoded text is decoded and run", "ship it in the clear"),
    ScanRule("dynamic-code", "warning", "script",
         r"(?:^|[^.\w])(?:exec|eval)\s*\(|new\s+Function\s*\(",
          "code is made from text while it runs", "write the code out"),
    ScanRule("network", "warning", "script",
          r"\b(?:requests|httpx|aiohttp|urllib3)\s*\.\s*(?:get|post|put|patch|delete|request|stream|Session|Client)\b|"
          r"\burllib\.request\b|\bhttp\.client\b|\bsocket\.(?:socket|create_connection)\b|\bsmtplib\b|\bftplib\b|\bparamiko\b|"
          r"\bfetch\s*\(\s*['\"`]https?:|\bXMLHttpRequest\b|\baxios\b|\brequire\(\s*['\"](?:https?|net|dgram)['\"]|"
          r"(?m:^\s*(?:sudo\s+)?(?:curl|wget|nc|ncat|scp|rsync|ssh)\s)|/dev/tcp/",
          "the script reaches the network", "say so in `compatibility`; it runs without network unless allowed"),
    ScanRule("exfiltration", "error", "any",
          r"\b(?:webhook\.site|requestbin|pipedream\.net|ngrok(?:-free)?\.(?:io|app)|burpcollaborator|interact\.sh|"
          r"oastify\.com|transfer\.sh|file\.io|discord(?:app)?\.com/api/webhooks|api\.telegram\.org/bot)",
          "data goes to a catch-all address", "remove it"),
    ScanRule("credentials", "error", "any",
          r"(?:~|\$HOME|/root|/home/\w+|expanduser\([^)]{0,10})[/\"'\w.]{0,10}\.(?:ssh|aws|gnupg|kube|docker|netrc|npmrc|pypirc)\b|"
          r"/etc/shadow\b|\bid_(?:rsa|ed25519|ecdsa)\b|\.aws/credentials|\.config/gcloud|"
          r"\bsecurity\s+find-generic-password\b|Login Data|\.git-credentials",
          "a place where credentials are kept is named", "a skill has no business there"),
    ScanRule("environment", "warning", "script",
          r"os\.environ\s*(?:[^\s.\[]|\.(?:items|copy|values|keys)\(|$)|\bdict\(\s*os\.environ|(?m:^\s*(?:printenv|env)\s*(?:\||>|$))|"
          r"JSON\.stringify\(\s*process\.env\s*\)",
          "the whole environment is read", "read the one variable that is needed"),
    ScanRule("secret-variable", "warning", "script",
          r"(?:environ(?:\.get\(|\[)|process\.env[.\[]|getenv\(|\$\{?)\s*['\"]?\w*(?:API_KEY|SECRET|TOKEN|PASSWORD|PRIVATE_KEY)\w*",
          "a secret is read from the environment", "say so in `compatibility`"),
    ScanRule("persistence", "error", "any",
          r"\bcrontab\s+-|/etc/cron|\.bashrc\b|\.zshrc\b|\.profile\b|LaunchAgents|systemctl\s+(?:--user\s+)?enable|"
          r"authorized_keys|\bschtasks\b|CurrentVersion\\+Run",
          "something is set up to run later", "remove it"),
    ScanRule("destructive", "error", "any",
          r"\brm\s+-[a-z]*(?:rf|fr)[a-z]*\s+(?:--no-preserve-root\s+)?(?:/|~|\$HOME)(?:\s|$|/\*)|\bmkfs\.|\bdd\s+if=\S+\s+of=/dev/|"
          r":\(\)\s*\{\s*:\|:&\s*\};:|shutil\.rmtree\(\s*['\"](?:/|~)",
          "a command that destroys more than its own files", "remove it"),
    ScanRule("privilege", "warning", "any", r"(?m:^\s*sudo\s)|\bchmod\s+(?:-R\s+)?(?:777|[ugo+]*s)\b|\bsetuid\(",
          "more rights are asked for", "scripts run without them"),
    ScanRule("disable-guard", "error", "text",
          r"dangerously-skip-permissions|--no-sandbox\b|bypass(?:ing)?\s+(?:the\s+)?(?:sandbox|confirmation|approval|security)|"
          r"auto[- ]?approve\s+all",
          "the text asks for a guard to be put off", "remove it"),
    ScanRule("embedded-secret", "error", "any",
          r"-----BEGIN (?:RSA |EC |OPENSSH |DSA )?PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}\b|"
          r"\bsk-[A-Za-z0-9_-]{32,}\b|\bxox[baprs]-[A-Za-z0-9-]{10,}",
          "a secret lies in the file", "take it out and make it void"),
)  # fmt: skip
