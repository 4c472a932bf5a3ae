"""Folders of ten classes, as a user has them: the two-covariance rule against the cosine rule, on frozen features.

    python benchmarks/readout.py extract cub200 --set model.backbone=efficientnet_lite0 --data DIR --out F.safetensors
    python benchmarks/photos.py F.safetensors [--draws 10] [--statistics 5,20] [--species random]
    python benchmarks/photos.py F.safetensors --directions

One half of the classes in the file gives statistics; of the other half ten random classes are enrolled per draw, and
ten more are unknown. --species order takes the first half of the file for statistics, which in CUB-200, sorted by name,
has other families of birds than the second half; --species random parts the classes anew for every draw. Photos are
enrolled from the training part, and test photos are asked. All constants and calibrations come from
`fscil.classifier.estimating.estimate` on photos that are not asked.

cosine: as models of schema 1 decide, the mean of the 5 photos nearest to the mean of all, "unknown" by the score
contrast. Right and accepted: share of known photos that are named rightly and accepted at the threshold which 5% of the
unknown photos pass; gain: of the ratio over the cosine, paired by draw. ECE: expected calibration error, "unknown"
included with a prior of one half, over the answers of all draws together: of the 500 answers of one draw, 15 bins would
show the chance of each more than the calibration. Prints Markdown.

--directions: what is lost if only the directions of largest between-class variance are kept. Training photos of the
first half of the classes: some with 24 photos each give the statistics and are enrolled, ten others from 5 or 1;
AUROC against ten more.
"""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from fscil.classifier.estimating import Estimate, estimate
from fscil.gallery import TwoCovariance, balanced_indices, cosine_scores
from fscil.gallery.choosing import start
from fscil.gallery.probability import Asked, calibration_error
from fscil.metrics import auroc, mean_and_interval
from fscil.openset import Evidence, contrast, threshold_at
from fscil.runtime.files import load_tensors
from fscil.runtime.text import count

WAY = 10
FALSE_ACCEPT = 0.05
OWN = 0  # statistics from the enrolled classes themselves
STATISTICS = ((5, 20), (20, 40), (100, 40), (OWN, 0))  # classes and photos of each
SHOTS = (5, 1)
FIGURES = ("accuracy", "AUROC", "right and accepted")
PRIORS = (0.5, 0.3, 0.1)  # of unknown
DIRECTIONS = (None, 512, 256, 128, 64)


@dataclass(frozen=True, eq=False)
class Photos:
    """All photos of the file: those of the training part come first."""

    features: Tensor
    labels: Tensor
    train: Tensor  # (N,) whether of the training part

    def of(self, label: int, train: bool | None = None) -> Tensor:
        """Rows of one class, in both parts or in one."""
        own = self.labels == label
        return (own if train is None else own & (self.train == train)).nonzero()[:, 0]


@dataclass(frozen=True, eq=False)
class Task:
    """One user's folder: photos to enroll and photos to ask, as rows; unknown ones have the label -1."""

    shots: list[Tensor]  # by class
    queries: Tensor
    target: Tensor


def part_classes(photos: Photos, at_random: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Labels of the classes that may give statistics, and of those that are enrolled or unknown."""
    classes = int(photos.labels.max()) + 1
    order = torch.randperm(classes, generator=generator) if at_random else torch.arange(classes)
    return order[: classes // 2], order[classes // 2 :]


def choose(classes: Tensor, number: int, generator: torch.Generator) -> list[int]:
    chosen: list[int] = classes[torch.randperm(len(classes), generator=generator)[:number]].tolist()
    return chosen


def draw_task(photos: Photos, classes: Tensor, shots: int, generator: torch.Generator) -> Task:
    enrolled, queries, target = [], [], []
    for place, label in enumerate(choose(classes, 2 * WAY, generator)):
        asked = photos.of(label, train=False)
        queries.append(asked)
        target += [place if place < WAY else -1] * len(asked)
        if place < WAY:
            own = photos.of(label, train=True)
            order = torch.randperm(len(own), generator=generator)
            enrolled.append(own[order[: shots or len(own)]])
    return Task(enrolled, torch.cat(queries), torch.tensor(target))


def statistics(photos: Photos, task: Task, labels: list[int], each: int) -> Estimate:
    """labels: of the classes that give them; none: the enrolled ones do."""
    if not labels:
        own = torch.arange(WAY).repeat_interleave(torch.tensor([len(rows) for rows in task.shots]))
        return estimate(photos.features[torch.cat(task.shots)], own)
    rows = torch.cat([photos.of(label)[:each] for label in labels])
    return estimate(photos.features[rows], photos.labels[rows])


def by_cosine(photos: Photos, task: Task) -> Tensor:
    means = []
    for rows in task.shots:
        own = photos.features[rows]
        means.append(own[balanced_indices(own, min(5, len(own)))].double().mean(0))
    return cosine_scores(photos.features[task.queries].double(), torch.stack(means))


def by_ratio(photos: Photos, task: Task, found: Estimate) -> tuple[Tensor, Tensor]:
    """(n, WAY) ratios and (n,) evidence of "known"."""
    model = found.rule.model
    means = torch.stack([model.transform(photos.features[rows]).double().mean(0) for rows in task.shots])
    counts = torch.tensor([len(rows) for rows in task.shots])
    ratios = model.log_ratio(model.transform(photos.features[task.queries]), means, counts)
    return ratios, found.rule.unknown_score(found.rule.default_score, ratios, counts)


def figures(scores: Tensor, certain: Tensor, target: Tensor) -> dict[str, float]:
    """certain: (n,) by which unknown is decided."""
    known = target >= 0
    right = scores.argmax(1)[known] == target[known]
    accepted = certain[known] >= threshold_at(certain[~known], FALSE_ACCEPT)
    return {
        "accuracy": float(right.double().mean()),
        "AUROC": auroc(certain[known].numpy(), certain[~known].numpy()),
        "right and accepted": float((right & accepted).double().mean()),
    }


def decisions(ratios: Tensor, evidence: Tensor, target: Tensor, found: Estimate) -> dict[str, float]:
    """What the probability of unknown does as a decision at several priors."""
    known = target >= 0
    right = ratios.argmax(1)[known] == target[known]
    result = {}
    for prior in PRIORS:
        accepted = evidence >= found.probability.threshold(WAY, prior)
        result[f"right {prior}"] = float((right & accepted[known]).double().mean())
        result[f"false {prior}"] = float(accepted[~known].double().mean())
    return result


def measure(
    photos: Photos, at_random: bool, classes: int, each: int, shots: int, draws: int
) -> tuple[list[dict[str, float]], float]:
    """Figures of each draw, and the expected calibration error over all."""
    found, answers = [], []
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        others, own = part_classes(photos, at_random, generator)
        task = draw_task(photos, own, shots, generator)
        estimated = statistics(photos, task, choose(others, classes, generator), each)
        cosines = by_cosine(photos, task)
        old = figures(cosines, contrast(Evidence(cosines)), task.target)
        ratios, evidence = by_ratio(photos, task, estimated)
        new = figures(ratios, evidence, task.target)
        row = {f"cosine {name}": value for name, value in old.items()} | {f"ratio {name}": new[name] for name in new}
        found.append(row | decisions(ratios, evidence, task.target, estimated))
        answers.append(([Asked(ratios, task.target, evidence)], estimated.probability))
    return found, calibration_error(answers)


def directions(photos: Photos, draws: int = 3) -> None:
    """For each number of classes and of directions: accuracy on the classes of the statistics / on the ten / AUROC."""
    generator = torch.Generator().manual_seed(0)
    features, labels = photos.features, photos.labels
    print("| classes | directions | 1-shot | 5-shot |\n|---:|---:|---|---|", flush=True)
    for classes in (5, 15, 40, 80):
        found: dict[int | None, list[list[float]]] = {dim: [] for dim in DIRECTIONS}
        for _ in range(draws):
            order = torch.randperm((int(labels.max()) + 1) // 2, generator=generator).tolist()
            parts = order[:classes], order[classes : classes + WAY], order[classes + WAY : classes + 2 * WAY]
            own, new, other = ([photos.of(label, train=True) for label in part] for part in parts)
            rows = torch.cat([each[:24] for each in own])
            for dim in DIRECTIONS:
                model = TwoCovariance.fit(features[rows], labels[rows], **asdict(start(classes)), dim=dim)
                figures = []
                for shots in sorted(SHOTS):
                    enrolled = [each[:24] for each in own] + [each[:shots] for each in new]
                    means = torch.stack([model.transform(features[each]).double().mean(0) for each in enrolled])
                    counts = torch.tensor([len(each) for each in enrolled])
                    asked = [
                        torch.cat([each[24:] for each in own]),
                        torch.cat([each[shots:] for each in new]),
                        torch.cat(other),
                    ]
                    ratios = [model.log_ratio(model.transform(features[each]), means, counts) for each in asked]
                    names = torch.tensor([*parts[0], *parts[1]])
                    for scores, each in zip(ratios[:2], asked, strict=False):
                        figures.append(float((names[scores.argmax(1)] == labels[each]).double().mean()))
                    figures.append(auroc(torch.cat(ratios[:2]).amax(1).numpy(), ratios[2].amax(1).numpy()))
                found[dim].append(figures)
        for dim, draws_found in found.items():
            means_found = [100 * sum(column) / draws for column in zip(*draws_found, strict=True)]
            cells = [" / ".join(f"{value:.1f}" for value in means_found[at : at + 3]) for at in (0, 3)]
            print(f"| {classes} | {dim or 'all'} | {cells[0]} | {cells[1]} |", flush=True)


def percent(values: list[float]) -> str:
    mean, interval = mean_and_interval([100 * value for value in values])
    return f"{mean:.1f}" if interval is None else f"{mean:.1f} ± {interval:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--statistics", help="numbers of classes, with commas; 0: the ten themselves")
    parser.add_argument("--species", choices=("order", "random"), default="order")
    parser.add_argument("--directions", action="store_true")
    options = parser.parse_args()
    tensors, _ = load_tensors(options.features)
    sizes = [len(tensors["train"]), len(tensors["test"])]
    photos = Photos(
        torch.cat([tensors["train"], tensors["test"]]),
        torch.cat([tensors["train_labels"], tensors["test_labels"]]),
        torch.arange(sum(sizes)) < sizes[0],
    )
    if options.directions:
        return directions(photos)
    columns = [f"{rule}: {name}" for rule in ("cosine", "ratio") for name in FIGURES]
    priors = [f"prior {prior}: right and accepted / false accepts" for prior in PRIORS]
    print("| statistics | enrolled | " + " | ".join(columns) + " | gain | ECE | " + " | ".join(priors) + " |")
    print("|---|---|" + "---:|" * (len(columns) + 2 + len(priors)), flush=True)
    wanted = [int(part) for part in options.statistics.split(",")] if options.statistics else None
    for classes, each in STATISTICS:
        if wanted is not None and classes not in wanted:
            continue
        for shots in SHOTS if classes else (0,):
            rows, error = measure(photos, options.species == "random", classes, each, shots, options.draws)
            cells = [percent([row[column.replace(": ", " ")] for row in rows]) for column in columns]
            cells.append(percent([row["ratio right and accepted"] - row["cosine right and accepted"] for row in rows]))
            cells.append(f"{100 * error:.1f}")
            for prior in PRIORS:
                pair = [sum(row[f"{what} {prior}"] for row in rows) / len(rows) for what in ("right", "false")]
                cells.append(f"{100 * pair[0]:.0f} / {100 * pair[1]:.0f}")
            name = f"{classes} others x {each}" if classes else "the ten themselves, all photos"
            enrolled = count(shots, "photo") + " each" if shots else "all (30)"
            print(f"| {name} | {enrolled} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
