"""Trials of the two-covariance rule on a network that has not seen the pseudo-novel classes; base training images only.

    python benchmarks/tune.py cifar100_cpu --data DIR --novel 15 --set method=alice --bases BASES
    python benchmarks/two_covariance_trials.py BASES/KEY --data DIR --novel 15 --log FILE

The network was trained by tune.py on the base classes but the last `--novel`, without a tenth of their training images.
This tenth is asked, the novel classes are learned from 5 or 1 of their other images (10 draws). Tried are: where the
statistics come from (the images, random training views), how many crops of an image are averaged, the constants, and
one learned scale per direction. One line of the log is one trial.
"""

import argparse
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tune import without_test_data

from fscil.config import Config
from fscil.data.images import Images
from fscil.features import Encoder, FeatureCache
from fscil.gallery.two_covariance import Constants, TwoCovariance, class_sums
from fscil.metrics import auroc, harmonic_accuracy
from fscil.preprocess import SeveralCrops
from fscil.runtime.allocator import tune_allocator
from fscil.runtime.files import append_json_line
from fscil.training.base_training import load_base_network
from fscil.training.build import dataset_of, preprocess_of, protocol_of, views_of
from fscil.training.context import Context
from fscil.training.run_folder import Run

DRAWS = 10
WITHIN, BETWEEN, SCALES = (0.6, 0.7, 0.8, 0.9), (0.15, 0.3, 0.6), (0.7, 1.0)


@dataclass(frozen=True, eq=False)
class Trial:
    """Features of one kind: training images first `base` classes, then the novel ones; and images asked."""

    train: Tensor
    labels: Tensor
    asked: Tensor
    target: Tensor
    base: int

    def shots(self, count: int, draw: int) -> Tensor:
        """(novel, count) rows"""
        generator = torch.Generator().manual_seed(draw)
        rows = []
        for label in range(self.base, int(self.labels.max()) + 1):
            own = (self.labels == label).nonzero()[:, 0]
            rows.append(own[torch.randperm(len(own), generator=generator)[:count]])
        return torch.stack(rows)

    def judge(self, model: TwoCovariance, weights: Tensor | None = None) -> dict[str, float]:
        """In percent. weights: (q,) of the directions, instead of 1."""
        scale = torch.ones_like(model.psi) if weights is None else weights
        train, asked, old = model.transform(self.train), model.transform(self.asked), self.target < self.base
        mine = self.labels < self.base
        counts = torch.bincount(self.labels[mine])
        means = class_sums(train[mine].double(), self.labels[mine], self.base) / counts[:, None]
        known = weighted_ratio(model, asked, means, counts, scale)
        figures = {"auroc": auroc(*(known.amax(1)[part].numpy() for part in (old, ~old)))}
        for count in (5, 1):
            found = []
            for draw in range(DRAWS):
                rows = self.shots(count, draw)
                new = train[rows].double().mean(1)
                scores = torch.cat(
                    [known, weighted_ratio(model, asked, new, torch.full((len(rows),), count), scale)], 1
                )
                right = (scores.argmax(1) == self.target).double()
                parts = float(right[old].mean()), float(right[~old].mean())
                found.append((float(right.mean()), harmonic_accuracy(*parts), *parts))
            means_found = np.mean(found, 0)
            names = ("average", "harmonic", "base", "novel")
            figures |= {f"{count}-shot {name}": float(value) for name, value in zip(names, means_found, strict=True)}
        return {name: round(100 * value, 2) for name, value in figures.items()}


def weighted_ratio(model: TwoCovariance, mapped: Tensor, means: Tensor, counts: Tensor, weights: Tensor) -> Tensor:
    """TwoCovariance.log_ratio with a weight for the evidence of each direction."""
    centres, variances = model.posterior(means, counts)
    mapped, precision, apart = mapped.double(), 1 / (1 + variances), 1 / (1 + model.psi)
    linear = mapped @ (weights * precision * centres).T
    quadratic = mapped.square() @ (weights * (precision - apart)).T
    constant = (weights * ((precision / apart).log() - precision * centres.square())).sum(1)
    return linear - quadratic / 2 + constant / 2


def learned_weights(trial: Trial, model: TwoCovariance, steps: int = 200) -> Tensor:
    """A weight per direction by cross-entropy on pseudo-sessions: a third of the base classes with 1 or 5 images."""
    mapped = model.transform(trial.train).double()
    rows = [(trial.labels == label).nonzero()[:, 0] for label in range(trial.base)]
    every = torch.stack([mapped[own].mean(0) for own in rows])
    logs = torch.zeros(len(model.psi) + 1, dtype=torch.float64)
    logs[-1] = 3.0  # of the temperature
    logs.requires_grad_()
    optimizer = torch.optim.Adam([logs], lr=0.02)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        few = torch.randperm(trial.base, generator=generator)[: trial.base // 3]
        shots, means, counts = (1, 5)[step % 2], every.clone(), torch.tensor([len(own) - 1 for own in rows])
        drawn = [own[torch.randperm(len(own), generator=generator)[: shots + 8]] for own in rows]
        for label in few.tolist():
            means[label], counts[label] = mapped[drawn[label][:shots]].mean(0), shots
        queries = torch.cat([own[shots:] for own in drawn])
        scores = weighted_ratio(model, mapped[queries], means, counts, logs[:-1].exp()) / logs[-1].exp()
        loss = F.cross_entropy(scores, trial.labels[queries])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return logs[:-1].detach().exp()


@torch.inference_mode()
def of_random_views(config: Config, encoder: Encoder, images: Images) -> Tensor:
    """(n, d) of one random training view of each image."""
    views, found = views_of(replace(config, views=replace(config.views, count=1))), []
    generator = torch.Generator().manual_seed(0)
    for places in np.split(np.arange(len(images)), range(256, len(images), 256)):
        pixels, sizes = map(torch.from_numpy, images.batch(places))
        found.append(encoder(views(pixels, sizes, generator)[0]))
    return torch.cat(found).clone()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--novel", type=int, default=15)
    parser.add_argument("--log", type=Path, required=True)
    given = parser.parse_args()
    tune_allocator()
    run, context = Run(given.run), Context.on("cpu", quiet=True)
    config = run.config()
    dataset = dataset_of(config, given.data, quiet=True)
    dataset = without_test_data(dataset, protocol_of(config, dataset).seen(0))
    base = len(dataset.class_names) - given.novel
    network = load_base_network(config, run, context).backbone.eval()
    labels, target = (torch.from_numpy(images.labels.copy()) for images in (dataset.train, dataset.test))
    mine = labels < base
    trials = {}
    for crops in (1, 2, 10):
        cache = FeatureCache(network, SeveralCrops(preprocess_of(config), crops), context.device)
        trials[crops] = Trial(cache(dataset.train), labels, cache(dataset.test), target, base)

    def log(trial: Trial, features: Tensor, constants: Constants, **about: object) -> None:
        model = TwoCovariance.fit(features, labels[mine], **asdict(constants))
        found = trial.judge(model, learned_weights(trial, model) if about.get("weights") else None)
        append_json_line(given.log, {**about, **asdict(constants), **found})
        print(about, asdict(constants), found, flush=True)

    for crops, trial in trials.items():
        log(trial, trial.train[mine], Constants(), crops=crops, statistics="images")
    views = of_random_views(config, Encoder(network, context.device), dataset.train.of_classes(range(base)))
    for crops in (1, 10):
        log(trials[crops], views, Constants(), crops=crops, statistics="random training views")
    for within, between, scale in product(WITHIN, BETWEEN, SCALES):
        constants = Constants(within, between, True, scale)
        log(trials[10], trials[10].train[mine], constants, crops=10, statistics="images")
    best = Constants(0.7, 0.3, True, 0.7)
    log(trials[10], trials[10].train[mine], replace(best, rescale=False), crops=10, statistics="images")
    log(trials[10], trials[10].train[mine], best, crops=10, statistics="images", weights="learned")


if __name__ == "__main__":
    main()
