"""Takes a method through the sessions of a protocol and evaluates it after each."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fscil.data.images import Dataset, Images
from fscil.errors import DataError, TrainingError
from fscil.methods.base import Memory, Method
from fscil.metrics import OpenSet, Scores, open_set, session_scores
from fscil.protocol import Draw, Protocol


@dataclass(frozen=True, eq=False)
class SessionResult:
    """A method's predictions after one session, and its accuracies."""

    session: int
    classes: int  # seen so far
    predicted: NDArray[np.int64]  # (n,) class numbers by arrival
    target: NDArray[np.int64]  # (n,)
    scores: Scores
    alternatives: dict[str, Scores]  # by the method's other scores
    memory: Memory
    openset: dict[str, OpenSet] = field(default_factory=dict)  # by score; empty unless requested


def evaluation_images(dataset: Dataset, protocol: Protocol, session: int) -> Images:
    """All test images of the classes seen after this session, labelled by arrival."""
    seen = protocol.seen(session)
    images = dataset.test.of_classes(seen).relabel(seen)
    missing = [dataset.class_names[seen[place]] for place in range(len(seen)) if place not in images.counts]
    if missing:
        raise DataError(
            f"{dataset.name}: {len(missing)} classes have no test image (first: {missing[0]}). Add some, or leave the "
            f"classes out with protocol.order."
        )
    return images


def future_images(dataset: Dataset, protocol: Protocol, session: int) -> Images:
    """All test images of the classes of later sessions, unknown so far. Labels as in the data."""
    return dataset.test.of_classes(protocol.seen(protocol.sessions)[len(protocol.seen(session)) :])


def walk(
    method: Method,
    dataset: Dataset,
    protocol: Protocol,
    draw: Draw = "published",
    openset: bool = False,
    judged: Container[int] | None = None,
    base: SessionResult | None = None,
) -> Iterator[SessionResult]:
    """Evaluate a method that has learned the base, then let it learn session after session and evaluate it after each.

    judged: the sessions after which it is evaluated; None: all. base: the result of session 0, where it is known.
    openset: also how well it separates the classes seen so far from those of later sessions (none after the last).
    """
    for session in range(protocol.sessions + 1):
        if session:
            chosen = dataset.train.select(protocol.samples(dataset.train.labels, session, draw))
            method.learn(chosen.relabel(protocol.seen(session)))
        if judged is not None and session not in judged:
            continue
        if not session and base:
            yield base
            continue
        future = future_images(dataset, protocol, session) if openset and session < protocol.sessions else None
        yield _evaluate(method, evaluation_images(dataset, protocol, session), future, protocol, session)


def _evaluate(method: Method, test: Images, future: Images | None, protocol: Protocol, session: int) -> SessionResult:
    class_scores = method.scores(test)
    if class_scores.isnan().any():  # whose largest would be any class
        raise TrainingError(
            f"the method's scores are NaN after session {session}: its network diverged. Train with a lower train.lr, "
            f"or in sessions with a lower incremental.lr."
        )
    predicted = class_scores.argmax(1).numpy()
    alternatives = {
        name: session_scores(scores.argmax(1).numpy(), test.labels, protocol.base_classes)
        for name, scores in method.alternatives(test).items()
    }
    scores = session_scores(predicted, test.labels, protocol.base_classes)
    unknowns: dict[str, OpenSet] = {}
    if future is not None:
        unseen, correct = method.unknown_scores(method.scores(future)), predicted == test.labels
        unknowns = {
            name: open_set(found.numpy(), correct, unseen[name].numpy())
            for name, found in method.unknown_scores(class_scores).items()
        }
    classes = len(protocol.seen(session))
    return SessionResult(session, classes, predicted, test.labels, scores, alternatives, method.memory(), unknowns)


@dataclass(frozen=True, eq=False)
class Walk:
    """One pass through all sessions."""

    shots: int
    draw: Draw
    sessions: list[SessionResult]


def walk_all(
    method: Method,
    dataset: Dataset,
    protocol: Protocol,
    shots: Sequence[int],
    draws: Sequence[Draw],
    openset: bool = False,
    judged: Container[int] | None = None,
) -> Iterator[Walk]:
    """Every number of shots under every draw, each from the same state after the base session.

    judged: the sessions after which the method is evaluated; None: as its class says.
    """
    if judged is None and method.judged == "last":
        judged = (0, protocol.sessions)
    start: dict[str, Any] = method.state()
    base: SessionResult | None = None  # the same in every walk
    for count in shots:
        for draw in draws:
            method.load_state(start)
            found = list(walk(method, dataset, protocol.with_shots(count), draw, openset, judged, base))
            base = found[0] if found and not found[0].session else None
            yield Walk(count, draw, found)
    method.load_state(start)
