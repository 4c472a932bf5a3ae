"""Student's t in place of the Gaussian in the two-covariance model: do heavier tails name or reject better?

    python benchmarks/readout.py extract cub200 --set model.backbone=efficientnet_lite0 --data DIR --out F.safetensors
    python benchmarks/heavy_tails.py F.safetensors [--draws 6]

An image is one of its class, or of a class never seen, by a multivariate t with the model's means and covariances and
so many degrees of freedom; lengths are not rescaled. With few degrees the ratio depends on the direction of an image
alone, as it nearly does where lengths are rescaled; with infinitely many it is that of the Gaussian.

Photos of the first half of the classes alone, which in the benchmark are base classes. Per draw and setting, some
classes give the statistics and are enrolled, others are enrolled from a few photos, and further photos of these and of
classes that are not enrolled, which are unknown, are asked. Harmonic accuracy is that of classes with many and with few
photos. Right and accepted: share of known photos that are named rightly and accepted at the threshold which 5% of the
unknown photos pass. Gains are paired with the first row. Prints Markdown.
"""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from fscil.gallery import TwoCovariance, TwoCovarianceRule
from fscil.gallery.choosing import INFORMATION_WEIGHT
from fscil.gallery.two_covariance import Constants, class_sums
from fscil.metrics import auroc, harmonic_accuracy, mean_and_interval
from fscil.openset import threshold_at
from fscil.runtime.files import load_tensors

FALSE_ACCEPT = 0.05
SHOTS = (5, 1)


@dataclass(frozen=True)
class Rule:
    """degrees: of freedom. between: shrinkage of the covariance between classes."""

    degrees: float | None
    rescale: bool
    between: float

    def __str__(self) -> str:
        density = f"t, {self.degrees:g} degrees" if self.degrees else "Gaussian"
        return f"{density}, lengths {'rescaled' if self.rescale else 'as they are'}, {self.between:g}"

    @property
    def constants(self) -> Constants:
        return Constants(0.6, self.between, self.rescale, information_weight=INFORMATION_WEIGHT, degrees=self.degrees)


RULES = (
    Rule(None, True, 0.3),
    Rule(None, False, 0.3),
    *(Rule(degrees, False, 0.15) for degrees in (10, 50, 200)),
    Rule(50, False, 0.3),
)


@dataclass(frozen=True)
class Setting:
    statistics: int  # classes
    many: int  # photos of each
    few: int  # classes that are enrolled from a few photos
    unknown: int

    def __str__(self) -> str:
        return f"{self.few} classes beside {self.statistics} with {self.many} photos each"


SETTINGS = (Setting(32, 20, 15, 25), Setting(50, 20, 25, 25), Setting(75, 20, 10, 15), Setting(75, 10, 10, 15))


def measure(features: Tensor, photos: list[Tensor], setting: Setting, shots: int, draw: int) -> list[dict[str, float]]:
    """Figures in percent, one for each rule. photos: rows of every class."""
    generator = torch.Generator().manual_seed(draw)
    order = torch.randperm(len(photos), generator=generator).tolist()
    shuffled = [photos[label][torch.randperm(len(photos[label]), generator=generator)] for label in order]
    many, every = setting.statistics, setting.statistics + setting.few
    sizes = [setting.many] * many + [shots] * (len(order) - many)
    enrolled = [rows[:size] for rows, size in zip(shuffled, sizes, strict=True)][:every]
    asked = [rows[size:] for rows, size in zip(shuffled, sizes, strict=True)][: every + setting.unknown]
    target = torch.cat([torch.full((len(rows),), place if place < every else -1) for place, rows in enumerate(asked)])
    counts = torch.tensor(sizes[:every])
    labels = torch.arange(every).repeat_interleave(counts)
    known, old = target >= 0, target < many
    shown, statistics = features[torch.cat(enrolled)], labels < many
    found = []
    for each in RULES:
        model = TwoCovariance.fit(shown[statistics], labels[statistics], **asdict(each.constants))
        rule = TwoCovarianceRule(model)
        rows = rule.rows(class_sums(rule.embed(shown).double(), labels, every), counts)
        ratios = rule.scores(features[torch.cat(asked)], rows, counts)
        right, evidence = ratios.argmax(1) == target, rule.unknown_score(rule.default_score, ratios, counts)
        accepted = evidence >= threshold_at(evidence[~known], FALSE_ACCEPT)
        parts = (float(right[part].double().mean()) for part in (known & old, known & ~old))
        figures = {
            "accuracy": float(right[known].double().mean()),
            "harmonic": harmonic_accuracy(*parts),
            "AUROC": auroc(evidence[known].numpy(), evidence[~known].numpy()),
            "right and accepted": float((right & accepted)[known].double().mean()),
        }
        found.append({name: 100 * value for name, value in figures.items()})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--draws", type=int, default=6)
    given = parser.parse_args()
    tensors, _ = load_tensors(given.features)
    features, labels = (torch.cat([tensors[part + name] for part in ("train", "test")]) for name in ("", "_labels"))
    photos = [(labels == label).nonzero()[:, 0] for label in range((int(labels.max()) + 1) // 2)]
    for setting in SETTINGS:
        for shots in SHOTS:
            draws = [measure(features, photos, setting, shots, draw) for draw in range(given.draws)]
            names = list(draws[0][0])
            print(f"\n{setting}, {shots} of each of the few\n\n| | {' | '.join(names)} |\n|---|{'---:|' * len(names)}")
            for place, rule in enumerate(RULES):
                cells = []
                for name in names:
                    mean, _ = mean_and_interval([draw[place][name] for draw in draws])
                    gain, interval = mean_and_interval([draw[place][name] - draw[0][name] for draw in draws])
                    cells.append(f"{mean:.1f}" + (f" ({gain:+.1f} ± {interval or 0:.1f})" if place else ""))
                print(f"| {rule} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
