"""One Chromium for all tests of the page, a new profile a test, and real servers.

Playwright's synchronous interface keeps an event loop in its thread. Tests with the fixtures `page` or `new_page` run
in that thread, so that the other tests of the process can start loops of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from .screens import Stories, tell_stories
from .site import Site, open_site

_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
_WAIT_MILLISECONDS = 20_000
_BROWSER_FIXTURES = frozenset({"browser_thread", "new_page", "page"})
NewPage = Callable[..., Page]


class BrowserThread:
    """The thread in which the browser is driven."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="browser")
        self.browser: Browser = self.do(self._launch)

    def do(self, call: Callable[..., Any], **arguments: Any) -> Any:
        """Call a function in the thread, and return its result."""
        return self._executor.submit(call, **arguments).result()

    def close(self) -> None:
        """End the browser and the thread."""
        self.do(self._stop)
        self._executor.shutdown()

    def _launch(self) -> Browser:
        self._playwright = sync_playwright().start()
        return self._playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(_FLAGS))

    def _stop(self) -> None:
        self.browser.close()
        self._playwright.stop()


@pytest.fixture(scope="session")
def browser_thread() -> Iterator[BrowserThread]:
    thread = BrowserThread()
    yield thread
    thread.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the tests that drive the browser in its thread."""
    if not _BROWSER_FIXTURES & set(pyfuncitem.fixturenames):
        return None
    thread: Any = pyfuncitem.funcargs["browser_thread"]
    names = pyfuncitem._fixtureinfo.argnames  # pyright: ignore[reportPrivateUsage]
    thread.do(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names})
    return True


@pytest.fixture
def new_page(browser_thread: BrowserThread) -> Iterator[NewPage]:
    """Return what opens a page with a profile of its own; options are those of a browser context.

    After the test, no page of it may have complained: about a refused script or style, or about an error.
    """
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def new_page(*, quiet: bool = True, **options: Any) -> Page:
        settings: Any = {"viewport": {"width": 1280, "height": 800}, **options}
        context = browser_thread.browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(_WAIT_MILLISECONDS)
        if quiet:
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        return page

    yield new_page
    for context in contexts:
        browser_thread.do(context.close)
    assert complaints == []


@pytest.fixture
def page(new_page: NewPage, browser_thread: BrowserThread) -> Page:
    """A page with a profile of its own, 1280 pixels wide."""
    return browser_thread.do(new_page)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server without keys, for the tests of one module."""
    with open_site(tmp_path_factory.mktemp("site"), keep_files=True) as site:
        yield site


@pytest.fixture(scope="session")
def empty_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server without keys, on which nobody starts a conversation."""
    with open_site(tmp_path_factory.mktemp("empty")) as site:
        yield site


@pytest.fixture(scope="module")
def stories(site: Site, empty_site: Site) -> Iterator[Stories]:
    """The conversations of the site that the general tests look at."""
    stories = tell_stories(site, empty_site)
    yield stories
    assert site.client.post(f"/api/conversations/{stories['running']}/interrupt").status_code == 200


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
