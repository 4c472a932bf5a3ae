import pytest

from serving import served, tiny_classifier


@pytest.fixture(scope="module")
def chromium():
    from browsing import WAIT, playwright  # skips where it is not installed

    playwright.expect.set_options(timeout=WAIT)
    with playwright.sync_playwright() as started:
        yield started.chromium


@pytest.fixture(scope="module")
def browser(chromium):
    from browsing import BROWSER, CAMERA, QUIET

    with chromium.launch(executable_path=BROWSER, args=[*QUIET, *CAMERA]) as launched:
        yield launched


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model"
    tiny_classifier().save(path)
    return path


@pytest.fixture
def service(model):
    with served(model) as client:
        yield client
