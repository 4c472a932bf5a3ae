"""The two-covariance model of a user's own classes: how photos of one class differ, and how classes do."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import torch
from msgspec import Meta
from torch import Tensor

from fscil.errors import DataError
from fscil.gallery import TwoCovariance, TwoCovarianceRule
from fscil.gallery.choosing import ENOUGH_TO_SEARCH, Choice, choose, start, usual_calibration
from fscil.gallery.probability import ProbabilityCalibration
from fscil.gallery.two_covariance import Constants
from fscil.runtime.validation import as_type

MIN_CLASSES = 2  # with at least two photos
MAX_PHOTOS = 50_000  # that the covariances are estimated from
TO_CHOOSE = 3  # photos that a class needs, to be held out in turn
MAX_CLASSES_TO_CHOOSE, MAX_EACH_TO_CHOOSE = 100, 40  # classes, and photos of each, on which constants are tried


@dataclass(frozen=True, eq=False)
class Estimate:
    """A decision rule and how it was found."""

    rule: TwoCovarianceRule
    probability: ProbabilityCalibration
    made: dict[str, Any]  # for the record: numbers alone, no name of a class

    @property
    def summary(self) -> list[str]:
        """For the user, in two lines."""
        made = self.made
        constants = made["constants"]
        chosen = "chosen by cross-validation" if made["searched"] else "the usual ones for so few classes"
        tails = f"Student's t with {constants['degrees']:g} degrees" if constants["degrees"] else "Gaussian"
        error = made["calibration error"]
        return [
            f"two-covariance model of {made['photos']} photos of {made['classes']} classes: shrinkage "
            f"{constants['within_shrinkage']:g} within and {constants['between_shrinkage']:.2g} between classes, "
            f"lengths {'rescaled' if constants['rescale'] else 'as they are'}, {tails} ({chosen})",
            "probabilities cannot be checked with so few photos: take them for a rough guide"
            if error is None
            else f"probabilities are off by {error:.1%} on average on held-out photos (expected calibration error)",
        ]


@dataclass(frozen=True)
class Estimated:
    """What `Estimate.made` says of the model that decides."""

    constants: Constants
    classes: Annotated[int, Meta(ge=1)]  # that the covariances come from: the first ones of the gallery

    @classmethod
    def of(cls, made: Mapping[str, Any]) -> "Estimated | None":
        """From the record of a model, which may be somebody else's; None where class means decide."""
        return as_type(made["decision"], cls, "the decision in model.json") if "decision" in made else None


def why_not(labels: Tensor) -> str | None:
    """Why (N,) labels are too few for an estimate; None if they are enough."""
    several = int((torch.unique(labels, return_counts=True)[1] >= 2).sum())
    if several >= MIN_CLASSES:
        return None
    return f"{'no class has' if not several else 'only one class has'} two photos or more, and two classes must"


def estimate(features: Tensor, labels: Tensor, quiet: bool = True) -> Estimate:
    """(N, d) raw features and (N,) labels, any numbers. A DataError where there are too few."""
    reason = why_not(labels)
    if reason:
        raise DataError(f"There are too few photos for the two-covariance model: {reason}. Enroll more.")
    choice = _choice(features, labels, quiet)
    names = torch.unique(labels)
    each = max(2, MAX_PHOTOS // len(names))
    rows = some_of_each(labels, names.tolist(), each) if len(labels) > MAX_PHOTOS else torch.arange(len(labels))
    model = TwoCovariance.fit(features[rows], labels[rows], **asdict(choice.constants))
    made = {
        "classes": len(names),
        "photos": len(rows),
        "constants": asdict(choice.constants),
        "searched": len(choice.trials) > 1,
        "calibration error": choice.calibration_error,
    }
    return Estimate(TwoCovarianceRule(model), choice.calibration or usual_calibration(model), made)


def _choice(features: Tensor, labels: Tensor, quiet: bool) -> Choice:
    """By cross-validation over the classes with enough photos to hold some out, if there are enough such classes."""
    names, counts = torch.unique(labels, return_counts=True)
    usable = names[counts >= TO_CHOOSE].tolist()
    if len(usable) < 3:
        return Choice(start(len(names)), None, None, [])
    if len(usable) > MAX_CLASSES_TO_CHOOSE:
        order = torch.randperm(len(usable), generator=torch.Generator().manual_seed(0))
        usable = [usable[place] for place in order[:MAX_CLASSES_TO_CHOOSE].tolist()]
    rows = some_of_each(labels, usable, MAX_EACH_TO_CHOOSE)
    found = choose(features[rows], labels[rows], quiet=quiet)
    few_usable = len(usable) < ENOUGH_TO_SEARCH and len(usable) < len(names)
    if not few_usable:
        return found
    # The calibration is of evidence with the weight that its few classes had.
    constants = replace(start(len(names)), information_weight=found.constants.information_weight)
    return replace(found, constants=constants)


def some_of_each(labels: Tensor, names: Iterable[int], most: int) -> Tensor:
    """Rows of at most this many photos of each of these classes, evenly chosen."""
    chosen = []
    for name in names:
        rows = (labels == name).nonzero()[:, 0]
        if len(rows) > most:
            rows = rows[torch.linspace(0, len(rows) - 1, most, dtype=torch.float64).long()]
        chosen.append(rows)
    return torch.cat(chosen)
