"""Which classes and which samples make session 0..M. Pure: no pixels, no torch.

Session 0 has the base classes with all their training images; each later session brings `way` new classes with `shots`
images each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fscil.errors import ProtocolError

Draw: TypeAlias = Literal["published"] | int  # the literature's few-shot samples, or the seed of a random choice


def published_draw(n: int, shots: int) -> list[int]:
    """Which of a class's training images all published results use as its few-shot samples.

    The rule behind the published lists: numpy's legacy generator, seeded with 1 for every class. Fewer shots are a
    prefix of more. The global random state is not touched.

    Parameters
    ----------
    n
        Number of training images of the class.
    shots
        Number of samples.

    Returns
    -------
    list of int
        Indices among the class's n images, in data set order.

    Raises
    ------
    ProtocolError
        Where there are fewer images than shots.

    Examples
    --------
    >>> published_draw(500, 5)
    [304, 340, 47, 67, 479]
    """
    if not 0 <= shots <= n:
        raise ProtocolError(f"cannot draw {shots} of {n} images.")
    return [int(index) for index in np.random.RandomState(1).permutation(n)[:shots]]


def seeded_draw(n: int, shots: int, seed: int, place: int) -> list[int]:
    """Indices of a class's samples under a seed, independent between classes; fewer shots are a prefix of more.

    place: the class's number by arrival.
    """
    if not 0 <= shots <= n:
        raise ProtocolError(f"cannot draw {shots} of {n} images.")
    return [int(index) for index in np.random.default_rng([seed, place]).permutation(n)[:shots]]


@dataclass(frozen=True)
class Protocol:
    """Which classes arrive in which session, and with how many images.

    Parameters
    ----------
    base_classes
        Classes of session 0, which come with all their training images.
    way
        New classes per session.
    sessions
        Sessions after session 0.
    shots
        Training images per new class.
    order
        Class labels by arrival; by default 0, 1, 2, …
    ways
        New classes of each session where they differ; `way` is not used then.

    Raises
    ------
    ProtocolError
        Where a class would arrive twice, or the order lists too few classes.

    Examples
    --------
    >>> protocol = Protocol(base_classes=60, way=5, sessions=8)
    >>> protocol.classes
    100
    >>> protocol.new(1)
    (60, 61, 62, 63, 64)
    """

    base_classes: int
    way: int
    sessions: int
    shots: int = 5
    order: tuple[int, ...] | None = None
    ways: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.ways and (len(self.ways) != self.sessions or min(self.ways) < 1):
            raise ProtocolError(
                f"ways = {list(self.ways)}: needs a number of new classes, at least one, for each of the "
                f"{self.sessions} sessions."
            )
        if self.base_classes < 1 or self.way < 1 or self.sessions < 0 or self.shots < 1:
            raise ProtocolError(
                f"a protocol needs at least one base class, way and shot and no negative number of sessions; got "
                f"{self.base_classes} base classes, {self.sessions} sessions, {self.way}-way {self.shots}-shot."
            )
        if self.order is None:
            return
        arrival: dict[int, int] = {}
        for place, label in enumerate(self.order[: self.classes]):
            if label in arrival:
                first, second = (self._session_of_place(p) for p in (arrival[label], place))
                raise ProtocolError(
                    f"class {label} is in session {first} and again in session {second}: sessions must not overlap."
                )
            arrival[label] = place
        if len(arrival) < self.classes:
            raise ProtocolError(f"the order lists {len(arrival)} classes, the sessions need {self.classes}.")

    def _session_of_place(self, place: int) -> int:
        return next(session for session in range(self.sessions + 1) if place < self._known(session))

    def _known(self, session: int) -> int:
        """Number of classes after a session."""
        return self.base_classes + (sum(self.ways[:session]) if self.ways else self.way * session)

    @property
    def classes(self) -> int:
        """Number of classes after the last session."""
        return self._known(self.sessions)

    def seen(self, session: int) -> tuple[int, ...]:
        """Labels of the classes seen up to this session, by arrival; a class's index here is its number in a model.

        Parameters
        ----------
        session
            0 to `sessions`.

        Returns
        -------
        tuple of int

        Raises
        ------
        ProtocolError
            For a session that the protocol does not have.

        Examples
        --------
        >>> Protocol(base_classes=2, way=1, sessions=2, order=(7, 3, 5, 1)).seen(1)
        (7, 3, 5)
        """
        if not 0 <= session <= self.sessions:
            raise ProtocolError(f"there is no session {session}: this protocol has sessions 0 to {self.sessions}.")
        known = self._known(session)
        return (self.order or tuple(range(known)))[:known]

    def new(self, session: int) -> tuple[int, ...]:
        """Labels of the classes that arrive in this session; in session 0 these are the base classes.

        Parameters, result and errors are those of `seen`.

        Examples
        --------
        >>> Protocol(base_classes=2, way=1, sessions=2, order=(7, 3, 5, 1)).new(2)
        (1,)
        """
        return self.seen(session)[self._known(session - 1) :] if session else self.seen(0)

    def samples(self, labels: NDArray[Any], session: int, draw: Draw = "published") -> NDArray[np.int64]:
        """Positions of this session's training images.

        Parameters
        ----------
        labels
            (n,) of all training images.
        session
            0 to `sessions`.
        draw
            Which images the new classes get: "published", the draw of all published results, or the seed of another.

        Returns
        -------
        ndarray of int64
            Session 0: all images of the base classes, in data set order. Later: `shots` images of each new class,
            class by class, in the order drawn.

        Raises
        ------
        ProtocolError
            Where a base class has no image, a new class fewer than `shots`, or the protocol has no such session.

        Examples
        --------
        >>> labels = np.array([0, 1, 0, 1, 2, 2, 2])
        >>> protocol = Protocol(base_classes=2, way=1, sessions=1, shots=2)
        >>> protocol.samples(labels, 0)
        array([0, 1, 2, 3])
        >>> sorted(set(labels[protocol.samples(labels, 1)].tolist())), len(protocol.samples(labels, 1))
        ([2], 2)
        """
        if session == 0:
            empty = np.setdiff1d(self.seen(0), labels)
            if len(empty):
                raise ProtocolError(f"base class {empty[0]} has no training image. Add some or leave the class out.")
            return np.flatnonzero(np.isin(labels, self.seen(0)))
        drawn = []
        new = self.new(session)
        for place, label in enumerate(new, len(self.seen(session)) - len(new)):
            members = np.flatnonzero(labels == label)
            if len(members) < self.shots:
                raise ProtocolError(
                    f"class {label} has {len(members)} training images, {self.shots} shots need {self.shots}. "
                    f"Add images, ask for fewer shots or leave the class out."
                )
            if draw == "published":
                indices = published_draw(len(members), self.shots)
            else:
                indices = seeded_draw(len(members), self.shots, draw, place)
            drawn.append(members[indices])
        return np.concatenate(drawn)

    def with_shots(self, shots: int) -> "Protocol":
        """The same sessions with another number of images per new class.

        Examples
        --------
        >>> Protocol(base_classes=60, way=5, sessions=8).with_shots(1).shots
        1
        """
        return replace(self, shots=shots)

    def __str__(self) -> str:
        way = "/".join(map(str, self.ways or [self.way]))
        return f"{self.base_classes} base classes + {self.sessions} sessions, {way}-way {self.shots}-shot"


CIFAR100 = Protocol(base_classes=60, way=5, sessions=8)
MINI_IMAGENET = Protocol(base_classes=60, way=5, sessions=8)
CUB200 = Protocol(base_classes=100, way=10, sessions=10)


def fit_protocol(
    classes: int,
    base_classes: int | None,
    way: int,
    sessions: int | None,
    shots: int,
    order: Sequence[int] | None = None,
    ways: Sequence[int] = (),
) -> Protocol:
    """A protocol for this many classes. None: 60% base classes, and as many sessions as the other classes allow.

    ways: new classes of each session, where they differ; then None: the classes that are left for the base.
    """
    if ways:
        return _uneven_protocol(classes, base_classes, way, sessions, shots, order, tuple(ways))
    base = base_classes if base_classes is not None else max(1, round(0.6 * classes))
    if sessions is None and base < classes:
        way = min(way, classes - base)  # a few classes still make one session
    possible = max(0, classes - base) // max(1, way)
    count = possible if sessions is None else sessions
    if base > classes or count > possible:
        raise ProtocolError(
            f"{base} base classes and {count} sessions of {way} need {base + count * way} classes, the data "
            f"has {classes}. Set protocol.base_classes, protocol.sessions and protocol.way to fit."
        )
    return Protocol(base, way, count, shots, tuple(order) if order else None)


def _uneven_protocol(
    classes: int,
    base_classes: int | None,
    way: int,
    sessions: int | None,
    shots: int,
    order: Sequence[int] | None,
    ways: tuple[int, ...],
) -> Protocol:
    base = classes - sum(ways) if base_classes is None else base_classes
    if base < 1 or base + sum(ways) > classes:
        raise ProtocolError(
            f"{max(base, 1)} base classes and sessions of {', '.join(map(str, ways))} need {max(base, 1) + sum(ways)} "
            f"classes, the data has {classes}. Set protocol.base_classes and protocol.ways to fit."
        )
    count = len(ways) if sessions is None else sessions
    return Protocol(base, way, count, shots, tuple(order) if order else None, ways)
