"""Accuracy, per class, confused pairs and share of unknown."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscil.classifier.checking import compare_labels
from fscil.errors import DataError, FscilWarning
from helpers import NAMES

TRUE = ["cat"] * 4 + ["dog"] * 2 + ["emu"] * 2
SAID = ["cat", "cat", "dog", None, "cat", "cat", None, "dog"]


def test_by_hand():
    found = compare_labels(TRUE, SAID, {"cat", "dog", "cow"}, ["x.jpg: bad"])
    assert [(each.name, each.photos, each.correct, each.unknown) for each in found.classes] == [
        ("cat", 4, 2, 1),
        ("dog", 2, 0, 0),
    ]
    assert [(each.name, each.photos, each.correct, each.unknown) for each in found.not_enrolled] == [("emu", 2, 1, 1)]
    assert found.confused == (("dog", "cat", 2), ("cat", "dog", 1), ("emu", "dog", 1))
    assert (found.photos, found.accuracy, found.unknown, found.rejected) == (6, 2 / 6, 1 / 6, 1 / 2)
    assert [each.accuracy for each in found.classes] == [0.5, 0.0]
    assert found.skipped == ("x.jpg: bad",)


def test_maybe_is_counted_whether_right_or_wrong():
    states = ["known", "maybe", "maybe", "unknown", "maybe", "known", "unknown", "maybe"]
    found = compare_labels(TRUE, SAID, {"cat", "dog"}, states=states)
    assert [(each.name, each.maybe) for each in (*found.classes, *found.not_enrolled)] == [
        ("cat", 2),
        ("dog", 1),
        ("emu", 1),
    ]
    assert found.maybe == 3 / 6
    assert compare_labels(["cat"], [None], set()).maybe is None


def test_nothing_enrolled_or_everything():
    assert compare_labels(["cat"], [None], set()).accuracy is None
    assert compare_labels(["cat"], [None], set()).unknown is None
    assert compare_labels(["cat"], [None], set()).rejected == 1.0
    assert compare_labels(["cat"], ["cat"], {"cat"}).rejected is None


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["a", "b", "c", None])), min_size=1))
def test_every_photo_is_accounted_for(pairs):
    truth, said = zip(*pairs, strict=True)
    found = compare_labels(truth, said, {"a", "b", "c"})
    known = [pair for pair in pairs if pair[0] != "d"]
    assert found.photos == len(known)
    assert sum(each.correct for each in found.classes) == sum(true == answer for true, answer in known)
    wrong = sum(count for _, _, count in found.confused)
    assert wrong == sum(answer is not None and answer != true for true, answer in pairs)
    assert [count for *_, count in found.confused] == sorted((count for *_, count in found.confused), reverse=True)


def test_a_classifier_is_checked_on_a_folder(classifier, images, tmp_path):
    folder = tmp_path / "check"
    for name in (NAMES[0], NAMES[9], NAMES[11]):
        shutil.copytree(images / name, folder / name)
    (folder / NAMES[0] / "bad.png").write_bytes(b"x")
    answers = [prediction.label for prediction in classifier.predict(sorted((images / NAMES[0]).iterdir()))]
    found = classifier.check(folder)
    assert [(each.name, each.photos, each.correct) for each in found.classes] == [
        (NAMES[0], 6, sum(label == NAMES[0] for label in answers))
    ]
    assert sorted(each.name for each in found.not_enrolled) == sorted([NAMES[9], NAMES[11]])
    assert found.rejected == 0.0  # no threshold yet
    assert len(found.skipped) == 1
    assert "bad.png" in found.skipped[0]


def test_loose_photos_cannot_be_checked(classifier, images):
    with pytest.raises(DataError, match="no photo in a class folder"):
        classifier.check(images / NAMES[0])


def test_folders_of_class_folders_are_noticed(classifier, images, tmp_path):
    for group, names in {"first": NAMES[:2], "second": NAMES[2:4]}.items():
        for name in names:
            shutil.copytree(images / name, tmp_path / group / name)
    with pytest.warns(FscilWarning, match=r"read as 2 classes, but their images lie in 4 folders below them"):
        classifier.check(tmp_path)


def test_photos_in_parts_of_a_class_folder_are_not_noticed(classifier, images, tmp_path):
    for name in NAMES[:2]:
        shutil.copytree(images / name, tmp_path / name)
        shutil.copytree(images / name, tmp_path / name / "more")
    assert len(classifier.check(tmp_path).classes) == 2  # a warning would be an error here
