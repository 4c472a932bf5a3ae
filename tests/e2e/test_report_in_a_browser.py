"""The report's page in a real browser: no console error, no network, every figure visible, readable on a phone."""

import shutil

import pytest

from fscil.report import write_report
from grids import ABLATION, SWEEPS, write_grid

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]

pytestmark = pytest.mark.skipif(not BROWSER, reason="no chromium here: install it to have the pages looked at")

# The smallest text of all figures, in pixels of the screen.
TEXT_SIZES = """() => Math.min(...[...document.querySelectorAll("figure text")].map(
    text => parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getScreenCTM().a))"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        yield found
        found.close()


@pytest.mark.parametrize(
    ("kind", "labels", "expected"),
    [
        ("bench", ("alice", "cec"), ["sessions-5", "base-novel-5", "confusion-5", "features-1", "features-2"]),
        (
            "ablation",
            ABLATION[::2],
            ["sessions-5", "ablation-5", "confusion-5", "features-1", "features-2", "features-3"],
        ),
        ("margin-scale", SWEEPS, ["margin-scale-5"]),
    ],
)
def test_the_page_is_whole(browser, tmp_path, kind, labels, expected):
    write_grid(tmp_path, kind, labels, shots=(5,), draws=(0,))
    write_report(tmp_path)
    page = browser.new_page(viewport={"width": 390, "height": 844})
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    address = (tmp_path / "report.html").as_uri()
    page.goto(address)
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [address]
    assert page.eval_on_selector_all("figure", "all => all.map(one => one.id)") == expected
    for name in expected:
        box = page.locator(f"#{name} svg").bounding_box()
        assert 250 < box["width"] <= 390  # fits a phone without scrolling
        assert box["height"] > 100
        assert page.locator(f"#{name} svg").locator("path, text").count() > 20
    assert page.locator("table").count() == (5 if kind == "bench" else 4)  # and later systems' published numbers
    for width in (390, 1200):  # nothing sticks out to the side; wide tables scroll in their own frame
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        smallest = page.evaluate(TEXT_SIZES)
        assert smallest > 9, "pixels: text of a figure is too small to be read"
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 1047})  # A4 less its margins: paper does not scroll
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate(TEXT_SIZES) > 6
    for name in expected:
        box = page.locator(f"#{name} svg").bounding_box()
        assert box["x"] + box["width"] <= 718
        assert box["height"] < 1047 - 100  # with its title on one page
    page.close()
