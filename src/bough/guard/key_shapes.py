"""Secrets that can be told by their shape, whoever issued them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from bough.guard.risk import Risk, RiskFinding
from bough.types import Json

_SHAPES: tuple[tuple[str, str], ...] = (
    ("an AWS access key", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("a GitHub token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{60,255})\b"),
    ("a GitLab token", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    ("an Anthropic key", r"\bsk-ant-[A-Za-z0-9_-]{20,}"),
    ("an OpenAI-style key", r"\bsk-(?:proj-|svcacct-)?[A-Za-z0-9_-]{20,}"),
    ("a Google key", r"\bAIza[0-9A-Za-z_-]{35}"),
    ("a Slack token", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("a Stripe key", r"\b[rs]k_live_[A-Za-z0-9]{20,}"),
    ("a Hugging Face token", r"\bhf_[A-Za-z0-9]{30,}"),
    ("an npm token", r"\bnpm_[A-Za-z0-9]{36}\b"),
    ("a PyPI token", r"\bpypi-[A-Za-z0-9_-]{50,}"),
    ("a SendGrid key", r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("a private key", r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"),
    ("a signed token (JWT)", r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    ("a bearer token", r"(?i:\bauthorization: *(?:bearer|basic|token) +)[A-Za-z0-9._~+/=-]{16,}"),
    ("a password in a URL", r"\b[a-z][a-z0-9+.-]*://[^\s/:@]{1,64}:[^\s/@$]{3,128}@"),
)


def secret_findings(value: Json) -> Iterator[RiskFinding]:
    """Yield one HIGH finding for each kind of secret in a JSON value, naming the kind and never the text."""
    text = "\n".join(_strings(value))
    for name, shape in _SHAPES:
        if re.search(shape, text):
            yield RiskFinding(Risk.HIGH, f"the arguments hold {name}")


def _strings(value: Json) -> Iterator[str]:
    """Every text in a JSON value, keys too; not recursive, whatever the depth."""
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            mapping = cast(dict[str, Any], item)
            stack += [*map(str, mapping.keys()), *mapping.values()]
        elif isinstance(item, (list, tuple)):
            stack += cast(list[Any], item)
