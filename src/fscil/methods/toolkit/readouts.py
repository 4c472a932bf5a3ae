"""Decision rules on frozen features, to be compared with each other: fit to base features once, then score queries.

Each is fitted to (n, d) features of the base classes and their (n,) labels 0..C-1. `scores` takes (m, d) queries and
features of the novel classes, (C', k, d) with k shots each, and returns (m, C + C'). `grid` has the candidates of the
constants that are to be chosen.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fscil.gallery import TwoCovarianceRule, balanced_means, class_means, cosine_scores
from fscil.gallery.choosing import choose
from fscil.gallery.two_covariance import Constants, TwoCovariance
from fscil.methods.toolkit.frozen_features import tukey


@dataclass(frozen=True)
class OwnChoice:
    """Constants that a readout has chosen for itself, and its trials, as JSON."""

    constants: dict[str, Any]
    trials: list[dict[str, Any]]


class Readout(ABC):
    """What all of them do, and how they are compared."""

    grid: ClassVar[dict[str, list[Any]]] = {}
    scores_are_cosines: ClassVar[bool] = False  # so that the lead of the best class can be compared between images
    classes_are_independent: ClassVar[bool] = True  # whether the score of a class depends on no other class
    calibration: dict[str, float] | None = None  # of probabilities, where the readout gives any

    @abstractmethod
    def fit(self, base: Tensor, labels: Tensor) -> None: ...

    @abstractmethod
    def scores(self, queries: Tensor, novel: Tensor) -> Tensor: ...

    def evidence(self, scores: Tensor, shots: int) -> Tensor:
        """(n, C) scores, those of new classes from so many shots each -> (n,): low where an image may show none."""
        return scores.max(1).values

    @classmethod
    def own_choice(cls, base: Tensor, labels: Tensor) -> OwnChoice | None:
        """The constants, where the readout has a procedure of its own to choose them; None: by the grid."""
        return None


@dataclass
class Cosine(Readout):
    """The paper's: cosine to the mean of k images, for base classes the k nearest to their mean, or all images."""

    scores_are_cosines = True
    balanced: bool = True

    def fit(self, base: Tensor, labels: Tensor) -> None:
        self._base, self._labels, self._classes = base, labels, int(labels.max()) + 1
        self._all = class_means(base, labels, self._classes)
        self._near: dict[int, Tensor] = {}

    def scores(self, queries: Tensor, novel: Tensor) -> Tensor:
        """novel: (C, k, d), C may be 0. Returns (m, base classes + C)."""
        return cosine_scores(queries, torch.cat([self.base_means(novel), novel.mean(1)]))

    def base_means(self, novel: Tensor) -> Tensor:
        shots = novel.shape[1]
        if not self.balanced or not len(novel):
            return self._all
        if shots not in self._near:
            self._near[shots] = balanced_means(self._base, self._labels, self._classes, shots)
        return self._near[shots]


@dataclass
class TeenReadout(Cosine):
    """TEEN (Wang et al., 2023): novel prototypes move towards the base prototypes they resemble."""

    balanced: bool = False
    alpha: float = 0.5
    temperature: float = 16.0
    grid: ClassVar[dict[str, list[Any]]] = {"alpha": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], "temperature": [16.0]}

    def scores(self, queries: Tensor, novel: Tensor) -> Tensor:
        base = F.normalize(self._all, dim=1)
        new = F.normalize(novel.mean(1), dim=1)
        new = (1 - self.alpha) * new + self.alpha * (self.temperature * new @ base.T).softmax(1) @ base
        return cosine_scores(queries, torch.cat([base, new]))


class Covariance:
    """Shared within-class covariance of prepared features, in its eigenbasis; remembered for the last features."""

    _last: ClassVar[tuple[Tensor, tuple[Tensor, ...]] | None] = None

    @classmethod
    def of(cls, base: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """centre (d,), class means (C, d), eigenvalues (d,), eigenvectors (d, d), prepared (n, d)"""
        if cls._last is None or cls._last[0] is not base:
            prepared = tukey(base, 0.5)
            means = class_means(prepared, labels, int(labels.max()) + 1)
            residuals = prepared - means[labels]
            values, vectors = torch.linalg.eigh(residuals.T @ residuals / (len(base) - len(means)))
            cls._last = base, (means.mean(0), means, values.clamp_min(0), vectors, prepared)
        return cls._last[1]


@dataclass
class WhitenedCosine(Readout):
    """Cosine to class means after centring and whitening by the shrunk within-class covariance."""

    shrinkage: float = 0.5
    balanced: bool = False
    grid: ClassVar[dict[str, list[Any]]] = {
        "shrinkage": [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9],
        "balanced": [False, True],
    }

    def fit(self, base: Tensor, labels: Tensor) -> None:
        self._centre, _, values, vectors, prepared = Covariance.of(base, labels)
        shrunk = (1 - self.shrinkage) * values + self.shrinkage * values.mean()
        self._map = vectors * shrunk.rsqrt()
        self._cosine = Cosine(self.balanced)
        self._cosine.fit((prepared - self._centre) @ self._map, labels)

    def scores(self, queries: Tensor, novel: Tensor) -> Tensor:
        return self._cosine.scores(self._mapped(queries), self._mapped(novel))

    def _mapped(self, features: Tensor) -> Tensor:
        mapped = (tukey(features.flatten(0, -2), 0.5) - self._centre) @ self._map
        return mapped.view(*features.shape[:-1], mapped.shape[1])


@dataclass
class Lda(Readout):
    """Linear discriminant with a shared covariance (as in Hayes and Kanan, 2020): the nearest mean in its metric."""

    shrinkage: float = 0.5
    grid: ClassVar[dict[str, list[Any]]] = {"shrinkage": [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9]}

    def fit(self, base: Tensor, labels: Tensor) -> None:
        self._centre, means, values, vectors, _ = Covariance.of(base, labels)
        shrunk = (1 - self.shrinkage) * values + self.shrinkage * values.mean()
        self._map = vectors * shrunk.rsqrt()
        self._means = (means - self._centre) @ self._map

    def scores(self, queries: Tensor, novel: Tensor) -> Tensor:
        new = (tukey(novel.flatten(0, 1), 0.5).view(novel.shape).mean(1) - self._centre) @ self._map
        means = torch.cat([self._means, new])
        mapped = (tukey(queries, 0.5) - self._centre) @ self._map
        return mapped @ means.T - means.square().sum(1) / 2 - mapped.square().sum(1, keepdim=True) / 2


@dataclass
class FeCamReadout(Readout):
    """FeCAM-like (Goswami et al., 2023): Tukey's transform, per class a shrunk covariance normalised to correlations.

    Shrinkage follows the paper: off-diagonal elements and diagonal ones each gain a multiple of their mean. A few
    shots are too few for a covariance of their own: new classes use the mean of the base classes' normalised ones.
    """

    power: float = 0.5
    diagonal: float = 1.0
    off_diagonal: float = 1.0
    dims: int = 256
    grid: ClassVar[dict[str, list[Any]]] = {"diagonal": [0.3, 1.0, 3.0, 10.0], "off_diagonal": [0.0, 1.0]}

    def fit(self, base: Tensor, labels: Tensor) -> None:
        prepared = tukey(base, self.power)
        self._centre = prepared.mean(0)
        self._axes = torch.eye(prepared.shape[1], dtype=torch.float64)
        if prepared.shape[1] > self.dims:  # a thousand 1280 x 1280 covariances would not fit in time or memory
            centred = prepared - self._centre
            self._axes = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -self.dims :]
        mapped = prepared @ self._axes
        classes = int(labels.max()) + 1
        self._means, inverses, shared = [], [], torch.zeros(mapped.shape[1], mapped.shape[1], dtype=torch.float64)
        for label in range(classes):
            own = mapped[labels == label]
            self._means.append(own.mean(0))
            correlation = self._normalised(own.T.cov() if len(own) > 1 else torch.zeros_like(shared))
            shared += correlation / classes
            inverses.append(torch.linalg.inv(correlation).float())
        self._inverses = inverses
        self._shared = torch.linalg.inv(shared).float()

    def _normalised(self, covariance: Tensor) -> Tensor:
        variance = covariance.diagonal().mean()
        off = (covariance.sum() - covariance.trace()) / (covariance.numel() - len(covariance))
        eye = torch.eye(len(covariance), dtype=torch.float64)
        shrunk = covariance + self.diagonal * variance * eye + self.off_diagonal * off * (1 - eye)
        spread = shrunk.diagonal().clamp_min(1e-12).sqrt()
        return shrunk / spread / spread[:, None]

    def scores(self, queries: Tensor, novel: Tensor) -> Tensor:
        mapped = (tukey(queries, self.power) @ self._axes).float()
        new = (tukey(novel.flatten(0, 1), self.power).view(novel.shape).mean(1) @ self._axes).float()
        columns = []
        means = [*(mean.float() for mean in self._means), *new]
        for mean, inverse in zip(means, [*self._inverses, *[self._shared] * len(new)], strict=True):
            # FeCAM compares directions: both are brought to unit length before the distance is taken
            away = F.normalize(mapped, dim=1) - F.normalize(mean, dim=0)
            columns.append(-((away @ inverse) * away).sum(1))
        return torch.stack(columns, 1)


@dataclass
class RanPacReadout(Readout):
    """RanPAC-like (McDonnell et al., 2023): random ReLU features, ridge regression to one-hot targets.

    Class means stand in for the class sums of the paper, which would hardly ever name a class of few images.
    """

    classes_are_independent = False  # a regression on all of them
    ridge: float = 1e3
    width: int = 1000
    grid: ClassVar[dict[str, list[Any]]] = {"ridge": [1e0, 1e1, 1e2, 1e3, 1e4]}

    def fit(self, base: Tensor, labels: Tensor) -> None:
        generator = torch.Generator().manual_seed(0)
        self._random = torch.randn(base.shape[1], self.width, generator=generator)
        hidden = self._hidden(base)
        self._classes = int(labels.max()) + 1
        gram = (hidden.T @ hidden).double()
        gram.diagonal().add_(self.ridge)
        self._inverse = torch.linalg.inv(gram)
        self._targets = class_means(hidden, labels, self._classes).double()

    def _hidden(self, features: Tensor) -> Tensor:
        return (F.normalize(features.float(), dim=1) @ self._random).relu_()

    def scores(self, queries: Tensor, novel: Tensor) -> Tensor:
        inverse, targets = self._inverse, self._targets
        if len(novel):
            hidden = self._hidden(novel.flatten(0, 1)).double()
            half = inverse @ hidden.T  # Woodbury: the few new images change the inverse little
            inverse = inverse - half @ torch.linalg.solve(torch.eye(len(hidden)).double() + hidden @ half, half.T)
            targets = torch.cat([targets, hidden.view(len(novel), -1, self.width).mean(1)])
        scores: Tensor = self._hidden(queries) @ (inverse @ targets.T).float()
        return scores


@dataclass
class PldaReadout(Readout):
    """The two-covariance model."""

    within_shrinkage: float = Constants.within_shrinkage
    between_shrinkage: float = Constants.between_shrinkage
    rescale: bool = True
    within_scale: float = 1.0
    correlation: float = 0.0
    information_weight: float = 0.0
    degrees: float | None = None
    calibration: dict[str, float] | None = None

    @classmethod
    def own_choice(cls, base: Tensor, labels: Tensor) -> OwnChoice:
        """As for photos: one constant after the other, and the calibration of probabilities with them."""
        choice = choose(base, labels)
        calibration = None if choice.calibration is None else asdict(choice.calibration)
        summary = {**asdict(choice), "trials": len(choice.trials)}
        constants = {**asdict(choice.constants), "calibration": calibration}
        return OwnChoice(constants, [*map(asdict, choice.trials), summary])

    def fit(self, base: Tensor, labels: Tensor) -> None:
        constants = {name: value for name, value in asdict(self).items() if name != "calibration"}
        self._model = TwoCovariance.fit(base, labels, **constants)
        self._rule = TwoCovarianceRule(self._model)
        mapped = self._model.transform(base)
        self._counts = torch.bincount(labels)
        self._means = class_means(mapped, labels, len(self._counts))

    def scores(self, queries: Tensor, novel: Tensor) -> Tensor:
        few = self._model.transform(novel.flatten(0, 1))
        new = few.view(*novel.shape[:2], few.shape[1]).mean(1)
        counts = self._counts_with(len(novel), novel.shape[1])
        return self._model.log_ratio(self._model.transform(queries), torch.cat([self._means, new]), counts)

    def evidence(self, scores: Tensor, shots: int) -> Tensor:
        counts = self._counts_with(scores.shape[1] - len(self._counts), shots)
        return self._rule.unknown_score(self._rule.default_score, scores, counts)

    def _counts_with(self, novel: int, shots: int) -> Tensor:
        return torch.cat([self._counts, self._counts.new_full((novel,), shots)])


READOUTS: dict[str, type[Any]] = {  # subclasses of Readout, each with constants of its own
    "cosine, all": Cosine,
    "cosine, balanced": Cosine,
    "TEEN": TeenReadout,
    "whitened cosine": WhitenedCosine,
    "LDA": Lda,
    "FeCAM-like": FeCamReadout,
    "RanPAC-like": RanPacReadout,
    "PLDA": PldaReadout,
}
FIXED: dict[str, dict[str, Any]] = {"cosine, all": {"balanced": False}, "cosine, balanced": {"balanced": True}}
