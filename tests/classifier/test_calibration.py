"""When to say unknown: shares counted by hand on the folder that the threshold came from."""

import shutil

import pytest

from fscil import Classifier, Thresholds
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


@pytest.mark.parametrize(("rule", "score"), [("by_cosine", "cosine"), ("by_cosine", "margin"), ("by_cosine", None),
                                             ("classifier", "log_ratio"), ("classifier", None)])  # fmt: skip
@pytest.mark.parametrize("false_accept", [0.0, 0.25, 0.5])
def test_a_flat_folder_is_all_unknown(request, flat, false_accept, rule, score):
    classifier = request.getfixturevalue(rule)
    found = classifier.calibrate(flat, false_accept, score)
    answers = classifier.predict(sorted(flat.iterdir()))
    accepted = sum(answer.label is not None for answer in answers)
    assert accepted <= false_accept * len(answers)
    assert accepted >= false_accept * len(answers) - 1  # and no stricter than need be
    assert (found.unknowns, found.knowns) == (16, 42)  # the cost: the gallery's own photos, each held out
    assert 0 <= found.false_reject <= 1
    assert found.score == (score or found.score)
    assert classifier.calibration == found


def test_in_class_folders_enrolled_names_tell_how_often_they_are_rejected(classifier, held_out):
    found = classifier.calibrate(held_out, 0.1)
    assert (found.unknowns, found.knowns) == (16, 32)
    answers = {name: classifier.predict(sorted((held_out / name).iterdir())) for name in NAMES}
    rejected = sum(answer.label is None for name in ENROLLED for answer in answers[name])
    assert found.false_reject == pytest.approx(rejected / 32)
    assert sum(answer.label is not None for name in OTHERS for answer in answers[name]) <= 1.6


def test_until_then_nothing_is_unknown_by_cosine(by_cosine, flat):
    answers = by_cosine.predict(sorted(flat.iterdir()))
    assert all(answer.label and answer.probability is None for answer in answers)
    assert all(answer.unknown_probability is None for answer in answers)


def test_without_a_threshold_the_probability_of_unknown_decides(classifier, held_out):
    paths = sorted(held_out.rglob("*.png"))
    for prior in (0.05, 0.5, 0.95):
        answers = classifier.predict(paths, unknown_prior=prior)
        assert [answer.label is None for answer in answers] == [answer.unknown_probability > 0.5 for answer in answers]
    unknown = [
        sum(answer.label is None for answer in classifier.predict(paths, 1, prior)) for prior in (0.05, 0.5, 0.95)
    ]
    assert unknown == sorted(unknown)
    assert unknown[0] < unknown[2]


@pytest.mark.parametrize("prior", [0, 1, -0.5, 7])
def test_an_impossible_prior(classifier, by_cosine, held_out, prior):
    paths = sorted((held_out / "ant").iterdir())
    with pytest.raises(ConfigError, match=r"an unknown prior of .* is not possible"):
        classifier.predict(paths, unknown_prior=prior)
    with pytest.raises(ConfigError, match="no probabilities"):
        by_cosine.predict(paths, unknown_prior=0.5)


def test_without_a_folder_each_class_is_left_out(classifier):
    with pytest.warns(FscilWarning, match="only 8 classes"):
        found = classifier.calibrate(false_accept=0.2)
    photos = sum(info.photos for info in classifier.classes())
    assert (found.unknowns, found.knowns) == (photos, photos)


def test_with_twenty_classes_there_is_no_warning(classifier, images):
    paths = [path for name in NAMES for path in sorted((images / name).iterdir())]
    for number in range(12):
        classifier.gallery.enroll(f"more {number}", classifier.photos(paths[5 * number : 5 * number + 2]))
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
    with pytest.raises(ConfigError, match=r'no score named "luck".*log_ratio'):
        classifier.calibrate(flat, score="luck")
    with pytest.raises(DataError, match="no class is enrolled"):
        Classifier(fitted[0].encoder).calibrate(flat)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.png").write_bytes(b"x")
    with pytest.raises(DataError, match="none of its 1 photos"):
        classifier.calibrate(tmp_path / "bad")
    assert classifier.calibration is None


@pytest.mark.parametrize(("known", "unknown"), [(0.5, 0.5), (0.35, 0.8), (0.0, 0.3), (1.0, 1.0)])
def test_two_thresholds_make_three_states(classifier, held_out, known, unknown):
    photos = sorted(held_out.glob("*/*"))
    classifier.thresholds = Thresholds(known, unknown)
    assert classifier.thresholds == Thresholds(known, unknown)
    for prior in (0.1, 0.3, 0.7):
        for found in classifier.predict(photos, unknown_prior=prior):
            assert found.probability is not None
            if found.unknown_probability > unknown:
                expected = "unknown"
            else:
                expected = "known" if found.probability >= known else "maybe"
            assert found.state == expected
            assert found.label == (None if expected == "unknown" else found.ranking[0][0])


def test_a_calibrated_threshold_is_shown_as_a_probability(classifier, held_out):
    classifier.calibrate(held_out, false_accept=0.2)
    shown = classifier.thresholds.unknown
    answers = classifier.predict(sorted(held_out.glob("*/*")))
    assert {found.state for found in answers} >= {"unknown"}
    for found in answers:
        assert (found.state == "unknown") == (found.unknown_probability > shown)


def test_without_probabilities_there_is_no_maybe(by_cosine, flat):
    assert {found.state for found in by_cosine.predict(sorted(flat.iterdir()))} == {"known"}
    by_cosine.calibrate(flat, false_accept=0.5)
    assert {found.state for found in by_cosine.predict(sorted(flat.iterdir()))} == {"known", "unknown"}
    with pytest.raises(ConfigError, match="fscil upgrade"):
        by_cosine.thresholds = Thresholds()


def test_photos_that_were_learned_are_not_unknown(classifier, images, tmp_path):
    shutil.copytree(images / NAMES[0], tmp_path / "strangers")
    with pytest.raises(DataError, match=r"6 photos that the model has learned cannot be unknown: .*png"):
        classifier.calibrate(tmp_path / "strangers")


def test_photos_that_were_learned_do_not_count_as_known(classifier, flat, images, tmp_path):
    """The cost is then that of a folder without them: the gallery's own photos, each held out."""
    alone = classifier.calibrate(flat, 0.25)
    folder = tmp_path / "both"
    shutil.copytree(images / NAMES[0], folder / NAMES[0])
    shutil.copytree(flat, folder / "others")
    with pytest.warns(FscilWarning, match="6 photos that the model has learned say nothing of new ones"):
        assert classifier.calibrate(folder, 0.25) == alone


def test_impossible_values_are_refused_before_photos_are_read(classifier, tmp_path):
    for wrong in (-0.1, 1, float("nan")):
        with pytest.raises(ConfigError, match="is not possible"):
            classifier.calibrate(tmp_path / "gone", false_accept=wrong)
    with pytest.raises(ConfigError, match="no score named"):
        classifier.calibrate(tmp_path / "gone", score="luck")
