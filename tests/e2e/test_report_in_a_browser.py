"""The report's page in a real browser: no console error, no network, every figure visible, readable on a phone."""

import shutil

import pytest

from fscil.report import write_report
from grids import ABLATION, write_grid

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]

pytestmark = pytest.mark.skipif(not BROWSER, reason="no chromium here: install it to have the pages looked at")


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
        ("bench", ("alice", "cec", "finetune"), ["sessions-5", "base-novel-5", "confusion-5", "features"]),
        ("ablation", ABLATION, ["sessions-5", "ablation-5", "confusion-5", "features"]),
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
        assert box["width"] > 250
        assert box["height"] > 100
        assert page.locator(f"#{name} svg path").count() > 5
    # On a phone nothing sticks out to the side; wide tables scroll in their own frame.
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator("table").count() == 3
    page.close()
