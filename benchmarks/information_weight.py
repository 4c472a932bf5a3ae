"""How much of the information in a class's photos should count beside its ratio, where "unknown" is decided.

    python benchmarks/readout.py extract cub200 --set model.backbone=efficientnet_lite0 --data DIR --out F.safetensors
    python benchmarks/information_weight.py F.safetensors

Training photos of the base classes alone. Per draw, some classes give the statistics and are enrolled with 20 photos
each, others with a few, and photos of these and of classes that are not enrolled are asked. AUROC of known against
unknown, mean over the draws; naming does not depend on the weight. Prints Markdown.
"""

import argparse
from dataclasses import asdict, replace
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from fscil.gallery import TwoCovariance, TwoCovarianceRule
from fscil.gallery.choosing import start
from fscil.gallery.two_covariance import class_sums
from fscil.metrics import auroc
from fscil.runtime.files import load_tensors

MANY = 20  # photos of a class that gives statistics; what it has beyond them is asked
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4)
SETTINGS = (  # classes with many photos, with few, unknown ones; numbers of few photos; draws
    (5, 10, 25, (1, 3, 5), 8),
    (15, 10, 25, (1, 3, 5), 8),
    (25, 10, 25, (1, 3, 5), 8),
    (50, 25, 25, (1, 5), 6),
    (75, 10, 15, (1, 5), 4),
)


def aurocs(features: Tensor, photos: list[Tensor], sizes: tuple[int, int, int], few: int, draw: int) -> list[float]:
    """One for each weight. photos: rows of every class."""
    generator = torch.Generator().manual_seed(draw)
    order = torch.randperm(len(photos), generator=generator).tolist()
    many, enrolled, every = accumulate(sizes)
    shuffled = [photos[label][torch.randperm(len(photos[label]), generator=generator)] for label in order[:every]]
    counts = torch.tensor([MANY] * many + [few] * (enrolled - many))
    shown = torch.cat([rows[:count] for rows, count in zip(shuffled, counts.tolist(), strict=False)])
    labels = torch.arange(enrolled).repeat_interleave(counts)
    asked = torch.cat([rows[MANY:] for rows in shuffled])
    known = torch.cat([torch.full((len(rows) - MANY,), place < enrolled) for place, rows in enumerate(shuffled)])
    statistics = labels < many
    model = TwoCovariance.fit(features[shown[statistics]], labels[statistics], **asdict(start(many)))
    rule = TwoCovarianceRule(model)
    rows = rule.rows(class_sums(rule.embed(features[shown]).double(), labels, enrolled), counts)
    scores = rule.scores(features[asked], rows, counts)
    found = []
    for weight in WEIGHTS:
        evidence = TwoCovarianceRule(replace(model, information_weight=weight)).unknown_score(
            "log_ratio", scores, counts
        )
        found.append(auroc(evidence[known].numpy(), evidence[~known].numpy()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parts, _ = load_tensors(parser.parse_args().features)
    photos = [(parts["train_labels"] == label).nonzero()[:, 0] for label in range(sum(SETTINGS[-1][:3]))]
    print(f"| AUROC of unknown | {' | '.join(f'weight {weight:g}' for weight in WEIGHTS)} |")
    print(f"|---|{'---:|' * len(WEIGHTS)}")
    for many, few, unknown, shots, draws in SETTINGS:
        means = []
        for count in shots:
            found = [aurocs(parts["train"], photos, (many, few, unknown), count, draw) for draw in range(draws)]
            means.append(torch.tensor(found, dtype=torch.float64).mean(0).mul(100).tolist())
        cells = [" / ".join(f"{value:.1f}" for value in column) for column in zip(*means, strict=True)]
        title = f"{many} with {MANY} photos, {few} with {' / '.join(map(str, shots))}, {draws} draws"
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
