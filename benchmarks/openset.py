"""Which score separates known from unknown images best, and how well a threshold keeps the rate it was set for.

Three tables in Markdown for the runs given, each with the folder of its data:

    python benchmarks/openset.py runs/cifar=datasets runs/cub=datasets/CUB_200_2011 > openset-tables.md

Validation: base classes' training images alone; two thirds of the classes are taken as known, the others as unknown.
Test: after each session the test images of later sessions' classes are unknown, as in `fscil evaluate --openset`.
Calibration: the share of unknown images that a threshold meant to accept 5% of them does accept.
"""

import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fscil.features import FeatureCache
from fscil.gallery import balanced_indices, class_means, cosine_scores, leave_one_class_out
from fscil.methods import METHODS
from fscil.metrics import OpenSet, open_set
from fscil.openset import DEFAULT_SCORE, SCORES, Evidence, threshold_at
from fscil.protocol import Protocol
from fscil.runtime.allocator import tune_allocator
from fscil.training.base_training import load_base_network
from fscil.training.build import dataset_of, preprocess_of, protocol_of
from fscil.training.context import Context
from fscil.training.run_folder import Run

SHOTS = (5, 1)
SPLITS = 10
QUERIES = 50  # training images per class that are scored in a split
FALSE_ACCEPT = 0.05


@dataclass(frozen=True, eq=False)
class Features:
    """Of a whole data set, from the backbone of one run. Labels are class numbers by arrival."""

    name: str
    protocol: Protocol
    train: Tensor  # (n, d)
    train_labels: Tensor  # (n,)
    test: Tensor
    test_labels: Tensor
    few: dict[tuple[int, int], Tensor]  # shots, session -> rows of train

    @classmethod
    def of(cls, folder: Path, data: Path) -> "Features":
        run = Run.open(folder)
        config = run.config()
        context = Context.on("cpu")
        network = load_base_network(METHODS[config.method].base_recipe(config), run, context)
        extract = FeatureCache(network.backbone, preprocess_of(config), context.device)
        dataset = dataset_of(config, data)
        protocol = protocol_of(config, dataset)
        order = protocol.seen(protocol.sessions)
        train, test = dataset.train.of_classes(order).relabel(order), dataset.test.of_classes(order).relabel(order)
        few = {}
        for shots in SHOTS:
            for session in range(1, protocol.sessions + 1):
                drawn = protocol.with_shots(shots).samples(dataset.train.labels, session, config.protocol.draw)
                few[shots, session] = torch.from_numpy(np.flatnonzero(np.isin(train.rows, dataset.train.rows[drawn])))
        labels = [torch.from_numpy(images.labels) for images in (train, test)]
        return cls(folder.name, protocol, extract(train), labels[0], extract(test), labels[1], few)

    def nearest(self, label: int, k: int) -> Tensor:
        """Rows of a class's k training images nearest to its mean."""
        rows = torch.where(self.train_labels == label)[0]
        return rows[balanced_indices(self.train[rows], k)]


def scaled(cosines: Tensor, means: Tensor) -> Tensor:
    """A per-class scaled distance (z-norm of speaker verification): how far beyond the cosines of the other prototypes
    to the nearest one is the image's cosine to it, in their standard deviations?"""
    best, nearest = cosines.max(1)
    between = cosine_scores(means, means)
    others = between[~torch.eye(len(between), dtype=torch.bool)].view(len(between), -1)
    return (best - others.mean(1)[nearest]) / others.std(1)[nearest]


def scores(features: Tensor, means: Tensor) -> dict[str, Tensor]:
    """(n, d) features and (C, d) prototypes -> every score, (n,) each."""
    cosines = cosine_scores(features, means)
    seen = Evidence(cosines)
    return {**{name: score(seen) for name, score in SCORES.items()}, "scaled (z-norm)": scaled(cosines, means)}


def figures(means: Tensor, known: Tensor, labels: Tensor, unknown: Tensor) -> dict[str, OpenSet]:
    """Every score by (C, d) prototypes, from features of known and unknown images and the labels of the known."""
    correct = (cosine_scores(known, means).argmax(1) == labels).numpy()
    near, far = scores(known, means), scores(unknown, means)
    return {name: open_set(near[name].numpy(), correct, far[name].numpy()) for name in near}


def validation(features: Features, shots: int) -> list[dict[str, OpenSet]]:
    """Half of the pseudo-known classes have the mean of their most typical images, as base classes do, half of any."""
    labels, base = features.train_labels, features.protocol.base_classes
    found = []
    for split in range(SPLITS):
        random = np.random.default_rng(split)
        shuffled = random.permutation(base)
        known, unknown = shuffled[: base * 2 // 3], shuffled[base * 2 // 3 :]
        means, queries = [], {}
        for place, label in enumerate(shuffled):
            rows = torch.where(labels == int(label))[0][random.permutation(int((labels == int(label)).sum()))]
            gallery = features.nearest(int(label), shots) if place < len(known) // 2 else rows[:shots]
            if place < len(known):
                means.append(features.train[gallery].mean(0))
            queries[int(label)] = rows[~torch.isin(rows, gallery)][:QUERIES]
        near, far = [torch.cat([queries[int(label)] for label in part]) for part in (known, unknown)]
        places = torch.cat([torch.full((len(queries[int(label)]),), place) for place, label in enumerate(known)])
        found.append(figures(torch.stack(means), features.train[near], places, features.train[far]))
    return found


def galleries(features: Features, shots: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """After each session that others follow: its number, and rows of train and labels of the gallery's photos."""
    rows = [features.nearest(label, shots) for label in range(features.protocol.base_classes)]
    for session in range(features.protocol.sessions):
        if session:
            rows.append(features.few[shots, session])
        photos = torch.cat(rows)
        yield session, photos, features.train_labels[photos]


def test(features: Features, shots: int) -> list[dict[str, OpenSet]]:
    """Before the first session a base class is the mean of all its images, as in `fscil evaluate`."""
    found = []
    for session, rows, labels in galleries(features, shots):
        classes = len(features.protocol.seen(session))
        if not session:
            rows = torch.where(features.train_labels < classes)[0]
            labels = features.train_labels[rows]
        means = class_means(features.train[rows], labels, classes)
        seen = features.test_labels < classes
        found.append(figures(means, features.test[seen], features.test_labels[seen], features.test[~seen]))
    return found


def calibration(features: Features, shots: int, score: str) -> dict[str, list[tuple[float, float]]]:
    """By way of calibration: (share of unknown accepted, share of known rejected) after each session.

    The unknown are test images of every other later class; those of the rest calibrate where real unknowns do.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    first: float | None = None
    for session, rows, labels in galleries(features, shots):
        classes = len(features.protocol.seen(session))
        means = class_means(features.train[rows], labels, classes)
        scored = SCORES[score](Evidence(cosine_scores(features.test, means)))
        seen, even = features.test_labels < classes, features.test_labels % 2 == 0
        known, unknown, held_out = scored[seen], scored[~seen & even], scored[~seen & ~even]
        left_out = threshold_at(leave_one_class_out(features.train[rows], labels, score)[1], FALSE_ACCEPT)
        real = threshold_at(held_out, FALSE_ACCEPT)
        first = real if first is None else first
        ways = {
            "leaving one class out": left_out,
            "unknown images": real,
            "unknown images, once, before session 1": first,
        }
        for way, threshold in ways.items():
            accepted, rejected = (unknown >= threshold).float().mean(), (known < threshold).float().mean()
            found.setdefault(way, []).append((float(accepted), float(rejected)))
    return found


def table(title: str, columns: list[str], rows: dict[str, list[tuple[float, ...]]]) -> str:
    """Percentages; one group of cells per column."""
    lines = [f"### {title}", "", f"| | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for name, cells in rows.items():
        lines.append(f"| {name} | {' | '.join(' / '.join(f'{100 * part:.1f}' for part in cell) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    tune_allocator()
    runs = [Features.of(*map(Path, pair.split("=", 1))) for pair in sys.argv[1:]]
    columns = [f"{features.name}, {shots}-shot" for features in runs for shots in SHOTS]
    for title, measure in (
        (f"Validation: mean of {SPLITS} splits", validation),
        ("Test: mean over sessions", test),
    ):
        rows: dict[str, list[tuple[float, ...]]] = {}
        for features in runs:
            for shots in SHOTS:
                found = measure(features, shots)
                for score in found[0]:
                    mean = np.mean([astuple(each[score]) for each in found], 0)
                    rows.setdefault(score, []).append(tuple(mean))
        everywhere = {score: [*cells, tuple(np.mean(cells, 0))] for score, cells in rows.items()}
        print(table(f"{title}. AUROC / FPR95 / OSCR", [*columns, "mean"], everywhere))
    for score in ("cosine", DEFAULT_SCORE):
        rows = {}
        for features in runs:
            for shots in SHOTS:
                for way, pairs in calibration(features, shots, score).items():
                    rows.setdefault(way, []).append(tuple(np.mean(pairs, 0)))
        wanted = f"{100 * FALSE_ACCEPT:.0f}% of the unknown wanted"
        print(table(f'Calibration of "{score}": unknown accepted ({wanted}) / known rejected', columns, rows))


if __name__ == "__main__":
    main()
