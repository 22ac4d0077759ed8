"""The Jinja2 environment of all HTML: everything is escaped, and an unknown name is an error."""

from __future__ import annotations

from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined

from bough.html.filters import FILTERS, finalize


def make_environment(*loaders: BaseLoader) -> Environment:
    """Return an environment with the macros of this package below `html/`, and the templates of `loaders`."""
    macros = PrefixLoader({"html": PackageLoader("bough.html", "macros")})
    environment = Environment(
        loader=ChoiceLoader([macros, *loaders]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    environment.filters.update(FILTERS)
    return environment
