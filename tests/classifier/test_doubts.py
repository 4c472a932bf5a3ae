"""Doubts about photos to enroll: made-up features, of which it is known what they show."""

from copy import deepcopy
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from fscil.classifier.decision import Decision
from fscil.classifier.doubts import Doubt, doubts
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
    assert str(message).startswith('"new" can hardly be distinguished from "class 3"')


def test_a_single_photo_of_a_known_class(model):
    (message,) = doubts(*model, "new", photos(5, 1, first=100))
    assert message.other == "class 5"
    assert '"class 5"' in str(message)


@pytest.mark.parametrize("alone", [False, True])
def test_a_photo_that_moves_is_not_compared_with_itself(model, alone):
    gallery, decision = model
    moving, wrong = photos(50, 1), photos(2, 0 if alone else 5, first=200)
    given = deepcopy(gallery)
    given.enroll("wrong", [*moving, *wrong])
    assert doubts(given, decision, "new", moving) == []
    (doubt,) = doubts(given, decision, "new", photos(3, 1))  # but with the rest of the class
    assert doubt.other == "class 3"


@pytest.mark.parametrize("count", [1, 2, 6])
def test_another_class_is_not_doubted(model, count):
    assert doubts(*model, "new", photos(50, count)) == []


def test_a_photo_of_something_else(model):
    stray = photos(60, 1)
    for name, given in (("new", [*photos(50, 5), *stray]), ("class 2", stray)):
        message = f'60-0.jpg: looks like none of the other photos of "{name}".'
        assert doubts(*model, name, given) == [Doubt("unlike", message, stray[0].digest)]
    assert doubts(*model, "class 2", photos(2, 3, first=100)) == []


def test_the_same_photos_again_raise_no_doubt(model):
    assert doubts(*model, "class 2", photos(2, 5)) == []
    assert doubts(*model, "new", []) == []


def test_by_cosine_there_are_none(model):
    assert doubts(model[0].under(COSINE), Decision(), "new", photos(3, 3, first=100)) == []


def test_nothing_is_like_anything_in_an_empty_gallery(model):
    gallery, decision = model
    assert doubts(Gallery(DIM, gallery.rule), decision, "new", photos(3, 3)) == []


def jpeg(values, quality=80):
    file = BytesIO()
    Image.fromarray(values).save(file, "JPEG", quality=quality)
    return file.getvalue()


def test_photos_that_are_nearly_the_same(model):
    """The thumbnails tell: another photo of the class has other areas that are bright."""
    pictures = np.random.default_rng(0).integers(0, 200, (3, 12, 16, 3), np.uint8).repeat(8, 1).repeat(6, 2)
    new = [replace(photo, thumbnail=jpeg(each)) for photo, each in zip(photos(40, 3), pictures, strict=True)]
    again = replace(new[1], digest="again", source="again.jpg", thumbnail=jpeg(pictures[1] + 30, quality=40))
    (found,) = doubts(*model, "new", [*new, again])
    assert (found.kind, found.photo, found.other) == ("duplicate", "again", new[1].digest)
    assert str(found) == f"again.jpg: is nearly the same photo as {new[1].source}, and teaches little more."
    by_cosine = model[0].under(COSINE)
    assert [each.kind for each in doubts(by_cosine, Decision(), "new", [*new, again])] == ["duplicate"]
    by_cosine.enroll("new", new)
    assert [each.photo for each in doubts(by_cosine, Decision(), "new", [again])] == ["again"]
    assert doubts(*model, "new", [new[0], new[0]]) == []  # the very same counts once


@pytest.mark.parametrize("damaged", [b"no picture", jpeg(np.full((8, 8, 3), 90, np.uint8), 80)[:100]])
def test_a_thumbnail_that_is_no_picture_is_like_no_other(model, damaged):
    """A model folder may come from anybody."""
    by_cosine, thumbnail = model[0].under(COSINE), jpeg(np.full((96, 96, 3), 90, np.uint8), 80)
    by_cosine.enroll("new", [replace(each, thumbnail=damaged) for each in photos(41, 2)])
    more = [replace(each, thumbnail=thumbnail) for each in photos(41, 2, first=2)]
    found = doubts(by_cosine, Decision(), "new", more)
    assert [(each.photo, each.other) for each in found] == [(more[1].digest, more[0].digest)]
