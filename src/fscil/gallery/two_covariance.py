"""The two-covariance model (probabilistic LDA): a class is a Gaussian draw, its photos Gaussian draws around it.

Both covariances are shared by all classes (Ioffe, 2006; Prince and Elder, 2007; Brümmer and de Villiers, 2010), so a
class needs only the sum and the number of its photos. An image is scored by the log-likelihood ratio of "one more photo
of this class" against "a photo of a class never seen". Tails may be heavier than a Gaussian's, those of a multivariate
Student's t (Kenny, 2010; Brümmer et al., 2018), or lengths be normalised (Garcia-Romero and Espy-Wilson, 2011).
Relatives in class-incremental learning: shared-covariance LDA (Hayes and Kanan, 2020), FeCAM (Goswami et al., 2023: a
covariance per class) and RanPAC (McDonnell et al., 2023: ridge regression); none of them knows how far the mean of one
photo can be trusted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fscil.runtime.validation import invalid

ROUNDING = 1e-14  # variance that float32 features of unit length have by rounding alone
SMALLEST = 1e-9  # eigenvalue, relative to the mean one, that a covariance is taken to have at least
LARGEST = 1e9  # absolute value in a model: scores of finite features are then finite in float32
GAUSSIAN = 0.0  # in the place of degrees of freedom, in a file
SOURCE = "the decision rule"  # in errors
LEAST_BETWEEN = 0.01  # share of the class means' variance that is left when photos explain all of it


@dataclass(frozen=True)
class Constants:
    """What the model does not estimate. `choose` finds them by cross-validation, from `start` on.

    within_shrinkage, between_shrinkage: in 0..1, towards the multiple of the identity with the same trace
    rescale: bring every image to the length the model expects
    within_scale: factor on the within-class covariance, above 1 where new photos vary more than those it comes from
    correlation: of the photos of one class: k of them tell as much as k / (1 + correlation (k - 1)) independent ones
    information_weight: of the information in the nearest class's photos, beside its ratio, where "unknown" is decided
    degrees: of freedom of Student's t, by which an image is one of a class, or of none; None: of a Gaussian
    """

    within_shrinkage: float = 0.6
    between_shrinkage: float = 0.3
    rescale: bool = True
    within_scale: float = 1.0
    correlation: float = 0.0
    information_weight: float = 0.0  # as in models written before there was one
    degrees: float | None = None


def prepare(features: Tensor) -> Tensor:
    """(n, d) raw features -> (n, d) float64: signed square root, then unit length."""
    wide = features.double()
    return F.normalize(wide.sign() * wide.abs().sqrt(), dim=1)


def student_ratios(ratios: Tensor, information: Tensor, lengths: Tensor, dim: int, degrees: float) -> Tensor:
    """Ratios of Gaussians -> those of multivariate t densities with the same centres and matrices.

    ratios: (n, C); information: (C,) half the log-determinants of a class's precision over that of a class never seen;
    lengths: (n, 1) squared, of the dim-dimensional images under the precision of a class never seen. Or all of (n,).

    With h that half, and an image at the squared distances a from a class never seen and b from the class, the one is
    h + (a - b) / 2 and the other h + (degrees + dim) / 2 log((degrees + a) / (degrees + b)): b can be had from the one.
    """
    nearer = 2 * (ratios - information) / (degrees + lengths)
    shares = torch.log1p(nearer.neg_().clamp_min_(-1 + 1e-6))  # rounding alone could make b negative
    return information - (degrees + dim) / 2 * shares


def effective_counts(counts: Tensor, correlation: float) -> Tensor:
    """(C,) numbers of photos -> (C,) float64 numbers of independent photos that tell as much."""
    wide = counts.double()
    return wide / (1 + correlation * (wide - 1))


@dataclass(frozen=True, eq=False)
class Moments:
    """Sufficient statistics of labelled prepared features, in the eigenbasis of the within-class covariance.

    Unbiased whatever the class sizes: W is the pooled covariance of residuals, (n - C) degrees of freedom; the class
    means weigh the same, and their covariance has the expectation B + W mean(1/n_c).
    """

    centre: Tensor  # (r,) mean of the class means
    basis: Tensor  # (r, r) eigenvectors of W in columns
    within: Tensor  # (r,) eigenvalues of W
    deviations: Tensor  # (C, r) class means less centre, in the basis, over sqrt(C - 1)
    contamination: float  # mean(1/n_c)
    dim: int  # d >= r: of the space; nothing varies in the other d - r directions

    @classmethod
    def of(cls, prepared: Tensor, labels: Tensor, dim: int | None = None) -> "Moments":
        """(n, r) float64 features and (n,) labels, any numbers."""
        names, labels = torch.unique(labels, return_inverse=True)
        counts, classes = torch.bincount(labels), len(names)
        if classes < 2 or len(labels) <= classes:
            raise ValueError(
                f"two covariances need two classes and a class with two photos; got {len(labels)} photos of {classes}"
            )
        means = class_sums(prepared, labels, classes) / counts[:, None]
        residuals = prepared - means[labels]
        within, basis = torch.linalg.eigh(residuals.T @ residuals / (len(labels) - classes))
        centre = means.mean(0)
        deviations = (means - centre) @ basis / (classes - 1) ** 0.5
        contamination = float((1 / counts).double().mean())
        return cls(centre, basis, within.clamp_min(0), deviations, contamination, dim or prepared.shape[1])

    @property
    def within_variance(self) -> float:
        """tr(W) / d"""
        return float(self.within.sum()) / self.dim

    @property
    def between_variance(self) -> float:
        """tr(B) / d, unbiased, but never nothing."""
        observed = float(self.deviations.square().sum()) / self.dim
        return max(observed - self.contamination * self.within_variance, LEAST_BETWEEN * observed)

    def shrunk_within(self, shrinkage: float) -> Tensor:
        """(r,) eigenvalues of W shrunk; its eigenvectors stay."""
        least = max(SMALLEST * self.within_variance, ROUNDING)
        return ((1 - shrinkage) * self.within + shrinkage * self.within_variance).clamp_min(least)

    def between_factor(self, within: Tensor) -> Tensor:
        """(r, at most C - 1) matrix G: B before shrinkage is G G', where (r,) `within` has been made the identity.

        The covariance of the class means, less what the photos' spread puts into it, in the span of the means; what
        that leaves negative is set to zero, which is the nearest positive semidefinite matrix in this metric.
        """
        means = self.deviations / within.sqrt()
        few = len(means) < means.shape[1]
        variances, vectors = torch.linalg.eigh(means @ means.T if few else means.T @ means)
        kept = variances > 1e-10 * variances[-1]
        variances, vectors = variances[kept], vectors[:, kept]
        span = means.T @ (vectors / variances.sqrt()) if few else vectors  # (r, c) orthonormal columns
        noise = (span.T * (self.within / within)) @ span
        values, vectors = torch.linalg.eigh(torch.diag(variances) - self.contamination * noise)
        factor: Tensor = span @ (vectors[:, values > 0] * values[values > 0].sqrt())
        return factor


@dataclass(frozen=True, eq=False)
class Classes:
    """Enrolled classes, ready for scoring by Gaussians; those with equal counts share a row of `precision`."""

    weights: Tensor  # (C, q)
    offsets: Tensor  # (C,)
    precision: Tensor  # (number of different counts, q)
    group: Tensor  # (C,) row of `precision`

    def log_ratio(self, mapped: Tensor) -> Tensor:
        """(n, q) mapped queries -> (n, C) float32 log-likelihood ratios against a class never seen."""
        ratios: Tensor = torch.addmm(self.offsets, mapped, self.weights.T)
        return ratios.sub_((mapped.square() @ self.precision.T)[:, self.group])


@dataclass(frozen=True, eq=False)
class TwoCovariance:
    """Maps features to where W is the identity and B is diag(psi), and scores them there."""

    centre: Tensor  # (d,) float32
    projection: Tensor  # (d, q) float32: A, with A' W A = I and A' B A = diag(psi)
    psi: Tensor  # (q,) float64, largest first
    rescale: bool
    correlation: float = 0.0
    information_weight: float = 0.0
    degrees: float | None = None

    @classmethod
    def fit(
        cls,
        features: Tensor,
        labels: Tensor,
        within_shrinkage: float = Constants.within_shrinkage,
        between_shrinkage: float = Constants.between_shrinkage,
        rescale: bool = Constants.rescale,
        within_scale: float = Constants.within_scale,
        correlation: float = Constants.correlation,
        information_weight: float = Constants.information_weight,
        degrees: float | None = Constants.degrees,
        dim: int | None = None,
    ) -> "TwoCovariance":
        """(n, d) raw features and (n,) labels of two or more classes. dim: keep the directions of largest psi only."""
        moments = Moments.of(prepare(features), labels)
        within = moments.shrunk_within(within_shrinkage)
        factor = moments.between_factor(within) * (1 - between_shrinkage) ** 0.5
        between = factor @ factor.T + torch.diag(between_shrinkage * moments.between_variance / within)
        psi, vectors = torch.linalg.eigh(between)
        chosen = psi.argsort(descending=True)[:dim]
        projection = moments.basis @ (vectors[:, chosen] / (within_scale * within).sqrt()[:, None])
        psi = psi[chosen].clamp_min(0) / within_scale
        constants = (rescale, correlation, information_weight, degrees)
        return cls(moments.centre.float(), projection.float(), psi, *constants)

    def transform(self, features: Tensor) -> Tensor:
        """(n, d) raw features -> (n, q) float32."""
        mapped = (prepare(features).float() - self.centre) @ self.projection
        if not self.rescale:
            return mapped
        length = (self.squared_lengths(mapped) / len(self.psi)).sqrt()
        return mapped / length.clamp_min(1e-12)[:, None]

    def squared_lengths(self, mapped: Tensor) -> Tensor:
        """(n, q) -> (n,) under the precision of an image of a class never seen; q is expected."""
        return (mapped.square() / (1 + self.psi).float()).sum(1)

    def posterior(self, means: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """(C, q) means of mapped photos and (C,) counts -> (C, q) means and (C, q) variances of the classes."""
        weight = effective_counts(counts, self.correlation)[:, None] * self.psi
        return weight / (weight + 1) * means.double(), self.psi / (weight + 1)

    def classes(self, means: Tensor, counts: Tensor) -> Classes:
        """(C, q) means of mapped photos and (C,) counts, ready for scoring by Gaussians."""
        distinct, group = torch.unique(counts, return_inverse=True)
        weight, precision = self._given(distinct)
        apart = 1 / (1 + self.psi)  # of an image of a class never seen
        centres = (weight / (weight + 1))[group] * means.double()
        weights = precision[group] * centres
        determinant = (precision / apart).log().sum(1)[group]
        offsets = (determinant - (weights * centres).sum(1)) / 2
        return Classes(weights.float(), offsets.float(), self.excess_precision(distinct), group)

    def excess_precision(self, counts: Tensor) -> Tensor:
        """(k,) counts -> (k, q) float32: half of how much more precise an image is, given so many photos of its class,
        than an image of a class never seen.
        """
        return ((self._given(counts)[1] - 1 / (1 + self.psi)) / 2).float()

    def _given(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """(k,) counts -> (k, q) effective count times psi, and (k, q) precision of an image given the class."""
        weight = effective_counts(counts, self.correlation)[:, None] * self.psi
        return weight, 1 / (1 + self.psi / (weight + 1))

    def information(self, counts: Tensor) -> Tensor:
        """(k,) counts -> (k,) float64: the log-likelihood ratio that the model, with Gaussians, expects of an image of
        its class, given so many photos of it. It is the mutual information of the two.
        """
        return (self._given(counts)[1] * (1 + self.psi)).log().sum(1) / 2

    def log_ratio(self, mapped: Tensor, means: Tensor, counts: Tensor) -> Tensor:
        """(n, q) mapped queries, (C, q) means of mapped photos, (C,) counts -> (n, C): log of p(image | its class)
        over p(image | a class never seen).
        """
        distinct, group = torch.unique(counts, return_inverse=True)
        return self.with_tails(self.classes(means, counts).log_ratio(mapped), self.information(distinct)[group], mapped)

    def with_tails(self, ratios: Tensor, information: Tensor, mapped: Tensor) -> Tensor:
        """(n, C) ratios of Gaussians of (n, q) mapped images, and (C,) the information in the photos of each class ->
        ratios by the densities of this model. Or (n,) ratios and information, of an image and a class each.
        """
        if self.degrees is None:
            return ratios
        lengths = self.squared_lengths(mapped)
        lengths = lengths if ratios.ndim == 1 else lengths[:, None]
        return student_ratios(ratios, information.float(), lengths, len(self.psi), self.degrees)

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors."""
        return {
            "centre": self.centre,
            "projection": self.projection,
            "psi": self.psi,
            "rescale": torch.tensor(self.rescale),
            "correlation": torch.tensor(self.correlation, dtype=torch.float64),
            "information_weight": torch.tensor(self.information_weight, dtype=torch.float64),
            "degrees": torch.tensor(self.degrees or GAUSSIAN, dtype=torch.float64),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "TwoCovariance":
        """What `state` returned. Raises a StoreError for anything else, and where scores could become infinite."""
        absent = {"information_weight": torch.tensor(0.0), "degrees": torch.tensor(GAUSSIAN)}  # in models of before
        state, numbers = {**absent, **state}, ("rescale", "correlation", *absent)
        shapes = {"centre": 1, "projection": 2, "psi": 1, **dict.fromkeys(numbers, 0)}
        if any(name not in state or state[name].ndim != dimensions for name, dimensions in shapes.items()):
            raise invalid(SOURCE, "a tensor is missing or of another shape")
        centre, projection, psi = state["centre"].float(), state["projection"].float(), state["psi"].double()
        correlation, weight, degrees = (float(state[name].double()) for name in numbers[1:])
        if projection.shape != (len(centre), len(psi)) or not projection.numel():
            raise invalid(SOURCE, "its tensors do not fit each other")
        bounded = all(bool((each.abs() <= LARGEST).all()) for each in (centre, projection, psi))  # not so for NaN
        if not bounded or bool((psi < 0).any()) or not all(0 <= share <= 1 for share in (correlation, weight)):
            raise invalid(SOURCE, "its numbers are not finite or out of their bounds")
        if degrees != GAUSSIAN and not 1 <= degrees <= LARGEST:
            raise invalid(SOURCE, "its degrees of freedom are out of their bounds")
        return cls(centre, projection, psi, bool(state["rescale"]), correlation, weight, degrees or None)


def probabilities(log_ratios: Tensor, unknown_prior: float = 0.5, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """(n, C) log-likelihood ratios -> (n, C) probabilities of the classes and (n,) that of none of them.

    Before the image is seen, every class has the probability (1 - unknown_prior) / C. Ratios are divided by the
    temperature: directions that the model takes for independent are not quite.
    """
    if not 0 <= unknown_prior < 1 or temperature <= 0:
        raise ValueError(f"an unknown prior in 0..1 and a temperature above 0, not {unknown_prior} and {temperature}")
    known = log_ratios / temperature - torch.tensor(log_ratios.shape[1] / (1 - unknown_prior)).log()
    unknown = torch.full_like(known[:, :1], unknown_prior).log()
    both = torch.cat([known, unknown], 1).softmax(1)
    return both[:, :-1], both[:, -1]


def class_sums(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(classes, d) sums of the (n, d) features by (n,) label."""
    return features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
