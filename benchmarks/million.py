"""A gallery of a million classes: accuracy against the number of directions, time of one query, recall of an index.

    python benchmarks/readout.py extract cub200 --set model.backbone=efficientnet_lite0 --data DIR --out cub.safetensors
    python benchmarks/million.py cub.safetensors --index --out table.md [--classes 1000000] [--directions 128]

Accuracy is measured on real photos. There are no real photos of a million classes: nearly all of those of the second
part are drawn from the two-covariance model of the real features, class by class and photo by photo, and rescaled as
real ones are; the real classes are among them. Queries are drawn photos and real ones.
Times are CPU seconds of one thread, so that other programs on the machine count little, and ratios of them.
"""

import argparse
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fscil.gallery import TwoCovariance, TwoCovarianceRule, index
from fscil.runtime.files import load_tensors, write_text

DIRECTIONS = (1280, 512, 256, 128, 64, 32)
BASE, SHOTS, DRAWS = 100, 5, 3
AT_ONCE = 20_000  # classes drawn at a time
QUERIES = 1000
CANDIDATES = (100, 200, 400)  # of an index, that are scored exactly
SHARES = (0.05, 0.1, 0.2, 0.4)  # of the lists that are looked through


def accuracies(parts: dict[str, Tensor]) -> list[str]:
    """All classes at once: the first BASE from all their training photos, the others from SHOTS."""
    labels, test_labels = parts["train_labels"], parts["test_labels"]
    base = labels < BASE
    lines = [
        "| directions | bytes of a class | base classes | 5-shot classes | all |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for dim in DIRECTIONS:
        model = TwoCovariance.fit(parts["train"][base], labels[base], dim=dim)
        mapped, queries = model.transform(parts["train"]), model.transform(parts["test"])
        found = torch.zeros(3, dtype=torch.float64)
        for draw in range(DRAWS):
            generator = torch.Generator().manual_seed(draw)
            chosen = []
            for label in labels.unique().tolist():
                rows = (labels == label).nonzero()[:, 0]
                few = rows[torch.randperm(len(rows), generator=generator)[:SHOTS]]
                chosen.append(rows if label < BASE else few)
            counts = torch.tensor([len(rows) for rows in chosen])
            means = torch.stack([mapped[rows].double().mean(0) for rows in chosen])
            right = (model.log_ratio(queries, means, counts).argmax(1) == test_labels).double()
            known = test_labels < BASE
            found += torch.stack([right[known].mean(), right[~known].mean(), right.mean()]) / DRAWS
        shown = " | ".join(f"{100 * value:.1f}" for value in found.tolist())
        lines.append(f"| {dim} | {4 * (dim + 1):,} | {shown} |")
    return lines


def drawn(model: TwoCovariance, centres: Tensor, generator: torch.Generator) -> Tensor:
    """(n, q) one photo of each class, as the model maps photos."""
    photos = centres + torch.randn(centres.shape, generator=generator)
    length = (photos.square() / (1 + model.psi).float()).mean(1, keepdim=True).sqrt()
    return photos / length if model.rescale else photos


@dataclass(frozen=True, eq=False)
class Population:
    """Classes in memory as a gallery has them, and queries with the class that a comparison with all names."""

    rows: Tensor  # (C, q + 1)
    counts: Tensor  # (C,)
    drawn: Tensor  # (n, q) mapped photos of drawn classes
    own: Tensor  # (n,) their classes
    real: Tensor  # (m, d) raw features of real test photos, whose classes are the last ones


def population(model: TwoCovariance, classes: int, parts: dict[str, Tensor]) -> Population:
    """Drawn classes of 1 to 5 photos, and after them the real classes, from SHOTS photos each."""
    generator = torch.Generator().manual_seed(0)
    rule, known = TwoCovarianceRule(model), len(parts["train_labels"].unique())
    rows, counts = torch.empty(classes, len(model.psi) + 1), torch.empty(classes, dtype=torch.int64)
    number, queries = classes - known, []
    own = torch.randperm(number, generator=generator)[:QUERIES].sort().values
    for at in range(0, number, AT_ONCE):
        size = min(AT_ONCE, number - at)
        centres = torch.randn(size, len(model.psi), generator=generator) * model.psi.sqrt().float()
        count = torch.randint(1, SHOTS + 1, (size,), generator=generator)
        total = torch.zeros(size, len(model.psi), dtype=torch.float64)
        for shot in range(1, SHOTS + 1):
            total += drawn(model, centres, generator).double() * (count >= shot)[:, None]
        rows[at : at + size], counts[at : at + size] = rule.rows(total, count), count
        mine = own[(own >= at) & (own < at + size)] - at
        queries.append(drawn(model, centres[mine], generator))
    for label in range(known):
        photos = parts["train"][parts["train_labels"] == label][:SHOTS]
        total = rule.embed(photos).double().sum(0)[None]
        rows[number + label] = rule.rows(total, torch.tensor([len(photos)]))[0]
        counts[number + label] = len(photos)
    some = torch.randperm(len(parts["test"]), generator=generator)[:QUERIES]
    return Population(rows, counts, torch.cat(queries), own, parts["test"][some])


class MappedRule(TwoCovarianceRule):
    """For features that are mapped already."""

    def embed(self, features: Tensor) -> Tensor:
        return features


def nearest(rule: TwoCovarianceRule, there: Population, features: Tensor) -> Tensor:
    """(n, d) features -> (n,) nearest of all classes, by the comparison that `fscil` makes."""
    parts = [rule.scores(part, there.rows, there.counts).argmax(1) for part in features.split(20)]
    return torch.cat(parts)


def cpu_seconds(action: Callable[[], object], repeats: int) -> float:
    """The least of several, of all threads together."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        found.append(time.process_time() - start)
    return min(found)


def network_seconds() -> float:
    """EfficientNet-lite0 on one photo of 224 pixels as the service runs it: in onnxruntime, if that is installed."""
    from fscil.classifier import Classifier

    classifier = Classifier.pretrained("cpu")
    image = torch.zeros(3, 224, 224)
    with torch.inference_mode():
        return cpu_seconds(lambda: classifier.encoder.encode([image]), 5)


def index_lines(rule: TwoCovarianceRule, there: Population, network: float) -> list[str]:
    """The index of `fscil` with more and less work: does it find the class that a comparison with all names?"""
    import faiss

    faiss.omp_set_num_threads(1)
    mapped = MappedRule(rule.model)
    truth = nearest(mapped, there, there.drawn), nearest(rule, there, there.real)
    start = time.process_time()
    found = index.ClassIndex(mapped, there.rows, there.counts)
    lines = [f"Built in {time.process_time() - start:.0f} CPU seconds, {found.lists} lists.", ""]
    lines += [
        "| lists looked through | candidates | recall@1, drawn photos | recall@1, real photos | milliseconds a query "
        "| of the network's time |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]

    def answer(by: TwoCovarianceRule, feature: Tensor) -> Tensor:
        """One photo alone: candidates, then their scores."""
        asked = rule.embed(feature) if by is rule else feature
        (rows,) = found.candidates(asked, there.rows, there.counts, 1)
        return rows[mapped.scores(asked, there.rows[rows], there.counts[rows]).argmax(1)]

    for share in SHARES:
        for index.CANDIDATES in CANDIDATES:
            found.probe(round(share * found.lists))
            recalls = [
                torch.cat([answer(by, each[None]) for each in features]).eq(right).double().mean()
                for by, features, right in ((mapped, there.drawn, truth[0]), (rule, there.real, truth[1]))
            ]
            some = there.real[:20]
            seconds = cpu_seconds(lambda some=some: [answer(rule, each[None]) for each in some], 3) / 20
            cells = f"{recalls[0]:.3f} | {recalls[1]:.3f} | {1000 * seconds:.1f} | {seconds / network:.2f}"
            lines.append(f"| {round(share * found.lists)} | {index.CANDIDATES} | {cells} |")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--classes", type=int, default=1_000_000)
    parser.add_argument("--directions", type=int, help="default: all")
    parser.add_argument("--accuracy", action="store_true", help="also accuracy against the number of directions")
    parser.add_argument("--index", action="store_true", help="also candidates from an index; needs faiss-cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts, _ = load_tensors(options.features)
    lines = []
    if options.accuracy:
        lines += ["## Accuracy against directions", "", *accuracies(parts), ""]
        print("\n".join(lines), flush=True)

    base = parts["train_labels"] < BASE
    model = TwoCovariance.fit(parts["train"][base], parts["train_labels"][base], dim=options.directions)
    rule, there = TwoCovarianceRule(model), population(model, options.classes, parts)
    one, twenty = (cpu_seconds(lambda n=n: nearest(rule, there, there.real[:n]), 3) / n for n in (1, 20))
    network = network_seconds()
    directions = len(model.psi)
    more = [
        f"## One query against {options.classes:,} classes, {directions} directions, exact",
        "",
        f"{platform.machine()}, torch {torch.__version__}, one thread, CPU time.",
        "",
        "| what | milliseconds a query | of the network's time for one photo |",
        "| --- | ---: | ---: |",
        f"| EfficientNet-lite0, 224 pixels, as served | {1000 * network:.1f} | 1 |",
        f"| one query alone | {1000 * one:.1f} | {one / network:.2f} |",
        f"| a batch of 20, each | {1000 * twenty:.1f} | {twenty / network:.2f} |",
        "",
        f"The rows are {there.rows.numel() * 4 / 2**30:.2f} GiB.",
        "",
    ]
    print("\n".join(more), flush=True)
    if options.index:
        more += ["## With FSCIL_INDEX=faiss", "", *index_lines(rule, there, network), ""]
    if options.out:
        write_text(options.out, "\n".join(lines + more))


if __name__ == "__main__":
    main()
