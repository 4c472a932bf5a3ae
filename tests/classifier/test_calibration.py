"""When to say unknown: shares counted by hand on the folder that the threshold came from."""

import shutil

import pytest

from fscil import Classifier
from fscil.errors import ConfigError, DataError, FscilWarning
from helpers import NAMES

ENROLLED, OTHERS = NAMES[:8], NAMES[8:]


@pytest.fixture
def flat(held_out, tmp_path):
    """Photos of classes that are not enrolled, in one folder."""
    folder = tmp_path / "flat"
    folder.mkdir()
    for name in OTHERS:
        for path in (held_out / name).iterdir():
            shutil.copy(path, folder / f"{name}-{path.name}")
    return folder


@pytest.mark.parametrize("score", ["cosine", "margin", None])
@pytest.mark.parametrize("false_accept", [0.0, 0.25, 0.5])
def test_a_flat_folder_is_all_unknown(classifier, flat, false_accept, score):
    found = classifier.calibrate(flat, false_accept, score)
    answers = classifier.predict(sorted(flat.iterdir()))
    accepted = sum(answer.label is not None for answer in answers)
    assert accepted <= false_accept * len(answers)
    assert accepted >= false_accept * len(answers) - 1  # and no stricter than need be
    assert (found.unknowns, found.knowns, found.false_reject) == (16, 0, None)
    assert found.score == (score or found.score)
    assert classifier.calibration == found


def test_in_class_folders_enrolled_names_tell_how_often_they_are_rejected(classifier, held_out):
    found = classifier.calibrate(held_out, 0.1)
    assert (found.unknowns, found.knowns) == (16, 32)
    answers = {name: classifier.predict(sorted((held_out / name).iterdir())) for name in NAMES}
    rejected = sum(answer.label is None for name in ENROLLED for answer in answers[name])
    assert found.false_reject == pytest.approx(rejected / 32)
    assert sum(answer.label is not None for name in OTHERS for answer in answers[name]) <= 1.6


def test_until_then_nothing_is_unknown(classifier, flat):
    assert all(answer.label for answer in classifier.predict(sorted(flat.iterdir())))


def test_without_a_folder_each_class_is_left_out(classifier):
    with pytest.warns(FscilWarning, match="only 8 classes"):
        found = classifier.calibrate(false_accept=0.2)
    photos = sum(info.photos for info in classifier.classes())
    assert (found.unknowns, found.knowns) == (photos, photos)


def test_with_twenty_classes_there_is_no_warning(classifier, images):
    paths = [path for name in NAMES for path in sorted((images / name).iterdir())]
    for number in range(12):
        classifier.enroll(f"more {number}", paths[5 * number : 5 * number + 2])
    assert classifier.calibrate().unknowns == sum(info.photos for info in classifier.classes())


def test_bad_photos_are_warned_of(classifier, flat):
    (flat / "bad.png").write_bytes(b"x")
    with pytest.warns(FscilWarning, match=r"1 photos cannot be read .*bad\.png"):
        assert classifier.calibrate(flat).unknowns == 16


def test_what_cannot_be_calibrated_with(classifier, fitted, images, tmp_path, flat):
    shutil.copytree(images / "ant", tmp_path / "known" / "ant")
    with pytest.raises(DataError, match="all 6 photos are of enrolled classes"):
        classifier.calibrate(tmp_path / "known")
    with pytest.raises(DataError, match="cannot be read"):
        classifier.calibrate(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r'no score named "luck".*cosine'):
        classifier.calibrate(flat, score="luck")
    with pytest.raises(DataError, match="no class is enrolled"):
        Classifier(fitted[0].encoder).calibrate(flat)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.png").write_bytes(b"x")
    with pytest.raises(DataError, match="none of its 1 photos"):
        classifier.calibrate(tmp_path / "bad")
    assert classifier.calibration is None
