"""A real browser that visits the page of a real service."""

import shutil
from contextlib import contextmanager

import pytest

from serving import photo

playwright = pytest.importorskip("playwright.sync_api", reason="the page is tested with Playwright's Python package")
expect = playwright.expect

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for path in map(shutil.which, NAMES) if path), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"no browser on this machine: looked for {', '.join(NAMES)}")

QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
CAMERA = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
WAIT = 20_000  # milliseconds, on a busy machine


@contextmanager
def visit(browser, url, errors=(), start=None, **options):
    """The page in a new context. All requests go to `start`, by default `url`; the console has only these statuses."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(WAIT)
    logged, requested = [], []
    page.on("console", lambda message: logged.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: logged.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    page.on("filechooser", lambda chooser: None)  # from the start: added later, it may miss the first one
    page.goto(str(url))
    yield page
    context.close()
    unexpected = [text for text in logged if not any(f"status of {status} " in text for status in errors)]
    assert unexpected == [], unexpected
    assert [address for address in requested if not address.startswith((str(start or url), "blob:"))] == []
    assert len(requested) > 3


def files(*pictures):
    return [
        {"name": f"{label}-{seed}.png", "mimeType": "image/png", "buffer": photo(label, seed)}
        for label, seed in pictures
    ]


def choose(page, *pictures):
    page.set_input_files("#files", files(*pictures))


def learn(page, name, *pictures):
    choose(page, *pictures)
    page.fill("#name", name)
    page.click("#learn-button")
    expect(page.locator("#notice")).to_contain_text(f"Learned “{name}”")


def headline(page):
    return page.locator("#prediction .headline")
