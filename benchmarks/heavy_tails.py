"""Student's t in place of the Gaussian in the two-covariance model: do heavier tails name or reject better?

    python benchmarks/readout.py extract cub200 --set model.backbone=efficientnet_lite0 --data DIR --out F.safetensors
    python benchmarks/heavy_tails.py F.safetensors [--draws 8]

An image is one of its class, or of a class never seen, by a multivariate t with the model's means and covariances and
so many degrees of freedom; lengths are not rescaled. With few degrees the ratio depends on the direction of an image
alone, as it nearly does where lengths are rescaled; with infinitely many it is that of the Gaussian.

Photos of the first half of the classes alone, which in the benchmark are base classes. Per draw and setting, some
classes give the statistics, and are enrolled too with MANY photos each in the settings that say so; others are enrolled
from a few, and photos of these and of further classes, which are unknown, are asked. Harmonic accuracy is that of
classes with many and with few photos, where there are both. Right and accepted: share of known photos that are named
rightly and accepted at the threshold which 5% of the unknown photos pass. Gains are paired with the first row. Prints
Markdown.
"""

import argparse
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from fscil.gallery import TwoCovariance
from fscil.gallery.choosing import start
from fscil.gallery.two_covariance import Constants, class_sums
from fscil.metrics import auroc, harmonic_accuracy, mean_and_interval
from fscil.openset import threshold_at
from fscil.runtime.files import load_tensors

MANY = 20
FALSE_ACCEPT = 0.05
SHOTS = (5, 1)
GAUSSIAN = math.inf


@dataclass(frozen=True)
class Rule:
    """degrees: of freedom. shrinkage: of the covariances within and between classes; none: the defaults."""

    degrees: float
    rescale: bool
    shrinkage: tuple[float, float] | None = None

    def __str__(self) -> str:
        density = "Gaussian" if self.degrees == GAUSSIAN else f"t, {self.degrees:g} degrees"
        lengths = "lengths rescaled" if self.rescale else "lengths as they are"
        shrunk = "" if self.shrinkage is None else ", shrinkage {:g} and {:g}".format(*self.shrinkage)
        return f"{density}, {lengths}{shrunk}"

    def constants(self, classes: int) -> Constants:
        usual = start(classes)
        within, between = self.shrinkage or (usual.within_shrinkage, usual.between_shrinkage)
        return Constants(within, between, self.rescale)


RULES = (
    Rule(GAUSSIAN, True),
    Rule(GAUSSIAN, False),
    *(Rule(degrees, False, shrinkage) for shrinkage in (None, (0.8, 0.5)) for degrees in (10, 200, 1000)),
)


@dataclass(frozen=True)
class Setting:
    statistics: int  # classes
    with_many: bool  # whether these classes are enrolled too
    few: int  # classes that are enrolled from a few photos
    unknown: int

    def __str__(self) -> str:
        return f"{self.few} classes{f' beside {self.statistics} with {MANY} photos' if self.with_many else ''}"


SETTINGS = (Setting(60, False, 10, 10), Setting(50, True, 25, 25))


def log_ratio(model: TwoCovariance, mapped: Tensor, means: Tensor, counts: Tensor, degrees: float) -> Tensor:
    """(n, q) mapped queries, (C, q) means of mapped photos, (C,) counts -> (n, C) of the densities by t."""
    centres, variances = model.posterior(means, counts)
    precision, apart = 1 / (1 + variances), 1 / (1 + model.psi)
    wide, size = mapped.double(), mapped.shape[1]
    near = wide.square() @ precision.T - 2 * wide @ (precision * centres).T + (precision * centres.square()).sum(1)
    far = (wide.square() @ apart)[:, None]
    determinants = (precision / apart).log().sum(1) / 2
    if degrees == GAUSSIAN:
        return determinants + (far - near) / 2
    return determinants + (degrees + size) / 2 * (torch.log1p(far / degrees) - torch.log1p(near / degrees))


def measure(features: Tensor, photos: list[Tensor], setting: Setting, shots: int, draw: int) -> list[dict[str, float]]:
    """Figures in percent, one for each rule. photos: rows of every class."""
    generator = torch.Generator().manual_seed(draw)
    order = torch.randperm(len(photos), generator=generator).tolist()
    shuffled = [photos[label][torch.randperm(len(photos[label]), generator=generator)] for label in order]
    source, rest = shuffled[: setting.statistics], shuffled[setting.statistics :]
    shown = [rows[:MANY] for rows in source]
    enrolled = [*(shown if setting.with_many else []), *(rows[:shots] for rows in rest[: setting.few])]
    asked = [*([rows[MANY:] for rows in source] if setting.with_many else []), *(rows[shots:] for rows in rest)]
    asked = asked[: len(enrolled) + setting.unknown]
    target = torch.cat(
        [torch.full((len(rows),), place if place < len(enrolled) else -1) for place, rows in enumerate(asked)]
    )
    counts = torch.tensor([len(rows) for rows in enrolled])
    labels = torch.arange(len(enrolled)).repeat_interleave(counts)
    given = torch.arange(len(shown)).repeat_interleave(torch.tensor([len(rows) for rows in shown]))
    known, old = target >= 0, target < (len(shown) if setting.with_many else 0)
    found = []
    for rule in RULES:
        model = TwoCovariance.fit(features[torch.cat(shown)], given, **asdict(rule.constants(len(shown))))
        mapped = model.transform(features[torch.cat(enrolled)]).double()
        means = class_sums(mapped, labels, len(enrolled)) / counts[:, None]
        ratios = log_ratio(model, model.transform(features[torch.cat(asked)]), means, counts, rule.degrees)
        right, evidence = ratios.argmax(1) == target, ratios.amax(1)
        accepted = evidence >= threshold_at(evidence[~known], FALSE_ACCEPT)
        figures = {"accuracy": float(right[known].double().mean())}
        if setting.with_many:
            parts = (float(right[part].double().mean()) for part in (known & old, known & ~old))
            figures["harmonic"] = harmonic_accuracy(*parts)
        figures["AUROC"] = auroc(evidence[known].numpy(), evidence[~known].numpy())
        figures["right and accepted"] = float((right & accepted)[known].double().mean())
        found.append({name: 100 * value for name, value in figures.items()})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--draws", type=int, default=8)
    given = parser.parse_args()
    tensors, _ = load_tensors(given.features)
    features, labels = (torch.cat([tensors[part + name] for part in ("train", "test")]) for name in ("", "_labels"))
    photos = [(labels == label).nonzero()[:, 0] for label in range((int(labels.max()) + 1) // 2)]
    for setting in SETTINGS:
        for shots in SHOTS:
            draws = [measure(features, photos, setting, shots, draw) for draw in range(given.draws)]
            names = list(draws[0][0])
            print(f"\n{setting}, {shots} photos each\n\n| | {' | '.join(names)} |\n|---|{'---:|' * len(names)}")
            for place, rule in enumerate(RULES):
                cells = []
                for name in names:
                    mean, _ = mean_and_interval([draw[place][name] for draw in draws])
                    gain, interval = mean_and_interval([draw[place][name] - draw[0][name] for draw in draws])
                    cells.append(f"{mean:.1f}" + (f" ({gain:+.1f} ± {interval or 0:.1f})" if place else ""))
                print(f"| {rule} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
