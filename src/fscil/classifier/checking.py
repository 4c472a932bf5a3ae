"""How well a classifier does on labelled photos: accuracy, per class, most confused pairs, share of unknown."""

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass


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
    """

    name: str
    photos: int
    correct: int
    unknown: int

    @property
    def accuracy(self) -> float:
        """Share of correct photos."""
        return self.correct / self.photos


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

    Examples
    --------
    >>> found = Classifier.load("birds.fscil").check("photos/held_out")
    >>> found.photos, found.accuracy
    (6, 1.0)
    >>> found.classes[0]
    ClassCheck(name='blue tit', photos=2, correct=2, unknown=0)
    >>> [each.name for each in found.not_enrolled], found.rejected
    (['magpie'], 1.0)
    """

    classes: tuple[ClassCheck, ...]
    not_enrolled: tuple[ClassCheck, ...]
    confused: tuple[tuple[str, str, int], ...]
    skipped: tuple[str, ...]

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
    def rejected(self) -> float | None:
        """Share of the photos of other classes that were called unknown, as they should; None without any."""
        photos = sum(each.photos for each in self.not_enrolled)
        return sum(each.unknown for each in self.not_enrolled) / photos if photos else None


def compare_labels(
    true: Sequence[str], predicted: Sequence[str | None], enrolled: Container[str], skipped: Sequence[str] = ()
) -> Check:
    """The labels of photos against those predicted, of which None is unknown."""
    pairs = Counter(zip(true, predicted, strict=True))
    found: dict[bool, list[ClassCheck]] = {True: [], False: []}
    for name, photos in sorted(Counter(true).items()):
        unknown, known = pairs[name, None], name in enrolled
        found[known].append(ClassCheck(name, photos, pairs[name, name] if known else unknown, unknown))
    wrong = [(right, label, count) for (right, label), count in pairs.items() if label is not None and label != right]
    wrong.sort(key=lambda pair: (-pair[2], pair[:2]))
    return Check(tuple(found[True]), tuple(found[False]), tuple(wrong), tuple(skipped))
