"""The page in a real browser, with the real service: predict, learn, forget, and its error messages."""

import base64
import re
from dataclasses import replace

import pytest

from browsing import BROWSER, QUIET, WAIT, choose, expect, files, headline, learn, needs_browser, visit
from fscil.classifier import StoredClassifier, Thresholds
from fscil.serve.app import PAGE
from serving import ENROLL, READ, estimated_classifier, form, photo, served, write_keys

pytestmark = needs_browser


def test_learn_two_classes_and_forget_one(browser, service):
    with visit(browser, service.base_url) as page:
        expect(page.locator("#empty")).to_contain_text("No classes yet")
        choose(page, (0, 0))
        expect(headline(page)).to_have_text("No classes yet")
        page.fill("#name", "red panda")
        page.click("#learn-button")
        expect(page.locator("#notice")).to_have_text("Learned “red panda” from 1 photo.")
        expect(headline(page)).to_have_text("red panda")  # predicted again by itself
        expect(page.locator("#empty")).to_be_hidden()

        learn(page, "鹿 & <b>", (5, 0), (5, 1), (5, 2))
        expect(page.locator("#classes li").last).to_contain_text("鹿 & <b>")  # A to Z
        expect(page.locator("#classes li").last).to_contain_text("3 photos")
        expect(page.locator("#classes .thumbnail img")).to_have_count(2)
        known = service.get("/classes").json()["classes"]
        assert {each["name"]: each["photos"] for each in known} == {"red panda": 1, "鹿 & <b>": 3}

        choose(page, (5, 7))
        expect(headline(page)).to_have_text("鹿 & <b>")
        expect(page.locator(".bars li")).to_have_count(2)
        widths = page.locator(".bar i").evaluate_all("bars => bars.map((bar) => bar.getBoundingClientRect().width)")
        assert widths[0] > widths[1] > 0
        expect(page.locator("#announcement")).to_contain_text("鹿 & <b>, similarity ")

        page.click("button[aria-label='Forget 鹿 & <b>']")
        page.click("#forget-cancel")
        expect(page.locator("#classes li")).to_have_count(2)
        page.click("button[aria-label='Forget 鹿 & <b>']")
        page.click("#forget-confirm")
        expect(page.locator("#notice")).to_have_text("Forgot “鹿 & <b>”.")
        expect(page.locator("#classes li")).to_have_count(1)
        expect(headline(page)).to_have_text("red panda")
    assert [each["name"] for each in service.get("/classes").json()["classes"]] == ["red panda"]


def test_the_same_photo_again_changes_nothing(browser, service):
    with visit(browser, service.base_url) as page:
        learn(page, "one", (1, 0))
        page.fill("#name", "one")
        page.click("#learn-button")
        expect(page.locator("#notice")).to_contain_text("already has this photo")
    assert service.get("/classes").json()["classes"][0]["photos"] == 1


def test_unknown(browser, model, tmp_path):
    others = tmp_path / "others"
    others.mkdir()
    for seed in range(8):
        (others / f"{seed}.png").write_bytes(photo(6, seed))
    with StoredClassifier.open(model) as stored:
        stored.enroll("one", [photo(1, 0)])
        stored.calibrate(others, false_accept=0.01)
    with served(model) as service, visit(browser, service.base_url) as page:
        choose(page, (6, 0))
        expect(headline(page)).to_have_text("Unknown")
        expect(page.locator("#announcement")).to_have_text("Unknown. The nearest class is one.")
        choose(page, (1, 0))
        expect(headline(page)).to_have_text("one")
        expect(page.locator("#results")).not_to_contain_text("not calibrated")


def test_probabilities_and_unknown_without_calibration(browser, tmp_path):
    """Each photo's own answer: a class with its probability, or unknown and what it is nearest to."""
    classifier = estimated_classifier()
    classifier.decision = replace(classifier.decision, unknown_prior=0.5, thresholds=Thresholds(known=0.2))
    classifier.save(tmp_path / "model")
    pictures = [(label, 50) for label in range(10)]
    answers = dict(zip(pictures, classifier.predict([photo(*each) for each in pictures], top=5), strict=True))
    known = next(each for each in pictures if answers[each].label)
    classifier.decision = replace(classifier.decision, unknown_prior=0.999999)
    classifier.save(tmp_path / "strict")
    with served(tmp_path / "model") as service, visit(browser, service.base_url) as page:
        choose(page, known)
        expect(headline(page)).to_have_text(answers[known].label)
        expect(page.locator("#announcement")).to_contain_text(f"{answers[known].label}, probability ")
        expect(page.locator(".bars li").last).to_contain_text("None of the classes")
        expect(page.locator(".bars .number").first).to_contain_text("%")
        expect(page.locator("#thresholds")).to_contain_text("fscil calibrate MODEL --known-at 0.2 --unknown-at 0.5")
        widths = page.locator(".bar i").evaluate_all("bars => bars.map((bar) => bar.style.getPropertyValue('--width'))")
        shares = [float(width.rstrip("%")) / 100 for width in widths]
        assert shares == pytest.approx([*answers[known].probabilities, answers[known].unknown_probability], abs=2e-3)
    with served(tmp_path / "strict") as service, visit(browser, service.base_url) as page:
        choose(page, known)
        expect(headline(page)).to_have_text("Unknown")
        expect(page.locator("#announcement")).to_have_text(f"Unknown. The nearest class is {answers[known].label}.")
        expect(page.locator("#prediction")).to_contain_text("unknown with ")


def test_a_file_that_is_not_a_photo(browser, service):
    with visit(browser, service.base_url, errors=[415]) as page:
        page.set_input_files("#files", [{"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no photo"}])
        expect(page.locator("#prediction")).to_contain_text("notes.txt: not a JPEG, PNG, WEBP, BMP or GIF image")
        expect(page.locator("#learn")).to_be_hidden()
        choose(page, (1, 0))  # a valid photo after it
        expect(headline(page)).to_have_text("No classes yet")
        expect(page.locator("#learn")).to_be_visible()


def test_an_invalid_photo_is_left_out(browser, service):
    with visit(browser, service.base_url, errors=[422]) as page:
        broken = {"name": "broken.png", "mimeType": "image/png", "buffer": photo(1, 1)[:200]}
        page.set_input_files("#files", [*files((1, 0)), broken, *files((1, 2))])
        expect(page.locator(".tile.invalid")).to_have_count(1)
        expect(page.locator("#learn-button")).to_have_text("Learn from 2 photos")
        page.fill("#name", "one")
        page.click("#learn-button")
        expect(page.locator("#notice")).to_have_text("Learned “one” from 2 photos.")


def test_photos_can_be_added_and_removed(browser, service):
    with visit(browser, service.base_url) as page:
        choose(page, (1, 0))
        with page.expect_file_chooser() as chooser:
            page.click("#strip .add")
        chooser.value.set_files(files((1, 1), (2, 0)))
        expect(page.locator("#learn-button")).to_have_text("Learn from 3 photos")
        page.click("button[aria-label='Remove photo 3']")
        expect(page.locator("#learn-button")).to_have_text("Learn from 2 photos")
        choose(page, (3, 0))
        expect(page.locator("#strip .tile")).to_have_count(1)


def test_an_invalid_class_name(browser, service):
    with visit(browser, service.base_url, errors=[422]) as page:
        choose(page, (1, 0))
        page.fill("#name", "a\x07b")
        page.click("#learn-button")
        expect(page.locator("#error")).to_contain_text("control character")
        for name in (".", ".."):
            page.fill("#name", name)
            page.click("#learn-button")
            expect(page.locator("#error")).to_contain_text(f'"{name}" means a folder')
            expect(page.locator("#learn-button")).to_be_enabled()


FILES_FROM = """(kind) => {
  const data = new DataTransfer();
  const content = Uint8Array.from(atob(kind.content), (letter) => letter.charCodeAt(0));
  data.items.add(new File([content], "in.png", { type: "image/png" }));
  const drop = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  const paste = new ClipboardEvent("paste", { clipboardData: data, bubbles: true });
  document.querySelector("main").dispatchEvent(kind.way === "drop" ? drop : paste);
}"""


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_drop_and_paste(browser, service, way):
    service.post("/classes/one", files=form(photo(1, 0)))
    with visit(browser, service.base_url) as page:
        page.evaluate(FILES_FROM, {"way": way, "content": base64.b64encode(photo(1, 1)).decode()})
        expect(headline(page)).to_have_text("one")


def test_the_camera(browser, service):
    with visit(browser, service.base_url) as page:
        page.click("#open-camera")
        while not page.evaluate("document.getElementById('video').videoWidth"):
            pass
        page.click("#take-photo")
        expect(headline(page)).to_have_text("No classes yet")
        page.click("#take-photo")
        expect(page.locator("#strip .tile")).to_have_count(2)
        page.click("button[aria-label='Remove photo 2']")  # which may be nearly the same, a warning
        page.fill("#name", "test picture")
        page.click("#learn-button")
        expect(page.locator("#notice")).to_contain_text("Learned “test picture”")
        expect(page.locator("#camera")).to_be_hidden()
        expect(headline(page)).to_have_text("test picture")
    (known,) = service.get("/classes").json()["classes"]
    assert known["sources"][0].startswith("camera 20")


def test_without_a_camera_there_is_a_message(chromium, service):
    with chromium.launch(executable_path=BROWSER, args=QUIET) as bare, visit(bare, service.base_url) as page:
        page.click("#open-camera")
        expect(page.locator("#error")).to_have_text(re.compile("camera"))
        expect(page.locator("#camera")).to_be_hidden()
        expect(page.locator("#choose")).to_be_visible()


def enter_key(page, key):
    expect(page.locator("#key-dialog")).to_be_visible()
    page.fill("#key", key)
    page.click("#key-form button[type=submit]")


def test_an_invalid_a_read_and_an_enroll_key(browser, model, tmp_path):
    with StoredClassifier.open(model) as stored:
        stored.enroll("one", [photo(1, 0)])
    with served(model, write_keys(tmp_path)) as service:
        with visit(browser, service.base_url, errors=[401]) as page:
            expect(page.locator("#key-message")).to_have_text("This service requires a key.")
            enter_key(page, "wrong-0123456789abcdef")
            expect(page.locator("#key-message")).to_have_text("This key is not valid.")
            enter_key(page, "ключ-0123456789abcdef")  # not allowed in a header
            expect(page.locator("#key:invalid")).to_be_visible()
            enter_key(page, READ)
            expect(page.locator("#classes li")).to_have_count(1)
            expect(page.locator("#classes .thumbnail img")).to_have_count(1)
            expect(page.locator("#classes button")).to_have_count(0)
            choose(page, (1, 1))
            expect(headline(page)).to_have_text("one")
            expect(page.locator("#learn")).to_be_hidden()
            expect(page.locator("#read-only")).to_be_visible()
            page.click("#change-key")
            enter_key(page, ENROLL)
            expect(page.locator("#classes button")).to_have_count(1)
            learn(page, "two", (5, 0))
            page.reload()  # the key is remembered in this tab
            expect(page.locator("#classes li")).to_have_count(2)
        with visit(browser, service.base_url, errors=[401]) as page:
            page.click("#key-cancel")
            expect(page.locator("#error")).to_contain_text("Without a key")


def test_the_link_with_the_token_logs_the_browser_in(browser, model):
    with served(model, token=True) as service:
        with visit(browser, f"{service.base_url}/?token={service.token}", start=service.base_url) as page:
            assert page.url == f"{service.base_url}/"  # without the token
            expect(page.locator("#empty")).to_be_visible()
            learn(page, "one", (1, 0))
            expect(page.locator("#classes .thumbnail img")).to_have_count(1)
            page.reload()
            expect(page.locator("#classes li")).to_have_count(1)
            (cookie,) = page.context.cookies()
            assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
            assert page.evaluate("document.cookie") == ""
        with visit(browser, service.base_url, errors=[401]) as page:
            expect(page.locator("#key-message")).to_contain_text("Open the address that the service printed")
            enter_key(page, service.token)
            expect(page.locator("#classes li")).to_have_count(1)


def press_until(page, selector, key="Tab"):
    """Move the focus by keyboard to an element; it must have a visible focus outline."""
    for _ in range(40):
        page.keyboard.press(key)
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", selector
            return
    raise AssertionError(f"{selector} cannot be reached by keyboard")


def test_keyboard_only(browser, service):
    with visit(browser, service.base_url) as page:
        press_until(page, "#choose")
        with page.expect_file_chooser() as chooser:
            page.keyboard.press("Enter")
        chooser.value.set_files(files((1, 0), (1, 1)))
        expect(headline(page)).to_have_text("No classes yet")
        press_until(page, "button[aria-label^='Photo 2']")
        page.keyboard.press("Space")
        expect(page.locator("button[aria-label^='Photo 2']")).to_have_attribute("aria-pressed", "true")
        press_until(page, "#name")
        page.keyboard.type("one")
        page.keyboard.press("Enter")
        expect(page.locator("#notice")).to_have_text("Learned “one” from 2 photos.")
        expect(page.locator("#classes li")).to_have_count(1)
        press_until(page, "button[aria-label='Forget one']")
        page.keyboard.press("Enter")
        expect(page.locator("#forget-cancel")).to_be_focused()  # the default is not to delete
        page.keyboard.press("Escape")
        expect(page.locator("#forget-dialog")).to_be_hidden()
        page.keyboard.press("Enter")  # the focus is back where it was
        press_until(page, "#forget-confirm")
        page.keyboard.press("Enter")
        expect(page.locator("#empty")).to_be_visible()
    assert service.get("/classes").json()["total"] == 0


def test_every_control_has_an_accessible_name(browser, service):
    service.post("/classes/one", files=form(photo(1, 0)))
    with visit(browser, service.base_url) as page:
        choose(page, (1, 0))
        expect(headline(page)).to_have_text("one")
        nameless = page.evaluate(
            """[...document.querySelectorAll("button, input, img, video")].filter((each) =>
               !(each.textContent.trim() || each.ariaLabel || each.labels?.length || each.hasAttribute("alt"))
            ).map((each) => each.outerHTML)"""
        )
        assert nameless == []


@pytest.mark.parametrize("width", [320, 390])
def test_no_horizontal_scrolling_on_a_phone(browser, service, width):
    for name in ("x" * 200, "a name of several words, as people give them"):
        service.post(f"/classes/{name}", files=form(photo(1, len(name))))
    with visit(
        browser, service.base_url, viewport={"width": width, "height": 700}, is_mobile=True, has_touch=True
    ) as page:
        choose(page, *((1, seed) for seed in range(8)))
        expect(page.locator(".bars li")).to_have_count(2)
        expect(page.locator("#classes li")).to_have_count(2)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        small = page.evaluate(
            """[...document.querySelectorAll("button, input:not([type=file])")].filter((each) =>
               each.offsetParent && each.getBoundingClientRect().height < 44).map((each) => each.id)"""
        )
        assert small == []  # large enough to tap
        page.locator("#classes button").first.tap()
        expect(page.locator("#forget-dialog")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_light_and_dark_theme(browser, service):
    def brightness(scheme):
        with visit(browser, service.base_url, color_scheme=scheme) as page:
            expect(page.locator("#empty")).to_be_visible()
            colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)))

    assert brightness("light") > 600 > 150 > brightness("dark")


def test_paging_and_search_of_many_classes(browser, model):
    with StoredClassifier.open(model) as stored:
        (one,) = stored.classifier.photos([photo(1, 0)])
        for number in range(70):
            stored.enroll_photos(f"class {number}", [replace(one, digest=str(number))])
    with served(model) as service, visit(browser, service.base_url) as page:
        expect(page.locator("#total")).to_have_text("70")
        expect(page.locator("#classes li")).to_have_count(60)
        page.click("#more")
        expect(page.locator("#classes li")).to_have_count(70)
        expect(page.locator("#more")).to_be_hidden()
        page.fill("#search", "CLASS 6")
        expect(page.locator("#classes li")).to_have_count(11)
        page.fill("#search", "nothing like it")
        expect(page.locator("#none-found")).to_be_visible()


def test_without_a_response_there_is_a_message(browser, model):
    with served(model) as service:
        context = browser.new_context()
        page = context.new_page()
        page.goto(str(service.base_url))
        expect(page.locator("#empty")).to_be_visible()
    choose(page, (1, 0))
    expect(page.locator("#prediction")).to_contain_text(
        "The service does not respond. Is it still running?", timeout=WAIT
    )
    context.close()


def test_the_page_loads_nothing_from_other_origins(service):
    answer = service.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for path in ("/", *(f"/{file.name}" for file in PAGE.iterdir() if file.suffix in (".css", ".js"))):
        assert "//" not in re.sub(
            r"^\s*//.*$| // .*$", "", service.get(path).text, flags=re.MULTILINE
        )  # no absolute URL
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", answer.text)
