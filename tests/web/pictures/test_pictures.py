"""Pictures of every screen, wide and narrow, light and dark; `make pictures` writes the files."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page
from tests.web.conftest import NewPage
from tests.web.pictures.story import follow_story, tell_story
from tests.web.screens import Stories
from tests.web.site import Site, open_site

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium")]
FOLDER = os.environ.get("PICTURES", "")
"""Where the pictures are written; empty: nowhere."""
MAX_BYTES = 100_000
SIZES = {"1280": (1280, 800), "390": (390, 844)}
SCREENS: Mapping[str, Callable[[Stories], str]] = {
    "conversations": lambda story: "/",
    "no-match": lambda story: "/?text=nothing-has-this",
    "new": lambda story: "/new",
    "timeline": lambda story: f"/c/{story['done']}?turn=2",
    "timeline-failed": lambda story: f"/c/{story['failed']}",
    "fork": lambda story: f"/c/{story['done']}/fork?at={story['message']}&edit=1",
    "files": lambda story: f"/c/{story['fork']}/files?from={story['message']}",
    "restore": lambda story: f"/c/{story['fork']}/restore?from={story['message']}",
    "limits": lambda story: f"/c/{story['done']}/limits",
    "tree": lambda story: f"/c/{story['fork']}/tree",
    "compare": lambda story: f"/c/{story['done']}/compare/{story['fork']}",
    "approvals": lambda story: "/approvals",
    "review": lambda story: f"/approvals/{story['waiting']}/{story['call']}",
    "sign-in": lambda story: "/enter/nothing",
    "not-found": lambda story: "/nothing/is/here",
}
# The fonts that CI installs, so that a picture does not depend on the machine.
_FONTS = "html body{font-family:Inter}:root{--mono:.8125rem/1.25rem 'JetBrains Mono'}"
# Moments and folders differ from run to run; in a picture they would only be noise.
_FREEZE = """() => {
    document.querySelectorAll(".side dt").forEach((name) => {
        if (name.textContent === "Workspace") name.nextElementSibling.textContent = "~/shop";
    });
    document.querySelectorAll("time").forEach((time) => {
        time.textContent = time.textContent.includes("ago") || time.matches(".ask time") ? "2 min ago" : "17:55:02";
    });
}"""


@pytest.fixture(scope="module")
def story_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(tmp_path_factory.mktemp("pictures"), answer=follow_story, keep_files=True) as site:
        yield site


@pytest.fixture(scope="module")
def story(story_site: Site) -> Stories:
    return tell_story(story_site)


def draw(page: Page, path: Path) -> int:
    """Write what the screen shows as WebP, and return its size."""
    session: Any = page.context.new_cdp_session(page)
    data = session.send("Page.captureScreenshot", {"format": "webp", "quality": 90})["data"]
    picture = base64.b64decode(data)
    path.write_bytes(picture)
    return len(picture)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
def test_pictures_of_every_screen(
    new_page: NewPage, story_site: Site, story: Stories, tmp_path: Path, width: str, scheme: str
) -> None:
    folder = Path(FOLDER or tmp_path) / "web"
    folder.mkdir(parents=True, exist_ok=True)
    viewport = dict(zip(("width", "height"), SIZES[width], strict=True))
    page = new_page(
        quiet=False, viewport=viewport, color_scheme=scheme, reduced_motion="reduce", locale="en-GB", bypass_csp=True
    )
    for name, address in SCREENS.items():
        page.goto(story_site.url + address(story))
        page.add_style_tag(content=_FONTS)
        page.evaluate(_FREEZE)
        page.evaluate("document.fonts.ready")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than the screen"
        assert draw(page, folder / f"{name}-{width}-{scheme}.webp") <= MAX_BYTES, name
