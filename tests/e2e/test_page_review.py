"""The review on the page, in a real browser with the real service: photos that were not known are named or deleted."""

from itertools import combinations

import pytest

from browsing import choose, expect, learn, needs_browser, visit
from serving import ENROLL, READ, estimated_classifier, form, photo, served, write_keys

pytestmark = needs_browser

ASKED = [(label, seed) for label in range(3, 13) for seed in (51, 52, 53)]  # of enrolled classes (0 to 5) and of others
GONE = 404  # of a thumbnail, asked for in the moment in which its photo is named or deleted
PHONE = {"viewport": {"width": 320, "height": 700}, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def classifier():
    return estimated_classifier()


@pytest.fixture
def estimated(classifier, tmp_path):
    classifier.save(tmp_path / "estimated")
    return tmp_path / "estimated"


@pytest.fixture
def keeping(estimated):
    with served(estimated, keep_unknown=100) as client:
        yield client


def ask(client, *pictures):
    for label, seed in pictures:
        content = photo(label, seed)
        client.post("/predict", files=[("files", (f"{label}-{seed}.png", content, "image/png"))]).raise_for_status()
    return waiting(client)


def waiting(client):
    return client.get("/review").json()["photos"]


def photos_of(client):
    return {each["name"]: each["photos"] for each in client.get("/classes").json()["classes"]}


def items(page):
    return page.locator("#queue > li")


def item(page, kept):
    return items(page).filter(has_text=kept["file"])


def notice(page):
    """In the card of the review."""
    return page.locator("#review #notice")


def test_no_review_where_no_photos_are_kept(browser, estimated):
    with served(estimated) as client, visit(browser, client.base_url) as page:
        choose(page, *ASKED[:2])
        expect(page.locator("#classes li")).to_have_count(6)
        expect(page.locator("#review")).to_be_hidden()


def test_no_review_with_a_read_key(browser, estimated, tmp_path):
    with served(estimated, write_keys(tmp_path), keep_unknown=9) as client:
        client.headers["X-API-Key"] = ENROLL
        ask(client, *ASKED)
        with visit(browser, client.base_url, errors=[401]) as page:  # and no 403
            page.fill("#key", READ)
            page.click("#key-form button[type=submit]")
            expect(page.locator("#classes li")).to_have_count(6)
            choose(page, ASKED[0])
            expect(page.locator("#prediction .bars li")).to_have_count(6)
            expect(page.locator("#review")).to_be_hidden()
            page.click("#change-key")
            page.fill("#key", ENROLL)
            page.click("#key-form button[type=submit]")
            expect(page.locator("#review-total")).to_have_text("9")
            items(page).first.scroll_into_view_if_needed()
            expect(items(page).first.locator("img")).to_be_visible()  # fetched with the key


def test_what_was_kept_before_can_be_reviewed(browser, estimated):
    with served(estimated, keep_unknown=3) as client:
        ask(client, *ASKED)
    with served(estimated) as client, visit(browser, client.base_url, errors=[GONE]) as page:
        expect(items(page)).to_have_count(3)
        expect(page.locator("#review-about")).to_contain_text("further ones are not")
        page.click("#delete-kept")
        page.click("#forget-confirm")
        expect(page.locator("#review")).to_be_hidden()


def test_the_queue_of_the_service_least_certain_first(browser, keeping):
    with visit(browser, keeping.base_url) as page:
        expect(page.locator("#review-about")).to_contain_text("Nothing to review")
        expect(page.locator("#delete-kept")).to_be_hidden()
        choose(page, *ASKED)
        expect(page.locator("#review-about")).to_contain_text("the least certain first (at most 100 photos")
        expected = waiting(keeping)
        assert {each["state"] for each in expected} == {"maybe", "unknown"}
        expect(page.locator("#review-total")).to_have_text(str(len(expected)))
        expect(items(page)).to_have_count(6)
        while page.locator("#more-kept").is_visible():
            shown = items(page).count()
            page.click("#more-kept")
            expect(items(page)).to_have_count(min(shown + 6, len(expected)))
        texts = {"maybe": "Looks like {label}", "unknown": "Unknown"}
        expect(page.locator("#queue b")).to_have_text([texts[each["state"]].format_map(each) for each in expected])
        expect(page.locator("#queue .text span")).to_contain_text([each["file"] for each in expected])
        for each in expected:
            first, *others = [ranked["label"] for ranked in each["ranking"]]
            expect(item(page, each).locator(".choices .label")).to_have_text([f"Yes, {first}", "Not this", *others])
            item(page, each).scroll_into_view_if_needed()
            expect(item(page, each).locator(".picture img")).to_be_visible()


def test_confirm_and_correct(browser, keeping):
    first, second, third, *_ = ask(keeping, *ASKED)
    before = photos_of(keeping)
    with visit(browser, keeping.base_url, errors=[GONE, 409]) as page:

        def learned(name):
            """Anyway, if the service has a doubt about it."""
            expect(page.locator("#warnings, #notice").locator("visible=true")).to_have_count(1)
            if page.locator("#warnings").is_visible():
                page.click("#learn-anyway")
            expect(notice(page)).to_contain_text(f"Learned “{name}” from 1 photo")

        right = first["ranking"][0]["label"]
        item(page, first).get_by_role("button", name=f"Yes, {right}").click()
        learned(right)
        expect(item(page, first)).to_have_count(0)
        assert photos_of(keeping)[right] == before[right] + 1

        kept = next(each for each in waiting(keeping) if each["id"] == second["id"])  # under the model as it is now
        other = kept["ranking"][1]["label"]
        count = photos_of(keeping)[other]
        item(page, second).locator(".choices button").nth(2).click()
        expect(item(page, second)).to_have_count(0)
        assert photos_of(keeping)[other] == count + 1

        item(page, third).get_by_role("combobox").fill("heron")
        item(page, third).get_by_role("button", name="Learn").click()
        learned("heron")
        expect(page.locator("#classes li").filter(has_text="heron")).to_contain_text("1 photo")
    assert photos_of(keeping)["heron"] == 1
    assert {first["id"], second["id"], third["id"]}.isdisjoint(each["id"] for each in waiting(keeping))


def test_not_this(browser, keeping):
    kept = ask(keeping, *ASKED)[0]
    wrong, following = (each["label"] for each in kept["ranking"][:2])
    with visit(browser, keeping.base_url) as page:
        item(page, kept).get_by_role("button", name="Not this").click()
        expect(notice(page)).to_contain_text(f"Remembered: {kept['file']} does not show “{wrong}”. To take it back")
        if page.locator("#more-kept").is_visible():
            page.click("#more-kept")  # it may be more certain now
        expect(item(page, kept).locator(".choices .label").first).to_have_text(f"Yes, {following}")
    (negative,) = keeping.get("/negatives").json()["negatives"]
    assert (negative["id"], negative["name"]) == (kept["id"], wrong)


@pytest.mark.parametrize("where", ["#prediction", "#queue"])
def test_the_review_does_not_wait_for_the_photos_above_it(browser, keeping, where):
    """Nobody shall answer to what the model said before."""
    with visit(browser, keeping.base_url) as page:
        choose(page, *ASKED)
        expect(page.locator(".tile.pending")).to_have_count(0)
        place, kept = next(
            (place, each)
            for each in waiting(keeping)
            for place, (label, seed) in enumerate(ASKED, 1)
            if (each["state"], each["file"]) == ("maybe", f"{label}-{seed}.png")
        )
        wrong = kept["ranking"][0]["label"]
        while page.locator("#more-kept").is_visible():
            shown = items(page).count()
            page.click("#more-kept")
            expect(items(page)).not_to_have_count(shown)
        expect(item(page, kept).locator(".choices .label").first).to_have_text(f"Yes, {wrong}")
        page.click(f"button[aria-label^='Photo {place}:']")
        held = []
        page.route("**/predict?*", lambda route: held.append(route))
        part = item(page, kept) if where == "#queue" else page.locator(where)
        part.get_by_role("button", name="Not this").click()
        expect(item(page, kept).locator(".choices .label").first).not_to_have_text(f"Yes, {wrong}")
        assert held
        for route in held:
            route.continue_()


def test_a_group_gets_one_name(browser, keeping):
    ask(keeping, *ASKED)
    group = keeping.get("/review/groups").json()["groups"][0]["photos"]
    assert len(group) > 2
    with visit(browser, keeping.base_url, errors=[GONE, 409]) as page:
        shown = page.locator("#groups > li").first
        expect(shown.locator("h3")).to_have_text(f"{len(group)} similar photos: name them")
        expect(shown.locator(".picture")).to_have_count(len(group))
        shown.locator(".picture").first.click()  # left out
        expect(shown.locator("button.primary")).to_have_text(f"Learn from {len(group) - 1} photos")
        shown.locator("input").fill("heron")
        shown.locator("button.primary").click()
        expect(page.locator("#warnings, #notice").locator("visible=true")).to_have_count(1)
        if page.locator("#warnings").is_visible():
            page.click("#learn-anyway")
        expect(notice(page)).to_have_text(f"Learned “heron” from {len(group) - 1} photos.")
        expect(page.locator("#classes li").filter(has_text="heron")).to_be_visible()
    assert photos_of(keeping)["heron"] == len(group) - 1
    left = {each["id"] for each in waiting(keeping)}
    assert group[0]["id"] in left
    assert left.isdisjoint(each["id"] for each in group[1:])


def test_warnings_with_pictures_before_kept_photos_are_learned(browser, keeping):
    """The same picture in two sizes, from a camera that gives every photo the same name."""
    for size in (64, 96):
        keeping.post("/predict", files=form(photo(12, 52, size=size)))
    assert [(each["file"], each["state"]) for each in waiting(keeping)] == [("photo0.png", "unknown")] * 2
    with visit(browser, keeping.base_url, errors=[GONE, 409]) as page:
        group = page.locator("#groups > li")
        group.locator("input").fill("new")
        group.locator("button.primary").click()
        warning = page.locator("#review #warning-list li").filter(has_text="nearly the same")
        expect(warning.locator("img")).to_have_count(2)
        assert "new" not in photos_of(keeping)
        page.click("#learn-not")
        expect(page.locator("#warnings")).to_be_hidden()
        expect(page.locator("#review-title")).to_be_focused()
        expect(items(page)).to_have_count(2)
        group.locator("button.primary").click()  # the name is still there
        page.click("#learn-anyway")
        expect(notice(page)).to_have_text("Learned “new” from 2 photos.")
        expect(page.locator("#review-about")).to_contain_text("Nothing to review")
    assert photos_of(keeping)["new"] == 2


def test_delete_one_and_all(browser, keeping):
    kept = ask(keeping, *ASKED)
    with visit(browser, keeping.base_url, errors=[GONE]) as page:
        page.click(f"button[aria-label='Delete {kept[0]['file']}']")
        expect(notice(page)).to_have_text(f"Deleted {kept[0]['file']}.")
        expect(page.locator("#review-total")).to_have_text(str(len(kept) - 1))
        assert [each["id"] for each in waiting(keeping)] == [each["id"] for each in kept[1:]]
        page.click("#delete-kept")
        expect(page.locator("#forget-title")).to_have_text("Delete all kept photos?")
        page.click("#forget-cancel")
        page.click("#delete-kept")
        page.click("#forget-confirm")
        expect(notice(page)).to_have_text(f"Deleted {len(kept) - 1} photos.")
        expect(items(page)).to_have_count(0)
        expect(page.locator("#groups > li")).to_have_count(0)
        expect(page.locator("#review-about")).to_contain_text("Nothing to review")
    assert waiting(keeping) == []


def test_a_deleted_photo_that_is_still_shown_is_not_kept_again(browser, keeping):
    kept = ask(keeping, *ASKED)[0]
    picture = next(pair for pair in ASKED if kept["file"] == f"{pair[0]}-{pair[1]}.png")
    keeping.delete("/review")
    with visit(browser, keeping.base_url, errors=[GONE]) as page:
        choose(page, picture)
        expect(items(page)).to_have_count(1)
        page.click(f"button[aria-label='Delete {kept['file']}']")
        expect(items(page)).to_have_count(0)
        page.click("button[aria-label='Forget class 0']")
        with page.expect_response(lambda answer: "/predict" in answer.url) as again:  # of the photo that is shown
            page.click("#forget-confirm")
        assert again.value.json()["predictions"][0]["state"] != "known"
        expect(page.locator("#notice")).to_have_text("Forgot “class 0”.")
    assert waiting(keeping) == []


def test_a_photo_that_somebody_else_has_deleted(browser, keeping):
    kept = ask(keeping, *ASKED)[0]
    with visit(browser, keeping.base_url, errors=[GONE]) as page:
        expect(item(page, kept)).to_be_visible()
        keeping.delete(f"/review/photos/{kept['id']}")
        item(page, kept).locator(".choices button").first.click()
        expect(page.locator("#review #error")).to_contain_text("There is no such photo in the review")
        expect(item(page, kept)).to_have_count(0)


def test_an_invalid_name_is_an_error_there(browser, keeping):
    kept = ask(keeping, *ASKED)[0]
    with visit(browser, keeping.base_url, errors=[422]) as page:
        item(page, kept).locator("input").fill("a\x07b")
        item(page, kept).get_by_role("button", name="Learn").click()
        expect(page.locator("#review #error")).to_contain_text("control character")
        learn(page, "one", (1, 0))  # whose messages are in the other card
        expect(page.locator("#classify #notice")).to_be_visible()
        expect(page.locator("#error")).to_be_hidden()


def test_by_keyboard_and_with_a_text_that_is_being_typed(browser, keeping):
    first, second, *_ = ask(keeping, *ASKED)
    with visit(browser, keeping.base_url, errors=[GONE]) as page:
        item(page, second).locator("input").fill("her")
        page.focus(f"button[aria-label='Delete {first['file']}']")
        page.keyboard.press("Enter")
        expect(item(page, first)).to_have_count(0)
        expect(items(page).first).to_be_focused()  # the one that has taken its place
        page.keyboard.press("Tab")
        expect(items(page).first.locator("button").first).to_be_focused()
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        expect(item(page, second).locator("input")).to_have_value("her")
        nameless = page.evaluate(
            """[...document.querySelectorAll("#review :is(button, input, img)")].filter((each) =>
               !(each.textContent.trim() || each.ariaLabel || each.hasAttribute("alt"))
            ).map((each) => each.outerHTML)"""
        )
        assert nameless == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_horizontal_scrolling_on_a_phone(browser, keeping, scheme):
    ask(keeping, *ASKED)
    for name in ("x" * 200, "a name of several words, as people give them"):  # learned from what looks like it
        keeping.post("/review/name", json={"name": name, "photos": [waiting(keeping)[0]["id"]]})
    with visit(browser, keeping.base_url, color_scheme=scheme, **PHONE) as page:
        expect(items(page)).to_have_count(6)
        assert any(len(name) > 40 for name in page.locator("#queue .choices .label").all_text_contents())
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        small = page.evaluate(
            """[...document.querySelectorAll("#review :is(button, input)")].filter((each) =>
               each.offsetParent && each.getBoundingClientRect().height < 44).map((each) => each.outerHTML)"""
        )
        assert small == []  # large enough to tap
        boxes = page.locator("#queue > li:first-child :is(button, input)").evaluate_all(
            "all => all.map((each) => each.getBoundingClientRect().toJSON())"
        )
        assert not any(overlap(*pair) for pair in combinations(boxes, 2))
        items(page).nth(3).get_by_role("button", name="Not this").tap()
        expect(notice(page)).to_be_in_viewport()  # wherever in the queue one is
        assert page.evaluate("document.documentElement.scrollWidth") <= 320


def overlap(one, other):
    return (
        one["left"] < other["right"]
        and other["left"] < one["right"]
        and one["top"] < other["bottom"]
        and other["top"] < one["bottom"]
    )
