"""Constants of the two-covariance model, chosen by cross-validation over pseudo-novel classes.

The classes are parted into folds. Each fold in turn is pseudo-novel: the model is estimated from photos of the others,
these are enrolled with all those photos and the fold's with a few, and photos that neither has seen are named, also
before the fold is enrolled, when its photos are unknown. W is decomposed once per fold; in its eigenbasis the other
matrices are a diagonal plus a matrix of low rank, so a trial needs no further decomposition of a large matrix.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import fmean, stdev

import torch
from torch import Tensor

from fscil.gallery.low_rank_model import LowRankModel, Ratios
from fscil.gallery.probability import (
    CROWDING,
    Asked,
    ProbabilityCalibration,
    calibration_error,
    fit_calibration,
)
from fscil.gallery.two_covariance import (
    SMALLEST,
    Constants,
    Moments,
    TwoCovariance,
    class_sums,
    effective_counts,
    prepare,
)
from fscil.metrics import auroc, harmonic_accuracy
from fscil.runtime.progress import ProgressBar


@dataclass(frozen=True, eq=False)
class Division:
    """Photos by their part in one division into pseudo-base and pseudo-novel classes; all are rows of the data."""

    base: Tensor  # (C,) classes
    novel: Tensor  # (C',) classes
    photos: Tensor  # (n,) of base classes, to estimate from and to enroll
    shots: list[tuple[int, Tensor]]  # number of shots and (shots C',) photos, class by class, of each draw
    queries: Tensor  # (m,) of all classes, in no other part
    labels: Tensor  # (N,) of all photos: base classes 0..C-1, then the novel ones


def divisions(labels: Tensor, folds: int = 4, shots: Sequence[int] = (1, 5), draws: int = 2) -> Iterator[Division]:
    """(N,) labels, any numbers -> each fold's division; the same at every call.

    Queries are a fifth of a base class's photos and half of a novel one's. A class that has too few photos gives as
    many shots as half of them are.
    """
    names, labels = torch.unique(labels, return_inverse=True)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(names), generator=generator)
    photos = [(labels == label).nonzero()[:, 0] for label in range(len(names))]
    photos = [rows[torch.randperm(len(rows), generator=generator)] for rows in photos]
    for fold in range(folds):
        novel = order[fold::folds].sort().values
        base = torch.tensor([label for label in range(len(names)) if label not in novel.tolist()])
        held_out = {label: len(photos[label]) // 5 or int(len(photos[label]) > 2) for label in base.tolist()}
        room = {label: (len(photos[label]) + 1) // 2 for label in novel.tolist()}
        known = torch.cat([photos[label][count:] for label, count in held_out.items()])
        taken = []
        for k, draw in product(shots, range(draws)):
            first = [photos[label][:count].roll(-draw * max(shots))[:k] for label, count in room.items()]
            taken.append((k, torch.cat(first)))
        asked = [photos[label][:count] for label, count in held_out.items()]
        asked += [photos[label][count:] for label, count in room.items()]
        place = torch.empty_like(order)
        place[torch.cat([base, novel])] = torch.arange(len(names))
        yield Division(base, novel, known, taken, torch.cat(asked), place[labels])


class Fold:
    """One division with everything computed that does not depend on the constants."""

    def __init__(self, prepared: Tensor, division: Division, dim: int) -> None:
        """prepared: (N, r) float64, coordinates in the span of the photos, which is a part of a space of dim >= r."""
        self.division = division
        labels = division.labels
        self._moments = Moments.of(prepared[division.photos], labels[division.photos], dim)
        self._features = ((prepared - self._moments.centre) @ self._moments.basis).float()
        self._factors: dict[float, tuple[Tensor, Tensor]] = {}  # by within-class shrinkage

    def log_ratios(self, constants: Constants) -> Iterator[tuple[int, Ratios]]:
        """Shots and the ratios of the (m,) queries to all classes, for every number of shots and every draw of them."""
        model, scale = self._model(constants)
        mapped, own = self._features * scale, self.division
        if constants.rescale:
            length = model.resolvent(1.0).quadratic(mapped) / self._moments.dim
            mapped = mapped / length.clamp_min(1e-12).sqrt()[:, None]
        queries, base, correlation = mapped[own.queries], len(own.base), constants.correlation
        degrees = constants.degrees
        means, counts = _means(mapped[own.photos], own.labels[own.photos], base)
        known = model.log_ratio(queries, means, effective_counts(counts, correlation), degrees)
        for shots, rows in own.shots:
            means, counts = _means(mapped[rows], own.labels[rows] - base, len(own.novel))
            new = model.log_ratio(queries, means, effective_counts(counts, correlation), degrees)
            both = torch.cat([known.ratios, new.ratios], 1), torch.cat([known.information, new.information])
            yield shots, Ratios(*both)

    def _model(self, constants: Constants) -> tuple[LowRankModel, Tensor]:
        """And (r,) the scale of each direction that makes W the identity."""
        moments, shrinkage = self._moments, constants.within_shrinkage
        if shrinkage not in self._factors:
            within = moments.shrunk_within(shrinkage)
            self._factors[shrinkage] = within, moments.between_factor(within)
        within, factor = self._factors[shrinkage]
        variance = constants.between_shrinkage * moments.between_variance / constants.within_scale
        rest = variance / (max(shrinkage, SMALLEST) * moments.within_variance)
        share = ((1 - constants.between_shrinkage) / constants.within_scale) ** 0.5
        model = LowRankModel((variance / within).float(), (factor * share).float(), rest, moments.dim - len(within))
        return model, (within * constants.within_scale).rsqrt().float()


def make_folds(
    features: Tensor, labels: Tensor, folds: int = 4, shots: Sequence[int] = (1, 5), draws: int = 2
) -> list[Fold]:
    """(N, d) raw features and (N,) labels -> what `choose` tries constants on."""
    prepared = prepare(features)
    dim = prepared.shape[1]
    if len(prepared) < dim:  # the same inner products in as many coordinates as there are photos
        prepared = prepared @ torch.linalg.qr(prepared.T).Q
    return [Fold(prepared, division, dim) for division in divisions(labels, folds, shots, draws)]


def _means(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """(classes, r) means and (classes,) counts."""
    counts = torch.bincount(labels, minlength=classes)
    return class_sums(features, labels, classes) / counts[:, None], counts


@dataclass(frozen=True)
class Trial:
    """Constants and what they gave, means over folds and draws."""

    constants: Constants
    objective: float
    figures: dict[str, float]  # by number of shots: base, novel and harmonic accuracy; AUROC of unknown
    by_fold: tuple[float, ...]  # the objective of each

    def beats(self, other: "Trial") -> bool:
        """By more than a standard error of the difference, so that chance rarely decides."""
        gains = [mine - theirs for mine, theirs in zip(self.by_fold, other.by_fold, strict=True)]
        return bool(fmean(gains) > stdev(gains) / len(gains) ** 0.5)


@dataclass(frozen=True)
class Choice:
    """What cross-validation found."""

    constants: Constants
    calibration: ProbabilityCalibration | None  # None where no class could be held out
    calibration_error: float | None  # expected, of held-out photos of held-out classes
    trials: list[Trial]


CANDIDATES: dict[str, tuple[float | bool | None, ...]] = {
    "between_shrinkage": (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9),
    "within_shrinkage": (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "rescale": (True, False),
    "within_scale": (0.7, 1.0, 1.4, 2.0),
    "correlation": (0.0, 0.03, 0.1, 0.3),
    "degrees": (None, 10.0, 50.0, 200.0, 1000.0),
}
ROUNDS = 2
ENOUGH_TO_SEARCH = 12  # classes: with fewer, what the search found did worse on other classes than its start
INFORMATION_WEIGHT = 0.3  # with so many classes; with 5, AUROC fell by it where new ones had one photo
MAX_LEFT_OUT = 11  # classes of which each is a fold of its own
# Classes: with fewer, photos that the model was estimated from are much longer than others, and lengths tell, by a
# Gaussian, known photos from unknown ones.
MANY = 30


def start(classes: int) -> Constants:
    """Where the search begins, and ends where there are too few classes for one.

    Measured on sets of 2 to 100 of CUB-200's base classes, EfficientNet-lite0: the fewer classes, the less is known of
    how classes differ, and the more both covariances must be shrunk. With many, photos are further from their class
    than a Gaussian allows (results/readout.md).
    """
    weight = INFORMATION_WEIGHT if classes >= ENOUGH_TO_SEARCH else 0.0
    if classes >= MANY:
        return Constants(0.6, 0.15, rescale=False, information_weight=weight, degrees=50.0)
    return Constants(0.8, min(0.9, 3.5 / classes), rescale=False, information_weight=weight)


def trial(folds: Sequence[Fold], constants: Constants) -> Trial:
    """The objective is the sum of harmonic accuracy and AUROC, both in 0..1."""
    every: dict[str, list[float]] = {}
    by_fold = []
    for fold in folds:
        base = len(fold.division.base)
        target = fold.division.labels[fold.division.queries]
        old, sums = target < base, []
        for shots, found in fold.log_ratios(constants):
            right = (found.ratios.argmax(1) == target).double()
            known, new = float(right[old].mean()), float(right[~old].mean())
            evidence = found.of_classes(0, base).evidence(constants.information_weight).numpy()
            figures = {"base": known, "novel": new, "harmonic": harmonic_accuracy(known, new)}
            figures["auroc"] = auroc(evidence[old.numpy()], evidence[~old.numpy()])
            sums.append(figures["harmonic"] + figures["auroc"])
            for name, value in figures.items():
                every.setdefault(f"{shots}-shot {name}", []).append(value)
        by_fold.append(fmean(sums))
    means = {name: round(fmean(values), 4) for name, values in every.items()}
    return Trial(constants, fmean(by_fold), means, tuple(by_fold))


def choose(
    features: Tensor,
    labels: Tensor,
    shots: Sequence[int] = (1, 5),
    folds: int = 4,
    draws: int = 2,
    quiet: bool = True,
) -> Choice:
    """(N, d) raw features and (N,) labels, any numbers -> the constants that do best on pseudo-novel classes.

    From `start` on, one constant after the other is set to a candidate that beats it, until none does. Up to
    MAX_LEFT_OUT classes, each is pseudo-novel in turn; with fewer than ENOUGH_TO_SEARCH the folds serve calibration
    alone, and with fewer than three there are none.
    """
    classes = len(torch.unique(labels))
    best = start(classes)
    if classes < 3:
        return Choice(best, None, None, [])
    parts = make_folds(features, labels, classes if classes <= MAX_LEFT_OUT else folds, shots, draws)
    tried = {best: trial(parts, best)}
    rounds = ROUNDS if classes >= ENOUGH_TO_SEARCH else 0
    with ProgressBar("decision rule", rounds * sum(map(len, CANDIDATES.values())), quiet=quiet) as bar:
        for _ in range(rounds):
            before = best
            for name, values in CANDIDATES.items():
                rivals = [replace(best, **{name: value}) for value in values]  # type: ignore[arg-type]
                for rival in rivals:
                    tried[rival] = tried.get(rival) or trial(parts, rival)
                    bar.advance()
                winner = max(rivals, key=lambda rival: tried[rival].objective)
                if winner != best and tried[winner].beats(tried[best]):
                    best = winner
            if best == before:
                break
    asked = [_asked(fold, best) for fold in parts]
    usual = usual_calibration(TwoCovariance.fit(features, labels, **asdict(best)))
    calibration = fit_calibration([pair for pairs in asked for pair in pairs], classes, usual)
    return Choice(best, calibration, _cross_fitted_error(asked, classes, usual), list(tried.values()))


def usual_calibration(model: TwoCovariance) -> ProbabilityCalibration:
    """For a model that cannot be calibrated, and what a calibration from few classes is drawn to.

    In units of what five photos of a class are expected to tell. The constants were measured on CUB-200's base classes:
    folders of 3 to 10 of them, under statistics of 5 to 80 others.
    """
    information = max(float(model.information(torch.tensor([5]))), 0.01)  # nothing where classes do not differ
    offset = 1.3 - 2.2 * model.information_weight  # 1.3 beside the ratio alone
    return ProbabilityCalibration(information / 4.7, 2.2 / information, offset, CROWDING)


def _asked(fold: Fold, constants: Constants) -> list[Asked]:
    """The queries of a fold against three galleries, for every draw of shots.

    The classes of the statistics, where the novel ones are unknown; these and the novel ones, all known; half of the
    novel ones, where the other half is unknown.
    """
    base, half = len(fold.division.base), len(fold.division.novel) // 2
    target = fold.division.labels[fold.division.queries]
    new = target >= base
    few = torch.where(target < base + half, target - base, -1)[new]
    asked = []
    for _, found in fold.log_ratios(constants):
        of_new = Ratios(found.ratios[new], found.information)
        galleries = [(found.of_classes(0, base), torch.where(new, -1, target)), (of_new, target[new])]
        if half:
            galleries.append((of_new.of_classes(base, base + half), few))
        asked += [Asked(one.ratios, right, one.evidence(constants.information_weight)) for one, right in galleries]
    return asked


def _cross_fitted_error(asked: Sequence[Sequence[Asked]], classes: int, usual: ProbabilityCalibration) -> float:
    """Expected calibration error, each fold under the calibration of the others."""
    groups = []
    for fold, own in enumerate(asked):
        others = [pair for at, pairs in enumerate(asked) for pair in pairs if at != fold]
        groups.append((own, fit_calibration(others, classes, usual)))
    return calibration_error(groups)
