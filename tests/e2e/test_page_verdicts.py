"""What the page says about each photo, and what can be answered to it, in a real browser with the real service."""

from collections import Counter

import pytest

from browsing import choose, expect, files, headline, needs_browser, visit
from fscil.classifier import StoredClassifier
from serving import READ, estimated_classifier, form, photo, served, write_keys

pytestmark = needs_browser


@pytest.fixture
def estimated(tmp_path):
    """A model folder with six classes of six photos, and its classifier."""
    classifier = estimated_classifier()
    classifier.save(tmp_path / "estimated")
    return tmp_path / "estimated", classifier


def wording(prediction):
    texts = {"known": prediction.label, "maybe": f"Looks like {prediction.label}", "unknown": "Unknown"}
    return texts[prediction.state]


def photos_of(service):
    return {each["name"]: each["photos"] for each in service.get("/classes").json()["classes"]}


def test_a_verdict_per_photo_that_can_be_confirmed_or_corrected(browser, estimated):
    folder, classifier = estimated
    pictures = [(label, 50) for label in range(10)]
    answers = classifier.predict([photo(*each) for each in pictures], top=5)
    assert len({each.state for each in answers}) > 1
    with served(folder) as service, visit(browser, service.base_url) as page:
        choose(page, *pictures)
        expect(page.locator(".tile .caption")).to_have_text([wording(each) for each in answers])
        assert page.locator(".tile.maybe").count() == Counter(each.state for each in answers)["maybe"]

        named = next(place for place, each in enumerate(answers) if each.label)
        page.click(f"button[aria-label^='Photo {named + 1}:']")
        expect(headline(page)).to_have_text(wording(answers[named]))
        page.click(".confirm")
        expect(page.locator("#notice")).to_have_text(f"Learned “{answers[named].label}” from 1 photo; it now has 7.")
        assert photos_of(service)[answers[named].label] == 7

        second = page.locator(".bars .label").nth(1).text_content()
        page.locator(".bars .choice").nth(1).click()
        expect(page.locator("#name")).to_have_value(second)
        page.check("#only-shown")
        expect(page.locator("#learn-button")).to_have_text("Learn")
        page.click("#learn-button")
        expect(page.locator("#notice")).to_contain_text(f"Learned “{second}” from 1 photo")
        assert photos_of(service)[second] == 7
        assert photos_of(service)[answers[named].label] == 6  # moved


DESK = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 320, "height": 700}, "is_mobile": True, "has_touch": True}


@pytest.mark.parametrize("screen", [DESK, PHONE], ids=["desk", "phone"])
def test_not_this_is_remembered_and_the_next_answer_is_another_one(browser, estimated, screen):
    folder, classifier = estimated
    pictures = [(label, seed) for label in range(13) for seed in (51, 52, 53)]
    answers = classifier.predict([photo(*each) for each in pictures], top=5)
    asked, first = next((each, answer) for each, answer in zip(pictures, answers, strict=True) if answer.label)
    unknown = next(each for each, answer in zip(pictures, answers, strict=True) if not answer.label)
    with served(folder) as service, visit(browser, service.base_url, errors=[422], **screen) as page:
        choose(page, unknown)
        expect(headline(page)).to_have_text("Unknown")
        expect(page.locator(".refuse")).to_have_count(0)  # nothing was said that could be wrong

        choose(page, asked)
        expect(headline(page)).to_have_text(wording(first))
        for selector in (".confirm", ".refuse"):
            box = page.locator(selector).bounding_box()
            assert box["width"] >= 44
            assert box["height"] >= 44
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= screen["viewport"]["width"]
        refuse = page.locator(".refuse")
        expect(refuse).to_have_accessible_name(f"Not this: it does not show {first.label}")
        refuse.tap() if screen is PHONE else refuse.press("Enter")
        expect(page.locator("#notice")).to_contain_text(f"does not show “{first.label}”")
        expect(headline(page)).not_to_have_text(wording(first))
        if screen is DESK:
            expect(headline(page)).to_be_focused()  # a keyboard goes on where it was
        (example,) = service.get("/negatives").json()["negatives"]
        assert (example["name"], example["file"]) == (first.label, f"{asked[0]}-{asked[1]}.png")
        assert photos_of(service)[first.label] == 6

        page.fill("#name", first.label)  # taken back
        page.click("#learn-button")
        expect(page.locator("#notice")).to_contain_text(f"Learned “{first.label}” from 1 photo")
        assert service.get("/negatives").json()["negatives"] == []
        expect(headline(page)).to_contain_text(first.label)
        page.click(".refuse")
        expect(page.locator("#error")).to_contain_text("was learned from this photo. Teach it another name")
    with StoredClassifier.open(folder) as stored:
        assert stored.classifier.gallery.negatives(first.label) == ()


def test_no_not_this_with_a_read_key(browser, estimated, tmp_path):
    folder, _ = estimated
    with served(folder, write_keys(tmp_path)) as service, visit(browser, service.base_url, errors=[401]) as page:
        page.fill("#key", READ)
        page.click("#key-form button[type=submit]")
        choose(page, *((label, 50) for label in range(6)))
        expect(page.locator(".bars li")).to_have_count(6)
        expect(page.locator(".refuse, .confirm")).to_have_count(0)
        service.headers["X-API-Key"] = READ
        assert service.post("/negatives?name=class 1", files=form(photo(1, 50))).status_code == 403


def test_more_photos_than_one_request_may_have(browser, model):
    with served(model, max_photos_per_request=4) as service, visit(browser, service.base_url) as page:
        sent = []
        page.on("request", lambda request: sent.append(request.url) if "/classes/" in request.url else None)
        choose(page, *((1, seed) for seed in range(10)))
        page.fill("#name", "one")
        page.click("#learn-button")
        expect(page.locator("#notice")).to_have_text("Learned “one” from 10 photos.")
        assert sum("strict=true" in url for url in sent) == 3
    with StoredClassifier.open(model) as stored:
        assert stored.classifier.gallery.info("one").photos == 10


def test_warnings_with_pictures_before_anything_is_learned(browser, estimated):
    folder, _ = estimated
    with served(folder) as service, visit(browser, service.base_url, errors=[409]) as page:
        # The photos of class 2 in another size: no enrolled pictures, and hardly different ones.
        larger = [{"name": f"{n}.png", "mimeType": "image/png", "buffer": photo(2, n, size=96)} for n in range(4)]
        page.set_input_files("#files", larger)
        page.fill("#name", "new")
        page.click("#learn-button")
        warning = page.locator("#warning-list li").first
        expect(warning).to_contain_text('"new" can hardly be distinguished from "class 2"')
        expect(warning.locator("img")).to_have_count(2)  # one of the photos, and one of the class
        assert "new" not in photos_of(service)
        page.click("#learn-not")
        expect(page.locator("#warnings")).to_be_hidden()
        page.click("#learn-button")
        page.click("#learn-anyway")
        expect(page.locator("#notice")).to_have_text("Learned “new” from 4 photos.")
        assert photos_of(service)["new"] == 4


def test_try_again(browser, service):
    context = browser.new_context()
    page = context.new_page()
    page.goto(str(service.base_url))
    expect(page.locator("#empty")).to_be_visible()
    context.set_offline(True)
    choose(page, (1, 0), (1, 1))
    expect(page.locator(".tile.failed .caption")).to_have_text(["No answer"] * 2)
    expect(page.locator("#prediction")).to_contain_text("does not respond")
    context.set_offline(False)
    page.click(".retry")
    expect(page.locator(".tile .caption")).to_have_text(["No classes yet"] * 2)
    context.close()


def test_verdict_and_name_field_on_the_first_screen_of_a_phone(browser, estimated):
    folder, _ = estimated
    screen = {"width": 390, "height": 844}
    with served(folder) as service, visit(browser, service.base_url, viewport=screen, is_mobile=True) as page:
        page.set_input_files("#files", files(*((label, 50) for label in range(6))))
        expect(page.locator(".bars li")).to_have_count(6)
        for selector in ("#prediction .headline", "#name", "#learn-button"):
            box = page.locator(selector).bounding_box()
            assert box["y"] >= 0
            assert box["y"] + box["height"] <= screen["height"], selector


def test_docs_show_every_route_of_the_openapi_document(browser, service):
    described = service.get("/openapi.json").json()
    routes = [f"{way.upper()} {path}" for path, methods in described["paths"].items() for way in methods]
    with visit(browser, f"{service.base_url}/docs", start=service.base_url) as page:
        expect(page.locator("h2")).to_have_text(routes)
        expect(page.locator("section").filter(has_text="DELETE /classes/{name}")).to_contain_text("404")
