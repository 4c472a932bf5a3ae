"""Negative examples of a class: what they refuse, against a loop over the definition, and how they come and go."""

import json

import numpy as np
import pytest
import torch

from fscil.errors import DataError, StoreError, UnknownClassError
from fscil.gallery import COSINE, Gallery, Photo, TwoCovariance, TwoCovarianceRule, apply_record

DIM, CLASSES, SHOTS = 8, 5, 6


def made(mean, seed):
    random = np.random.default_rng(seed)
    return torch.from_numpy(mean + random.normal(0, 0.6, DIM)).abs().float()


def photo(feature, digest):
    return Photo(digest, feature, f"{digest}.jpg", "2026-01-01T00:00:00+00:00", digest.encode())


MEANS = np.random.default_rng(0).uniform(0, 4, (CLASSES + 3, DIM))
TRAIN = torch.stack([made(MEANS[label], [label, shot]) for label in range(CLASSES) for shot in range(SHOTS)])
RULE = TwoCovarianceRule(TwoCovariance.fit(TRAIN, torch.arange(CLASSES).repeat_interleave(SHOTS)))
QUERIES = torch.stack([made(MEANS[label], [label, 100 + shot]) for label in range(len(MEANS)) for shot in range(20)])


def gallery_of(rule):
    gallery = Gallery(DIM, rule)
    for label in range(CLASSES):
        photos = [photo(TRAIN[label * SHOTS + shot], f"{label}-{shot}") for shot in range(SHOTS)]
        gallery.enroll(f"class {label}", photos)
    return gallery


def negatives_of(gallery):
    """What looks most like a class without being of it: two for one class, one for another."""
    strange = QUERIES[20 * CLASSES :]
    order = gallery.scores(strange)[:, 1].argsort(descending=True).tolist()
    return {
        "class 1": [photo(strange[order[0]], "no 1"), photo(strange[order[9]], "no 2")],
        "class 3": [photo(strange[int(gallery.scores(strange)[:, 3].argmax())], "no 3")],
    }


def score(rule, feature, photos):
    """Of one image against one class, alone."""
    alone = Gallery(DIM, rule)
    alone.enroll("it", photos)
    return float(alone.scores(feature[None])[0, 0])


@pytest.mark.parametrize("rule", [COSINE, RULE], ids=["cosine", "two_covariance"])
def test_refused_where_a_negative_example_fits_better(rule):
    gallery = gallery_of(rule)
    wrong = negatives_of(gallery)
    for name, photos in wrong.items():
        assert gallery.reject(name, photos) == len(photos)
    refused = gallery.refused(QUERIES, gallery.scores(QUERIES))
    for row, feature in enumerate(QUERIES):
        for column, name in enumerate(gallery.names):
            own = score(rule, feature, gallery.photos(name))
            expected = any(
                score(rule, feature, [each]) > max(own, 0) or torch.equal(feature, each.feature)
                for each in wrong.get(name, ())
            )
            assert bool(refused[row, column]) == expected, (row, name)
    assert 0 < int(refused.sum()) < refused.numel() / 4


def test_the_very_photo_is_refused_however_well_it_fits():
    """A class of many photos outweighs one: the example itself is refused all the same."""
    gallery = Gallery(DIM, RULE)
    feature = TRAIN[0]
    gallery.enroll("many", [photo(feature + 1e-4 * shot, f"{shot}") for shot in range(40)])
    gallery.reject("many", [photo(feature, "not this")])
    scores = gallery.scores(feature[None])
    assert scores[0, 0] > score(RULE, feature, [photo(feature, "x")])
    assert gallery.refused(feature[None], scores).tolist() == [[True]]


def test_without_negatives_nothing_is_computed_and_nothing_is_written():
    gallery = gallery_of(RULE)
    before = gallery.snapshot()
    assert gallery.refused(QUERIES, gallery.scores(QUERIES)) is None
    gallery.reject("class 1", [photo(QUERIES[0], "no")])
    assert gallery.negative_count == 1
    gallery.remove_negative("class 1", "no")
    assert gallery.refused(QUERIES, gallery.scores(QUERIES)) is None
    after = gallery.snapshot()
    assert before.keys() == after.keys() == {"features", "thumbnails", "offsets", "classes"}
    assert all(torch.equal(before[key], after[key]) for key in before)


def kept(gallery):
    return {name: [each.digest for each in gallery.negatives(name)] for name in gallery.names}


def test_through_a_snapshot_records_and_another_rule():
    gallery = gallery_of(COSINE)
    replayed = gallery_of(COSINE)
    for name, photos in negatives_of(gallery).items():
        gallery.reject(name, photos)
        for _ in range(2):  # a second time changes nothing
            apply_record(replayed, json.loads(json.dumps(Gallery.record(name, photos, "reject"))))
    assert kept(gallery) == kept(replayed)
    read = Gallery.from_snapshot(gallery.snapshot(), RULE)
    other = gallery.under(RULE)
    for each in (read, other):
        assert kept(each) == kept(gallery)
        assert [photo.thumbnail for photo in each.negatives("class 1")] == [b"no 1", b"no 2"]
        scores = each.scores(QUERIES)
        assert torch.equal(each.refused(QUERIES, scores), other.refused(QUERIES, scores))
    apply_record(replayed, {"do": "remove_negative", "name": "class 1", "digest": "no 1"})
    assert kept(replayed)["class 1"] == ["no 2"]


def test_they_go_with_their_class_and_with_a_change_of_mind():
    gallery = gallery_of(COSINE)
    for name, photos in negatives_of(gallery).items():
        gallery.reject(name, photos)
    gallery.rename("class 1", "first")
    assert kept(gallery)["first"] == ["no 1", "no 2"]
    gallery.enroll("first", gallery.negatives("first")[:1])
    assert kept(gallery)["first"] == ["no 2"]
    gallery.enroll("class 2", gallery.negatives("first"))  # no contradiction
    assert kept(gallery)["first"] == ["no 2"]
    gallery.forget("first")
    gallery.forget("class 0")  # the columns of later classes move
    assert kept(gallery) == {"class 2": [], "class 3": ["no 3"], "class 4": []}
    assert gallery.refused(QUERIES, gallery.scores(QUERIES)).any(0).tolist() == [False, True, False]


def test_what_cannot_be_a_negative_example():
    gallery = gallery_of(COSINE)
    with pytest.raises(UnknownClassError, match="no class"):
        gallery.reject("nothing", [photo(QUERIES[0], "a")])
    with pytest.raises(DataError, match="was learned from this photo"):
        gallery.reject("class 1", [photo(QUERIES[0], "a"), gallery.photos("class 1")[0]])
    with pytest.raises(DataError, match="not finite"):
        gallery.reject("class 1", [photo(QUERIES[0], "a"), photo(QUERIES[0] * torch.nan, "b")])
    with pytest.raises(UnknownClassError, match="no negative example"):
        gallery.remove_negative("class 1", "a")
    assert gallery.negative_count == 0


def test_a_forged_snapshot_is_refused():
    gallery = gallery_of(COSINE)
    gallery.reject("class 1", [photo(QUERIES[0], "no")])
    good = gallery.snapshot()

    def forged(old, new):
        content = good["negative_classes"].numpy().tobytes()
        assert old in content
        return {**good, "negative_classes": torch.tensor(list(content.replace(old, new)), dtype=torch.uint8)}

    missing = {key: value for key, value in good.items() if key != "negative_offsets"}
    of_nothing, learned = forged(b"class 1", b"nothing"), forged(b'"no"', b'"1-0"')
    shorter = {**good, "negative_features": good["negative_features"][:, 1:].contiguous()}
    infinite = {**good, "negative_features": good["negative_features"] * torch.inf}
    for bad in (missing, of_nothing, learned, shorter, infinite):
        with pytest.raises(StoreError):
            Gallery.from_snapshot(bad)
