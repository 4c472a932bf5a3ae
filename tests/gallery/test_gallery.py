import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import cosine_similarity

from fscil.errors import ClassNameError, DataError, FscilError, StoreError, UnknownClassError
from fscil.gallery import ClassInfo, Gallery, Photo, apply_record, class_name, enrolled_classes
from fscil.runtime import memory
from fscil.runtime.files import load_tensors, save_tensors

DIM = 5


def photo(digest, feature=None, source="a.jpg", added="2024-05-01T10:00:00Z", thumbnail=b""):
    if feature is None:
        feature = torch.randn(DIM, generator=torch.Generator().manual_seed(sum(map(ord, digest))))
    return Photo(digest, torch.as_tensor(feature, dtype=torch.float32), source, added, thumbnail)


def direction(photos):
    """The mean, one number after the other, and its direction."""
    mean = [math.fsum(values) / len(photos) for values in zip(*(each.feature.tolist() for each in photos), strict=True)]
    length = math.sqrt(math.fsum(value * value for value in mean))
    return [value / length for value in mean]


@pytest.fixture
def zoo():
    gallery = Gallery(DIM)
    gallery.enroll("ant", [photo("a1"), photo("a2"), photo("a3")], origin="base")
    gallery.enroll("bee", [photo("b1")])
    gallery.enroll("鹿", [photo("d1"), photo("d2")])
    return gallery


def same(left, right):
    """Two galleries, to the bit: what they keep and what they answer."""
    one, two = left.snapshot(), right.snapshot()
    assert one.keys() == two.keys()
    return all(torch.equal(one[key], two[key]) for key in one) and torch.equal(left.prototypes, right.prototypes)


# Prototypes


def test_a_prototype_is_the_direction_of_the_raw_mean(zoo):
    assert zoo.prototypes.shape == (3, DIM)
    assert zoo.prototypes.dtype == torch.float32
    expected = [direction(zoo.photos(name)) for name in ("ant", "bee", "鹿")]
    np.testing.assert_allclose(zoo.prototypes.numpy(), expected, atol=1e-7)


def test_the_mean_is_of_raw_features_not_of_directions():
    gallery = Gallery(2)
    gallery.enroll("far and near", [photo("1", [100.0, 0.0]), photo("2", [0.0, 1.0])])
    assert gallery.prototypes[0, 0] > 0.99


def test_more_photos_refine_a_class_in_place(zoo):
    assert zoo.enroll("ant", [photo("a4"), photo("a5")]) == 2
    assert zoo.names == ("ant", "bee", "鹿")
    np.testing.assert_allclose(zoo.prototypes[0].numpy(), direction(zoo.photos("ant")), atol=1e-7)
    assert zoo.info("ant").photos == 5


def test_a_zero_mean_is_near_to_nothing(zoo):
    """Opposite features leave no direction; the class is then near to none, and nothing is NaN."""
    zoo.enroll("void", [photo("v1", [1.0] * DIM), photo("v2", [-1.0] * DIM)])
    assert zoo.scores(torch.eye(DIM))[:, 3].tolist() == [0.0] * DIM
    assert zoo.scores(torch.zeros(1, DIM)).tolist() == [[0.0] * 4]


def test_very_long_and_very_short_features():
    gallery = Gallery(2)
    gallery.enroll("long", [photo("1", [3e38, 3e38]), photo("2", [3e38, 3e38])])
    gallery.enroll("short", [photo("1", [1e-38, 0.0])])
    np.testing.assert_allclose(gallery.prototypes.numpy(), [[0.5**0.5, 0.5**0.5], [1.0, 0.0]], atol=1e-6)


@given(st.integers(0, 12), st.integers(1, 30), st.integers(1, 30), st.integers(0, 2**31))
def test_scores_and_nearest_as_scikit_learn_sees_them(count, classes, k, seed):
    random = torch.Generator().manual_seed(seed)
    gallery = Gallery(DIM)
    for number in range(classes):
        gallery.enroll(f"class {number}", [photo("1", torch.randn(DIM, generator=random))])
    features = torch.randn(count, DIM, generator=random)
    cosines, indices = gallery.nearest(features, k)
    assert cosines.shape == indices.shape == (count, min(k, classes))
    if count:
        raw = np.stack([gallery.photos(name)[0].feature.double().numpy() for name in gallery.names])
        expected = cosine_similarity(features.double().numpy(), raw)
        np.testing.assert_allclose(gallery.scores(features).numpy(), expected, atol=1e-6)
        np.testing.assert_allclose(cosines.numpy(), -np.sort(-expected, axis=1)[:, :k], atol=1e-6)
        np.testing.assert_allclose(cosines.numpy(), np.take_along_axis(expected, indices.numpy(), axis=1), atol=1e-6)


def test_nearest_in_pieces(zoo, monkeypatch):
    features = torch.randn(10, DIM, generator=torch.Generator().manual_seed(1))
    whole = zoo.nearest(features, 2)
    monkeypatch.setattr(memory, "MAX_VALUES", 9)  # three rows at a time
    pieces = zoo.nearest(features, 2)
    torch.testing.assert_close(pieces[0], whole[0])
    assert torch.equal(pieces[1], whole[1])


def test_an_empty_gallery_answers():
    gallery = Gallery(DIM)
    assert (len(gallery), gallery.names, gallery.classes()) == (0, (), [])
    assert gallery.prototypes.shape == (0, DIM)
    assert gallery.scores(torch.ones(3, DIM)).shape == (3, 0)
    assert [part.shape for part in gallery.nearest(torch.ones(3, DIM), 2)] == [(3, 0), (3, 0)]
    features, labels = gallery.features()
    assert features.shape == (0, DIM)
    assert labels.shape == (0,)


def test_an_enrollment_seldom_copies_the_others():
    """A thousand classes are copied a few times, not a thousand times."""
    gallery = Gallery(DIM)
    moves, before = 0, None
    for number in range(1000):
        gallery.enroll(str(number), [photo("x")])
        moves += gallery.prototypes.data_ptr() != before
        before = gallery.prototypes.data_ptr()
    assert moves <= math.log2(1000)
    gallery.forget("500")
    before = gallery.prototypes.data_ptr()
    gallery.enroll("500", [photo("x")])
    assert gallery.prototypes.data_ptr() == before


def test_who_looked_before_a_class_was_forgotten_sees_the_old_matrix(zoo):
    old = zoo.prototypes
    before = old.clone()
    zoo.forget("ant")
    assert torch.equal(old, before)
    assert torch.equal(zoo.prototypes, before[1:])


# Photos


def test_the_same_photo_counts_once(zoo):
    before = zoo.prototypes.clone()
    assert zoo.enroll("ant", [photo("a2", [9.0] * DIM), photo("a1")]) == 0
    assert torch.equal(zoo.prototypes, before)
    assert zoo.enroll("ant", [photo("new"), photo("a3"), photo("new", [9.0] * DIM)]) == 1
    np.testing.assert_allclose(zoo.prototypes[0].numpy(), direction(zoo.photos("ant")), atol=1e-7)
    assert [each.digest for each in zoo.photos("ant")] == ["a1", "a2", "a3", "new"]
    assert torch.equal(zoo.photos("ant")[3].feature, photo("new").feature)


def test_a_photo_may_show_two_classes(zoo):
    assert zoo.enroll("bee", [photo("a1")]) == 1
    assert zoo.info("ant").photos == 3
    assert zoo.info("bee").photos == 2


def test_no_photo_makes_no_class(zoo):
    assert zoo.enroll("nobody", []) == 0
    assert "nobody" not in zoo
    assert len(zoo) == 3


def test_all_features_and_whose_they_are(zoo):
    features, labels = zoo.features()
    assert labels.tolist() == [0, 0, 0, 1, 2, 2]
    expected = [each.feature for name in zoo.names for each in zoo.photos(name)]
    assert torch.equal(features, torch.stack(expected))


def test_a_photo_keeps_a_feature_of_its_own(zoo):
    batch = torch.ones(2, DIM)
    zoo.enroll("cat", [photo("c1", batch[0])])
    batch.zero_()
    assert zoo.photos("cat")[0].feature.tolist() == [1.0] * DIM
    assert zoo.photos("cat")[0].feature.untyped_storage().nbytes() == 4 * DIM


def test_inference_mode_leaves_no_mark(zoo):
    with torch.inference_mode():
        zoo.enroll("cat", [photo("c1", torch.ones(DIM))])
        zoo = Gallery.from_snapshot(zoo.snapshot())
    zoo.enroll("cat", [photo("c2", torch.zeros(DIM))])
    zoo.forget("ant")
    assert zoo.enroll("ant", [photo("a1")]) == 1
    assert zoo.names == ("bee", "鹿", "cat", "ant")


@pytest.mark.parametrize("kind", [torch.float16, torch.float64, torch.bfloat16])
def test_features_of_other_kinds_become_float32(kind):
    gallery = Gallery(2)
    gallery.enroll("x", [Photo("1", torch.tensor([3.0, 4.0], dtype=kind, requires_grad=True), "", "")])
    assert gallery.photos("x")[0].feature.dtype == torch.float32
    torch.testing.assert_close(gallery.prototypes, torch.tensor([[0.6, 0.8]]))


@pytest.mark.parametrize("bad", [[math.nan] * DIM, [math.inf] + [0.0] * (DIM - 1)])
def test_what_is_not_finite_is_refused_and_changes_nothing(zoo, bad):
    before = Gallery.from_snapshot(zoo.snapshot())
    with pytest.raises(DataError, match=r"broken\.jpg: .* not finite"):
        zoo.enroll("ant", [photo("good"), photo("bad", bad, source="broken.jpg")])
    assert same(zoo, before)


def test_a_feature_of_another_network_is_refused_and_changes_nothing(zoo):
    before = Gallery.from_snapshot(zoo.snapshot())
    with pytest.raises(ValueError, match=r"feature of shape \(3,\), not \(5,\)"):
        zoo.enroll("cat", [photo("good"), photo("bad", [1.0, 2.0, 3.0])])
    assert same(zoo, before)


# Classes


def test_the_summary_of_a_class():
    gallery = Gallery(DIM)
    gallery.enroll("cat", [photo("1", source="b.jpg", added="2024-03-01T00:00:00Z")], origin="base")
    gallery.enroll("cat", [photo("2", source="a.jpg", added="2024-05-01T00:00:00Z")])
    gallery.enroll("cat", [photo("3", source="b.jpg", added="2024-04-01T00:00:00Z")])
    gallery.enroll("dog", [photo("1", source="c.jpg")])
    cat = ClassInfo("cat", 3, "base", "2024-03-01T00:00:00Z", "2024-05-01T00:00:00Z", ("b.jpg", "a.jpg"))
    dog = ClassInfo("dog", 1, "enrolled", "2024-05-01T10:00:00Z", "2024-05-01T10:00:00Z", ("c.jpg",))
    assert gallery.info("cat") == cat
    assert gallery.classes() == [cat, dog]


def test_forget_removes_every_trace():
    gallery = Gallery(DIM)
    gallery.enroll("ant", [photo("1" * 64, source="ant.jpg", thumbnail=b"ANT")])
    gallery.enroll("secret", [photo("2" * 64, [7.5] * DIM, "who.jpg", "1999-12-31T00:00:00Z", b"FACE")])
    gallery.enroll("bee", [photo("3" * 64, source="bee.jpg", thumbnail=b"BEE")])
    traces = (b"secret", b"2" * 64, b"who.jpg", b"1999", b"FACE", np.float32([7.5] * DIM).tobytes())

    def content():
        return b"".join(tensor.numpy().tobytes() for tensor in gallery.snapshot().values())

    assert all(trace in content() for trace in traces)
    gallery.forget("secret")
    assert not any(trace in content() for trace in traces)
    assert gallery.names == ("ant", "bee")
    np.testing.assert_allclose(gallery.prototypes[1].numpy(), direction(gallery.photos("bee")), atol=1e-7)
    gallery.enroll("bee", [photo("4" * 64)])
    np.testing.assert_allclose(gallery.prototypes[1].numpy(), direction(gallery.photos("bee")), atol=1e-7)


def test_an_unknown_class_is_named_with_a_guess(zoo, monkeypatch):
    zoo.enroll("red panda", [photo("1")])
    for ask in (zoo.forget, zoo.info, zoo.photos):
        with pytest.raises(UnknownClassError, match=r'no class "red pnada" among the 4 .*Did you mean "red panda"\?'):
            ask("red pnada")
    with pytest.raises(UnknownClassError) as caught:
        zoo.forget("giraffe")
    assert "Did you mean" not in str(caught.value)
    assert isinstance(caught.value, FscilError)
    monkeypatch.setattr(enrolled_classes, "MAX_GUESSES", 3)
    with pytest.raises(UnknownClassError, match=r"enrolled\.$"):
        zoo.forget("red pnada")


# Names


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("  red panda\n", "red panda"),
        ("Cafe\u0301", "Café"),
        ("鹿", "鹿"),
        ("خرگوش‌ها", "خرگوش‌ها"),  # with the joiner that Persian needs
        ("हिरण", "हिरण"),
        ("👩‍🚀", "👩‍🚀"),
        ("a/b", "a/b"),
        ("x" * 200, "x" * 200),
        ("e\u0301" * 200, "é" * 200),
        (" " * 500 + "y", "y"),
    ],
)
def test_one_spelling_of_a_name(given, kept):
    assert class_name(given) == kept
    gallery = Gallery(DIM)
    gallery.enroll(given, [photo("1")])
    gallery.enroll(kept, [photo("2")])
    assert gallery.names == (kept,)
    assert given in gallery
    assert gallery.info(given).photos == 2
    gallery.forget(given)
    assert kept not in gallery


@pytest.mark.parametrize("bad", ["", "  \t", "x" * 201, "a\nb", "a\x1b[31m", "a\0", "a\x7fb", "a\u2028b", "caf\udce9"])
def test_invalid_names(bad):
    gallery = Gallery(DIM)
    with pytest.raises(ClassNameError) as caught:
        gallery.enroll(bad, [photo("1")])
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()
    assert bad not in gallery
    assert 7 not in gallery
    assert len(gallery) == 0


@given(st.text(st.characters(exclude_categories=()), max_size=210))
def test_a_clean_name_is_clean(name):
    try:
        clean = class_name(name)
    except ClassNameError:
        return
    assert class_name(clean) == clean
    assert 1 <= len(clean) <= 200
    assert len(clean.splitlines()) == 1
    assert clean.encode().decode() == clean


# Snapshots and records


def test_a_snapshot_through_a_file(zoo, tmp_path):
    zoo.enroll("bee", [photo("b9", source="café.jpg", thumbnail=bytes(range(256)))])
    save_tensors(tmp_path / "gallery.safetensors", zoo.snapshot())
    found = Gallery.from_snapshot(load_tensors(tmp_path / "gallery.safetensors")[0])
    assert same(found, zoo)
    assert found.classes() == zoo.classes()
    assert [each.thumbnail for each in found.photos("bee")] == [b"", bytes(range(256))]
    assert found.photos("bee")[1].source == "café.jpg"
    assert found.info("ant").origin == "base"


def test_a_snapshot_of_nothing(tmp_path):
    save_tensors(tmp_path / "gallery.safetensors", Gallery(7).snapshot())
    found = Gallery.from_snapshot(load_tensors(tmp_path / "gallery.safetensors")[0])
    assert (len(found), found.dim) == (0, 7)


def test_a_gallery_from_a_snapshot_does_not_depend_on_it(zoo):
    snapshot = zoo.snapshot()
    found = Gallery.from_snapshot(snapshot)
    for tensor in snapshot.values():
        tensor.zero_()
    assert same(found, zoo)


def test_a_record_is_json_and_applies_once(zoo):
    twin = Gallery.from_snapshot(zoo.snapshot())
    photos = [photo("n1", thumbnail=b"\xff\xd8"), photo("n2", source="café.jpg")]
    record = json.loads(json.dumps(Gallery.record(" ant ", photos)))
    assert record["name"] == "ant"
    assert zoo.enroll("ant", photos) == 2
    apply_record(twin, record)
    assert same(twin, zoo)
    apply_record(twin, record)
    assert same(twin, zoo)
    assert twin.info("ant").origin == "base"


def test_a_renamed_class_keeps_its_place_and_photos(zoo):
    names, rows = zoo.names, zoo.prototypes.clone()
    photos = zoo.photos(names[0])
    zoo.rename(names[0], " Ameise ")
    assert zoo.names == ("Ameise", *names[1:])
    assert zoo.photos("Ameise") == photos
    assert torch.equal(zoo.prototypes, rows)
    zoo.rename("Ameise", "Ameise")
    with pytest.raises(ClassNameError, match="already"):
        zoo.rename("Ameise", names[1])
    with pytest.raises(UnknownClassError):
        zoo.rename(names[0], "other")
    zoo.rename("Ameise", names[0])
    assert zoo.names == names


def test_without_a_photo_a_class_is_what_it_would_be_had_it_never_had_it(zoo):
    twin = Gallery.from_snapshot(zoo.snapshot())
    zoo.enroll("new", [photo("n1"), photo("n2"), photo("n3")])
    twin.enroll("new", [photo("n1"), photo("n3")])
    zoo.remove_photo("new", "n2")
    assert same(zoo, twin)
    with pytest.raises(UnknownClassError, match="no photo"):
        zoo.remove_photo("new", "n2")
    zoo.remove_photo("new", "n1")
    zoo.remove_photo("new", "n3")
    twin.forget("new")
    assert same(zoo, twin)


def test_records_of_every_kind(zoo):
    twin, last = Gallery.from_snapshot(zoo.snapshot()), zoo.names[-1]
    for record in (
        Gallery.record("new", [photo("n1"), photo("n2")]),
        {"do": "remove", "name": "new", "digest": "n1"},
        {"do": "rename", "name": "new", "to": "newer"},
        {"do": "forget", "name": last},
    ):
        apply_record(twin, record)
    zoo.forget(last)
    zoo.enroll("newer", [photo("n2")])
    assert same(twin, zoo)


def test_a_record_of_the_future_is_refused(zoo):
    with pytest.raises(StoreError, match="Upgrade fscil"):
        apply_record(zoo, {"do": "merge", "name": "ant"})
