"""How well a classifier does on labelled photos: accuracy, per class, most confused pairs, share of unknown."""

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from fscil.classifier.decision import State
from fscil.classifier.prediction import Prediction


@dataclass(frozen=True)
class ClassCheck:
    """The result for the photos of one class.

    Attributes
    ----------
    name : str
        The true class.
    photos : int
        How many there are.
    correct : int
        Photos given the right label: this one, or unknown where the class is not enrolled.
    unknown : int
        Photos called unknown.
    maybe : int
        Photos whose answer is maybe, right or wrong.
    """

    name: str
    photos: int
    correct: int
    unknown: int
    maybe: int = 0

    @property
    def accuracy(self) -> float:
        """Share of correct photos."""
        return self.correct / self.photos


@dataclass(frozen=True)
class CheckedPhoto:
    """One photo of a check: where it is, what it shows, and what was predicted."""

    path: Path
    true: str
    answer: Prediction

    @property
    def correct(self) -> bool:
        """Whether the label is right; of a photo whose class is not enrolled, see `Check.not_enrolled`."""
        return self.answer.label == self.true


@dataclass(frozen=True)
class Check:
    """The result of `Classifier.check`.

    Attributes
    ----------
    classes : tuple of ClassCheck
        Enrolled classes, sorted by name.
    not_enrolled : tuple of ClassCheck
        Classes of the folder that are not enrolled; the right answer is then unknown.
    confused : tuple of (str, str, int)
        True class, predicted class and number of photos, most frequent first.
    skipped : tuple of str
        One message for each photo that could not be read.
    answers : tuple of CheckedPhoto
        Every photo that could be read.
    learned : int
        How many of them the model has learned: of those its accuracy says little.

    Examples
    --------
    >>> found = Classifier.load("birds.fscil").check("photos/held_out")
    >>> found.photos, found.accuracy
    (6, 1.0)
    >>> found.classes[0]
    ClassCheck(name='blue tit', photos=2, correct=2, unknown=0, maybe=0)
    >>> [each.name for each in found.not_enrolled], found.rejected
    (['magpie'], 1.0)
    """

    classes: tuple[ClassCheck, ...]
    not_enrolled: tuple[ClassCheck, ...]
    confused: tuple[tuple[str, str, int], ...]
    skipped: tuple[str, ...]
    answers: tuple[CheckedPhoto, ...] = ()
    learned: int = 0

    @property
    def mistakes(self) -> tuple[CheckedPhoto, ...]:
        """Photos given the wrong label: another one, or unknown where the class is enrolled."""
        enrolled = {each.name for each in self.classes}
        return tuple(
            each for each in self.answers if not (each.correct if each.true in enrolled else each.answer.label is None)
        )

    @property
    def photos(self) -> int:
        """Number of photos of enrolled classes."""
        return sum(each.photos for each in self.classes)

    @property
    def accuracy(self) -> float | None:
        """Share of the photos of enrolled classes that were labelled correctly; None without any."""
        return sum(each.correct for each in self.classes) / self.photos if self.photos else None

    @property
    def unknown(self) -> float | None:
        """Share of the photos of enrolled classes that were called unknown; None without any."""
        return sum(each.unknown for each in self.classes) / self.photos if self.photos else None

    @property
    def maybe(self) -> float | None:
        """Share of the photos of enrolled classes whose answer is maybe, right or wrong; None without any."""
        return sum(each.maybe for each in self.classes) / self.photos if self.photos else None

    @property
    def rejected(self) -> float | None:
        """Share of the photos of other classes that were called unknown, as they should; None without any."""
        photos = sum(each.photos for each in self.not_enrolled)
        return sum(each.unknown for each in self.not_enrolled) / photos if photos else None


def compare_labels(
    true: Sequence[str],
    predicted: Sequence[str | None],
    enrolled: Container[str],
    skipped: Sequence[str] = (),
    states: Sequence[State] | None = None,
) -> Check:
    """The labels of photos against those predicted, of which None is unknown; states: of the answers."""
    pairs = Counter(zip(true, predicted, strict=True))
    maybe = Counter(name for name, state in zip(true, states or ["known"] * len(true), strict=True) if state == "maybe")
    found: dict[bool, list[ClassCheck]] = {True: [], False: []}
    for name, photos in sorted(Counter(true).items()):
        unknown, known = pairs[name, None], name in enrolled
        correct = pairs[name, name] if known else unknown
        found[known].append(ClassCheck(name, photos, correct, unknown, maybe[name]))
    wrong = [(right, label, count) for (right, label), count in pairs.items() if label is not None and label != right]
    wrong.sort(key=lambda pair: (-pair[2], pair[:2]))
    return Check(tuple(found[True]), tuple(found[False]), tuple(wrong), tuple(skipped))
