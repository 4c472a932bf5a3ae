"""A user's folder of birds, from fit to unknown, with the defaults of today and with those of schema 1 (cosine).

    python benchmarks/birds.py CUB_200_2011 [--draws 5]

Per draw: `fit` on 15 species, 5 new ones enrolled from 1, 3 and 5 photos, photos of 5 species to calibrate "unknown"
and of 5 others to ask. Every photo is a file and passes the classifier as a user's does; none is used twice.
What `fit` and `calibrate` promise stands beside what was found. Prints Markdown.

cosine: what `fit` made in 0.1.0, from the same features: class means of the 5 photos nearest to the mean of all, photos
rejected by `contrast` at the threshold that 5% of the calibration photos pass.
"""

import argparse
import random
import shutil
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fscil import Classifier
from fscil.gallery import balanced_indices, cosine_scores
from fscil.metrics import mean_and_interval
from fscil.openset import Evidence, contrast, threshold_at

BASE, NEW, UNKNOWN = 15, 5, 5
FITTED = 40  # photos of a species that are fitted; the rest, about 20, is asked
SHOTS = (1, 3, 5)
FALSE_ACCEPT = 0.05
Row = dict[str, float]


@dataclass(frozen=True)
class Folders:
    """Photos of one draw by species."""

    fitted: dict[str, list[Path]]
    held_out: dict[str, list[Path]]
    new: dict[str, list[Path]]
    calibrating: list[Path]
    unknown: list[Path]


def draw(images: Path, seed: int) -> Folders:
    chance = random.Random(seed)
    species = chance.sample(sorted(images.iterdir()), BASE + NEW + 2 * UNKNOWN)
    photos = {each.name: chance.sample(sorted(each.glob("*.jpg")), len(list(each.glob("*.jpg")))) for each in species}
    names = list(photos)
    base, new = names[:BASE], names[BASE : BASE + NEW]
    first, second = names[BASE + NEW : BASE + NEW + UNKNOWN], names[BASE + NEW + UNKNOWN :]
    return Folders(
        {name: photos[name][:FITTED] for name in base},
        {name: photos[name][FITTED:] for name in base},
        {name: photos[name] for name in new},
        [path for name in first for path in photos[name]],
        [path for name in second for path in photos[name]],
    )


def copied(photos: dict[str, list[Path]] | list[Path], target: Path) -> Path:
    """Into class folders, or into one."""
    for name, paths in photos.items() if isinstance(photos, dict) else [("", photos)]:
        (target / name).mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.copy(path, target / name / path.name)
    return target


def flat(photos: dict[str, list[Path]]) -> tuple[list[Path], list[str]]:
    pairs = [(path, name) for name, paths in photos.items() for path in paths]
    return [path for path, _ in pairs], [name for _, name in pairs]


class Encoded:
    """Features of photos, each encoded once as `predict` does it."""

    def __init__(self, model: Classifier) -> None:
        self._model = model
        self._known: dict[Path, Tensor] = {}

    def __call__(self, paths: Sequence[Path]) -> Tensor:
        missing = [path for path in paths if path not in self._known]
        if missing:
            self._known |= zip(missing, self._model.features(missing), strict=True)
        return torch.stack([self._known[path] for path in paths])


def answered(model: Classifier, features: Tensor, names: Sequence[str] | None, what: str) -> Row:
    """Shares: named rightly, called unknown, known, and known of which right; without names, photos of no class."""
    answers = model.predict_features(features)
    row = {
        f"{what} unknown": sum(each.state == "unknown" for each in answers) / len(answers),
        f"{what} known": sum(each.state == "known" for each in answers) / len(answers),
    }
    if names is not None:
        right = [each.ranking[0][0] == name for each, name in zip(answers, names, strict=True)]
        row[f"{what} right"] = sum(right) / len(right)
    return row


def by_cosine(encoded: Encoded, folders: Folders, shots: int) -> Row:
    """The rule of 0.1.0 on the features of the same photos."""
    enrolled = {**folders.fitted, **{name: paths[:shots] for name, paths in folders.new.items()}}
    means = []
    for paths in enrolled.values():
        own = encoded(paths)
        means.append(own[balanced_indices(own, min(5, len(own)))].double().mean(0))
    prototypes, names = torch.stack(means), list(enrolled)

    def scores(paths: Sequence[Path]) -> Tensor:
        return cosine_scores(encoded(paths).double(), prototypes)

    threshold = threshold_at(contrast(Evidence(scores(folders.calibrating))), FALSE_ACCEPT)
    row = {"unknown accepted": _share(contrast(Evidence(scores(folders.unknown))) >= threshold)}
    for what, asked in (("base", folders.held_out), ("new", {n: p[max(SHOTS) :] for n, p in folders.new.items()})):
        paths, labels = flat(asked)
        found = scores(paths)
        right = torch.tensor([names[place] == name for place, name in zip(found.argmax(1), labels, strict=True)])
        row |= {f"{what} right": _share(right), f"{what} rejected": _share(contrast(Evidence(found)) < threshold)}
    return row


def _share(values: Tensor) -> float:
    return float(values.double().mean())


def measure(images: Path, seed: int, work: Path) -> dict[str, Row]:
    """Figures by table."""
    folders = draw(images, seed)
    root = copied(folders.fitted, work / "fitted")
    start = time.perf_counter()
    model = Classifier.fit(root, quiet=True, device="cpu")
    seconds = time.perf_counter() - start
    promised, encoded = model.made["check"], Encoded(model)
    paths, labels = flat(folders.held_out)
    held_out, unknown = encoded(paths), encoded(folders.unknown)
    found = answered(model, held_out, labels, "base")
    rejected = {threshold: share for threshold, share, _ in promised["unknown"]}[model.thresholds.unknown]
    promises = {
        "seconds of fit": seconds,
        "accuracy promised": promised["accuracy"],
        "accuracy found": found["base right"],
        "unknown promised": rejected,
        "unknown found": found["base unknown"],
        "known promised": promised["known"],
        "known found": found["base known"],
    }
    tables: dict[str, Row] = {"fit": promises}
    for shots in SHOTS:
        for name, paths in folders.new.items():
            model.enroll(name, paths[:shots])  # those of before are not counted twice
        paths, names = flat({name: paths[max(SHOTS) :] for name, paths in folders.new.items()})
        asked = encoded(paths)
        row = answered(model, held_out, labels, "base") | answered(model, asked, names, "new")
        row |= answered(model, unknown, None, "other species")
        tables[f"default, {shots}"] = row
        calibration = model.find_threshold(copied(folders.calibrating, work / "other"), FALSE_ACCEPT, None, True)
        before, model.calibration = model.calibration, calibration
        row = answered(model, held_out, labels, "base") | answered(model, asked, names, "new")
        row |= answered(model, unknown, None, "other species")
        row["rejected promised"] = calibration.false_reject or 0.0
        tables[f"calibrated, {shots}"], model.calibration = row, before
        tables[f"cosine, {shots}"] = by_cosine(encoded, folders, shots)
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="CUB-200-2011 in its official layout")
    parser.add_argument("--draws", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of classes that are hard to tell apart: birds are
    found: dict[str, list[Row]] = {}
    for seed in range(options.draws):
        with tempfile.TemporaryDirectory() as work:
            for table, row in measure(options.root / "images", seed, Path(work)).items():
                found.setdefault(table, []).append(row)
    for table, rows in found.items():
        print(f"\n{table}\n")
        for name in rows[0]:
            unit = 1 if name.startswith("seconds") else 100
            mean, interval = mean_and_interval([unit * row[name] for row in rows])
            print(f"- {name}: {mean:.1f}" + ("" if interval is None else f" ± {interval:.1f}"), flush=True)


if __name__ == "__main__":
    main()
