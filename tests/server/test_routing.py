"""The index of routes: it finds what a search through all routes finds, and stays small whatever is asked for."""

from __future__ import annotations

import random
from typing import Any

import pytest
from starlette.routing import Match, WebSocketRoute

from bough.agents.spec import AgentSpec
from bough.server.app import create_app
from bough.server.requests.routing import RouteIndex
from bough.server.settings import ServerSettings
from bough.settings import Settings

METHODS = ("GET", "POST", "PATCH", "PUT", "DELETE", "OPTIONS", "BREW")


@pytest.fixture
def routes(settings: Settings) -> list[Any]:
    agents = [AgentSpec(name="default", model="offline", skills=())]
    return list(create_app(settings, server=ServerSettings(), agents=agents).router.routes)


def test_the_index_finds_the_route_that_a_search_finds(routes: list[Any]) -> None:
    index, others = routes[0], [route for route in routes[1:] if not isinstance(route, WebSocketRoute)]
    assert isinstance(index, RouteIndex)
    segments = sorted({segment for route in others for segment in route.path.split("/") if "{" not in segment})
    choose = random.Random(1)
    indexed = 0
    for _ in range(20_000):
        path = choose.choice(others).path.split("/")
        filled = [choose.choice([*segments, "0" * 32, "%2e"]) if "{" in segment else segment for segment in path]
        if choose.random() < 0.2:
            filled[choose.randrange(len(filled))] = choose.choice(segments)
        scope = {"type": "http", "path": "/".join(filled), "method": choose.choice(METHODS), "root_path": ""}
        first = next((route for route in others if route.matches(scope)[0] is Match.FULL), None)
        match, child = index.matches(scope)
        if match is Match.FULL:
            indexed += 1
            assert child["route"] is first, scope
            assert child["path_params"] == first.matches(scope)[1]["path_params"]
    assert indexed > 1_000


def test_addresses_of_strangers_do_not_fill_the_index(routes: list[Any]) -> None:
    index = RouteIndex([route for route in routes[1:] if not isinstance(route, WebSocketRoute)])
    segments = sorted({segment for route in routes[1:] for segment in route.path.split("/") if "{" not in segment})
    choose = random.Random(2)
    for number in range(5_000):
        path = "/".join(["", *choose.choices(segments, k=5)])
        index.matches({"type": "http", "path": path, "method": f"M{number}", "root_path": ""})
    assert index.size <= 2_000
