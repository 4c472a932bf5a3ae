"""Photos held out by models of the others, against doing it by hand; and what fit tells of it."""

import shutil

import numpy as np
import pytest
import torch

from fscil import Classifier
from fscil.classifier.checking import compare_labels
from fscil.classifier.fit_check import FitCheck
from fscil.classifier.held_out import held_out_ratios, left_out_evidence
from fscil.errors import FscilWarning
from fscil.gallery import Gallery, Photo, TwoCovariance, TwoCovarianceRule
from helpers import SMALL_NETWORK

DIM, CLASSES, CONSTANTS = 12, 5, {"within_shrinkage": 0.3, "between_shrinkage": 0.4, "information_weight": 0.3}


def data(each=6):
    random = np.random.default_rng(0)
    centres = random.normal(size=(CLASSES, DIM)) * 2
    labels = np.repeat(np.arange(CLASSES), each)
    return torch.from_numpy(centres[labels] + random.normal(size=(len(labels), DIM))).float(), torch.from_numpy(labels)


def gallery_of(known, labels, rule=None):
    """Filled photo by photo; rule: by default that of the known photos."""
    gallery = Gallery(DIM, rule or TwoCovarianceRule(TwoCovariance.fit(known, labels, **CONSTANTS)))
    for number, (feature, label) in enumerate(zip(known, labels.tolist(), strict=True)):
        gallery.enroll(str(label), [Photo(str(number), feature, "", "2026-01-01")])
    return gallery


def scores(gallery, asked):
    return {int(name): column for name, column in zip(gallery.names, gallery.scores(asked).T, strict=True)}


def evidence(gallery, asked):
    return gallery.rule.unknown_score("log_ratio", gallery.scores(asked), gallery.counts).tolist()


def test_with_a_fold_for_each_photo_every_photo_is_left_out_alone():
    features, labels = data()
    found = held_out_ratios(features, labels, CONSTANTS, len(labels), quiet=True)
    assert torch.equal(found.labels, labels)
    for row in (0, 7, 29):
        others = torch.arange(len(labels)) != row
        gallery = gallery_of(features[others], labels[others])
        expected = scores(gallery, features[row : row + 1])
        assert found.ratios[row].tolist() == pytest.approx([float(expected[c]) for c in range(CLASSES)], abs=1e-3)
        assert [float(found.evidence[row])] == pytest.approx(evidence(gallery, features[row : row + 1]), abs=1e-3)


def test_classes_that_came_later_are_no_part_of_the_covariances():
    features, labels = data()
    old, first = labels < 3, 3
    held = held_out_ratios(features, labels, CONSTANTS, len(labels), quiet=True, estimated=first)
    left = left_out_evidence(features, labels, CONSTANTS, CLASSES, quiet=True, estimated=first)
    for row in (0, 29):
        others = torch.arange(len(labels)) != row
        rule = TwoCovarianceRule(TwoCovariance.fit(features[others & old], labels[others & old], **CONSTANTS))
        expected = scores(gallery_of(features[others], labels[others], rule), features[row : row + 1])
        assert held.ratios[row].tolist() == pytest.approx([float(expected[c]) for c in range(CLASSES)], abs=1e-3)
    out = labels == 1
    rule = TwoCovarianceRule(TwoCovariance.fit(features[old & ~out], labels[old & ~out], **CONSTANTS))
    expected = evidence(gallery_of(features[~out], labels[~out], rule), features[out])
    assert left[out].tolist() == pytest.approx(expected, abs=1e-3)


def test_a_class_of_one_photo_is_never_held_out():
    features, labels = data()
    keep = torch.tensor([row for row in range(len(labels)) if labels[row] != 2 or row == 12])
    found = held_out_ratios(features[keep], labels[keep], CONSTANTS, 4, quiet=True)
    assert sorted(set(found.labels.tolist())) == [0, 1, 3, 4]
    assert found.ratios.isfinite().all()
    assert held_out_ratios(features[:2], torch.tensor([0, 1]), CONSTANTS, 4, quiet=True) is None


def test_photos_of_a_class_that_is_left_out():
    features, labels = data()
    found = left_out_evidence(features, labels, CONSTANTS, CLASSES, quiet=True)
    for label in range(CLASSES):
        out = labels == label
        expected = evidence(gallery_of(features[~out], labels[~out]), features[out])
        assert found[out].tolist() == pytest.approx(expected, abs=1e-3)
    assert left_out_evidence(features[:12], labels[:12], CONSTANTS, 2, quiet=True) is None


def test_fit_tells_what_it_is_worth(images, tmp_path):
    """And of the same picture in two classes."""
    folder = shutil.copytree(images, tmp_path / "photos")
    first, second = sorted(path.name for path in folder.iterdir())[:2]
    shared = sorted((folder / first).iterdir())[0]
    shutil.copy(shared, folder / second / "again.png")
    said = []
    with pytest.warns(FscilWarning, match=rf"1 photo is in two classes: {second}/again\.png is also {first}/"):
        found = Classifier.fit(folder, settings=[*SMALL_NETWORK, "model.init=scratch"], quiet=True, say=said.append)
    report = found.fit_check
    assert report.check.photos == 73
    assert found.made["check"]["accuracy"] == report.check.accuracy
    assert 0 < report.check.accuracy <= 1
    rejected = [cost.rejected for cost in report.costs]
    accepted = [cost.accepted for cost in report.costs]
    assert [cost.threshold for cost in report.costs] == [0.3, 0.5, 0.7]
    assert rejected == sorted(rejected, reverse=True)
    assert accepted == sorted(accepted)
    assert said[-1] == report.verdict
    assert any(f"accuracy {report.check.accuracy:.1%}" in line for line in said)
    for true, label, count in report.check.confused[:1]:
        if count > 1:
            assert any(f"{true} is taken for {label} in {count} of" in line for line in said)


@pytest.mark.parametrize(
    ("known", "right", "said"),
    [
        (0.9, None, "No answer is known: do not rely on it yet"),
        (0.9, 0.5, "About 1 of 2 known answers is wrong: do not rely on it yet"),
        (0.9, 0.9, "About 1 of 10 known answers is wrong: look at what matters"),
        (0.9, 0.949, "About 1 of 20 known answers is wrong: look at what matters"),
        (0.5, 0.96, "This will do with a look at the doubtful ones: 96% of its known answers are right, but only 50%"),
        (0.9, 1.0, "This will do: 90% of photos get a known answer, 100% of these are right."),
    ],
)
def test_the_verdict_follows_from_the_figures(known, right, said):
    check = compare_labels(["a"], ["a"], ["a"])
    assert FitCheck(check, known, right, ()).verdict.startswith(said)
