"""Walks a method through a protocol and judges it after every session."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fscil.data.images import Dataset, Images
from fscil.errors import DataError
from fscil.methods.base import Memory, Method
from fscil.metrics import OpenSet, Scores, open_set, session_scores
from fscil.openset import SCORES, Evidence
from fscil.protocol import Draw, Protocol


@dataclass(frozen=True, eq=False)
class SessionResult:
    """What a method said after one session, and what that is worth."""

    session: int
    classes: int  # seen so far
    predicted: NDArray[np.int64]  # (n,) class numbers by arrival
    target: NDArray[np.int64]  # (n,)
    scores: Scores
    alternatives: dict[str, Scores]  # other ways to score the same session
    memory: Memory
    openset: dict[str, OpenSet] = field(default_factory=dict)  # by score; empty unless asked for


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
    """All test images of the classes that come after this session: unknown so far. Labels as in the data."""
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
    """Judge a method that has learned the base, then let it learn session after session and judge it after each.

    judged: only after these sessions. base: what is known already of session 0, which is then not judged again.
    openset: judge too how it tells the classes seen so far from those of later sessions; the last session has none.
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
        yield _judge(method, evaluation_images(dataset, protocol, session), future, protocol, session)


def _judge(method: Method, test: Images, future: Images | None, protocol: Protocol, session: int) -> SessionResult:
    nearness = method.scores(test)
    predicted = nearness.argmax(1).numpy()
    others = {
        name: session_scores(scores.argmax(1).numpy(), test.labels, protocol.base_classes)
        for name, scores in method.alternatives(test).items()
    }
    scores = session_scores(predicted, test.labels, protocol.base_classes)
    unknowns: dict[str, OpenSet] = {}
    if future is not None:
        seen, unseen, correct = Evidence(nearness), Evidence(method.scores(future)), predicted == test.labels
        unknowns = {name: open_set(s(seen).numpy(), correct, s(unseen).numpy()) for name, s in SCORES.items()}
    classes = len(protocol.seen(session))
    return SessionResult(session, classes, predicted, test.labels, scores, others, method.memory(), unknowns)


@dataclass(frozen=True, eq=False)
class Walk:
    """One way through all sessions."""

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

    judged: only after these sessions; None: as the method wants it.
    """
    if judged is None and method.judged == "last":
        judged = (0, protocol.sessions)
    start: dict[str, Any] = method.state()
    base: SessionResult | None = None  # the same on every way
    for count in shots:
        for draw in draws:
            method.load_state(start)
            found = list(walk(method, dataset, protocol.with_shots(count), draw, openset, judged, base))
            base = found[0] if found and not found[0].session else None
            yield Walk(count, draw, found)
    method.load_state(start)
