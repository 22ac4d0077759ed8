"""The page at `/` for browsers, with links to the API and its documentation. No script, no data of a tenant."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

import bough

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2a22; --quiet: #5b6a61; --line: #dbe3dd; --paper: #fbfcfa; --card: #fff;
  --leaf: #2b6e45; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ede8; --quiet: #9aaaa0; --line: #2c3831; --paper: #121814;
  --card: #19211c; --leaf: #7fcf9c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 44rem; margin: 0 auto; padding: clamp(2rem, 8vh, 5rem) 1.25rem; }
h1 { margin: 0; font-size: 2.25rem; letter-spacing: -0.02em; }
h1 small { margin-left: .5rem; font-size: 1rem; font-weight: 400; letter-spacing: 0; color: var(--quiet); }
h2 { margin: 2.5rem 0 .75rem; font-size: 1rem; }
p { margin: .5rem 0; color: var(--quiet); }
ul { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: .75rem; margin: 2rem 0 0;
  padding: 0; list-style: none; }
li a { display: block; height: 100%; padding: .9rem 1.1rem; border: 1px solid var(--line); border-radius: .6rem;
  background: var(--card); color: inherit; text-decoration: none; }
li a:hover, li a:focus-visible { border-color: var(--leaf); }
li b { display: block; color: var(--leaf); }
li span { color: var(--quiet); font-size: .9rem; }
pre { margin: 0; padding: .9rem 1.1rem; overflow-x: auto; border: 1px solid var(--line); border-radius: .6rem;
  background: var(--card); }
code { font: .9rem/1.5 ui-monospace, monospace; }
"""
_LINKS = (
    ("/docs", "Routes", "the parameters and responses of each route"),
    ("/openapi.json", "OpenAPI", "the same, for programs"),
    ("/ready", "Readiness", "whether the server accepts requests now"),
    ("/server_info", "Server info", "versions, as JSON"),
)
_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept",
}


def wants_html(request: Request) -> bool:
    """Whether a request names HTML in `Accept`, as browsers do. Programs that accept any type get JSON."""
    return "text/html" in request.headers.get("accept", "").lower()


def make_home() -> Response:
    """Return the page at `/`."""
    links = "".join(
        f'<li><a href="{url}"><b>{escape(name)}</b><span>{escape(about)}</span></a></li>' for url, name, about in _LINKS
    )
    create_key = "bough keys create my-key"
    use_key = 'curl -H "X-Session-API-Key: $KEY" "$SERVER/api/conversations/search"'
    body = (
        f"<main><h1>bough<small>{escape(bough.__version__)}</small></h1>"
        "<p>Agents over HTTP: conversations that fork, tasks, skills; by REST, MCP and A2A.</p>"
        f"<ul>{links}</ul>"
        "<h2>Make a key</h2><p>On the server&#39;s machine; the key is printed once.</p>"
        f"<pre><code>{escape(create_key)}</code></pre>"
        f"<h2>Use it</h2><pre><code>{escape(use_key, quote=False)}</code></pre></main>"
    )
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>bough</title><style>{_STYLE}</style>"
    )
    page = f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'
    return HTMLResponse(page, headers=_HEADERS)
