"""How well a classifier does on labelled photos: accuracy, per class, most confused pairs, share of unknown."""

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ClassCheck:
    """What became of the photos of one class."""

    name: str
    photos: int
    correct: int
    unknown: int  # answered "unknown"; right where the class is not enrolled

    @property
    def accuracy(self) -> float:
        return self.correct / self.photos


@dataclass(frozen=True)
class Check:
    """Photos of enrolled classes are right under their name, photos of other classes as unknown."""

    classes: tuple[ClassCheck, ...]  # enrolled ones, by name
    strangers: tuple[ClassCheck, ...]  # classes that are not enrolled; correct = unknown
    confused: tuple[tuple[str, str, int], ...]  # (true, answered, photos), most frequent first
    skipped: tuple[str, ...]  # what is wrong with the photos that could not be read

    @property
    def photos(self) -> int:
        """Of enrolled classes."""
        return sum(each.photos for each in self.classes)

    @property
    def accuracy(self) -> float | None:
        """Share of the photos of enrolled classes that were named right; None without any."""
        return sum(each.correct for each in self.classes) / self.photos if self.photos else None

    @property
    def unknown(self) -> float | None:
        """Share of the photos of enrolled classes that were called unknown."""
        return sum(each.unknown for each in self.classes) / self.photos if self.photos else None

    @property
    def rejected(self) -> float | None:
        """Share of the photos of classes that are not enrolled that were called unknown, as they should."""
        photos = sum(each.photos for each in self.strangers)
        return sum(each.unknown for each in self.strangers) / photos if photos else None


def judge(
    truth: Sequence[str], answers: Sequence[str | None], enrolled: Container[str], skipped: Sequence[str] = ()
) -> Check:
    """Compare what photos show with what was answered; None is "unknown"."""
    pairs = Counter(zip(truth, answers, strict=True))
    found: dict[bool, list[ClassCheck]] = {True: [], False: []}
    for name, photos in sorted(Counter(truth).items()):
        unknown, known = pairs[name, None], name in enrolled
        found[known].append(ClassCheck(name, photos, pairs[name, name] if known else unknown, unknown))
    wrong = [(true, said, count) for (true, said), count in pairs.items() if said is not None and said != true]
    wrong.sort(key=lambda pair: (-pair[2], pair[:2]))
    return Check(tuple(found[True]), tuple(found[False]), tuple(wrong), tuple(skipped))
