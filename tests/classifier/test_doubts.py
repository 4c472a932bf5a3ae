"""Doubts about photos to enroll: made-up features, of which it is known what they show."""

import numpy as np
import pytest
import torch

from fscil.classifier.decision import Decision
from fscil.classifier.doubts import doubts
from fscil.classifier.estimating import estimate
from fscil.gallery import COSINE, Gallery, Photo

DIM, CLASSES, EACH = 40, 16, 12


def photos(label, count, first=0):
    """Of one class each: noise around a centre of its own."""
    centre = np.random.default_rng(label).normal(size=DIM) * 3
    found = []
    for number in range(first, first + count):
        feature = centre + np.random.default_rng([label, number]).normal(size=DIM)
        found.append(Photo(f"{label} {number}", torch.from_numpy(feature).float(), f"{label}-{number}.jpg", "2026"))
    return found


@pytest.fixture(scope="module")
def model():
    gallery = Gallery(DIM)
    for label in range(CLASSES):
        gallery.enroll(f"class {label}", photos(label, EACH))
    found = estimate(*gallery.features())
    return gallery.under(found.rule), Decision(probability=found.probability)


@pytest.mark.parametrize("count", [2, 3])
def test_more_photos_of_a_class_under_another_name(model, count):
    (message,) = doubts(*model, "new", photos(3, count, first=100))
    assert message.startswith('"new" can hardly be distinguished from "class 3"')


def test_a_single_photo_of_a_known_class(model):
    (message,) = doubts(*model, "new", photos(5, 1, first=100))
    assert '"class 5"' in message


@pytest.mark.parametrize("count", [1, 2, 6])
def test_another_class_is_not_doubted(model, count):
    assert doubts(*model, "new", photos(50, count)) == []


def test_a_photo_of_something_else(model):
    stray = photos(60, 1)
    assert doubts(*model, "new", [*photos(50, 5), *stray]) == [
        '60-0.jpg: looks like none of the other photos of "new".'
    ]
    assert doubts(*model, "class 2", stray) == ['60-0.jpg: looks like none of the other photos of "class 2".']
    assert doubts(*model, "class 2", photos(2, 3, first=100)) == []


def test_the_same_photos_again_raise_no_doubt(model):
    assert doubts(*model, "class 2", photos(2, 5)) == []
    assert doubts(*model, "new", []) == []


def test_by_cosine_there_are_none(model):
    assert doubts(model[0].under(COSINE), Decision(), "new", photos(3, 3, first=100)) == []


def test_nothing_is_like_anything_in_an_empty_gallery(model):
    gallery, decision = model
    assert doubts(Gallery(DIM, gallery.rule), decision, "new", photos(3, 3)) == []
