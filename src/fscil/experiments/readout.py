"""Decision rules compared on one network's frozen features, under the few-shot class-incremental protocol.

The constants of every readout are chosen on the base classes' training images alone: base classes are held out in turn
as pseudo-novel ones, enrolled from 1 and 5 images, and images that nothing was estimated from are named, and told from
unknown before the fold is enrolled. The sum of harmonic accuracy and AUROC decides.

Test images are seen once, with the constants chosen. AUROC: test images of the classes seen so far against those of
later sessions, by the evidence for a known one, mean over all sessions but the last. ECE: expected calibration error of
PLDA's probabilities, "unknown" included with a prior of 1/2, over the same sessions.

OUT/results.json      constants and figures of every readout; one that is there with the draws asked for is kept, and
                      constants once chosen are chosen for other draws too
OUT/provenance.json   commands, times and machines of these
OUT/trials.jsonl      every trial of constants
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fscil.errors import ConfigError, ProtocolError
from fscil.experiments.provenance import PROVENANCE, RESULTS, command
from fscil.gallery.choosing import Division, divisions
from fscil.gallery.probability import Asked, ProbabilityCalibration, calibration_error
from fscil.methods.toolkit.readouts import FIXED, READOUTS, OwnChoice, Readout
from fscil.metrics import auroc, harmonic_accuracy, session_scores
from fscil.openset import Evidence, contrast
from fscil.protocol import Draw
from fscil.protocol import Protocol as Sessions
from fscil.runtime.files import append_json_line, read_json, write_json
from fscil.training.run_folder import machine

SHOTS = (5, 1)
FIGURES = ("average", "base", "novel", "harmonic", "auroc")
FEWEST_CLASSES, FEWEST_IMAGES = 4, 9  # base classes, and images of each, for pseudo-novel ones of 5 shots


def judge(readout: Readout, base: Tensor, known: Tensor, part: Division) -> list[dict[str, float]]:
    """Figures of one division, for every number of shots and every draw. known: base[part.photos]"""
    readout.fit(known, part.labels[part.photos])
    target = part.labels[part.queries].numpy()
    old, figures = target < len(part.base), []
    queries = base[part.queries]
    alone = readout.evidence(readout.scores(queries, base.new_zeros(0, 1, base.shape[1])), 1).numpy()
    for shots, rows in part.shots:
        novel = base[rows].view(len(part.novel), -1, base.shape[1])
        right = readout.scores(queries, novel).argmax(1).numpy() == target
        accuracies = float(right[old].mean()), float(right[~old].mean())
        found = (*accuracies, harmonic_accuracy(*accuracies), auroc(alone[old], alone[~old]))
        figures.append({"shots": shots, **dict(zip(FIGURES[1:], found, strict=True))})
    return figures


def search(name: str, base: Tensor, labels: Tensor, log: Path) -> dict[str, Any]:
    """The constants of a readout with the largest sum of harmonic accuracy and AUROC over the divisions, unless it has
    a procedure of its own.
    """
    kind, fixed = READOUTS[name], FIXED.get(name, {})
    own: OwnChoice | None = kind.own_choice(base, labels)
    if own:
        for trial in own.trials:
            append_json_line(log, {"readout": name, **trial})
        return own.constants
    cells = [
        {**dict(zip(kind.grid, values, strict=True)), **fixed} for values in itertools.product(*kind.grid.values())
    ]
    found: list[list[dict[str, float]]] = [[] for _ in cells]
    for part in divisions(labels):
        known = base[part.photos]
        for cell, figures in zip(cells, found, strict=True):
            figures += judge(kind(**cell), base, known, part)
    sums = [float(np.mean([one["harmonic"] + one["auroc"] for one in figures])) for figures in found]
    for cell, figures, total in zip(cells, found, sums, strict=True):
        means = {
            f"{k}-shot {key}": round(float(np.mean([one[key] for one in figures if one["shots"] == k])), 4)
            for k in SHOTS
            for key in FIGURES[1:]
        }
        append_json_line(log, {"readout": name, "constants": cell, "objective": round(total, 5), "figures": means})
    return cells[int(np.argmax(sums))]


def measure(
    readout: Readout, parts: Mapping[str, Tensor], protocol: Sessions, shots: Sequence[int], draws: Iterable[Draw]
) -> Iterator[dict[str, Any]]:
    """Figures of every draw and number of shots on test images, the readout being fitted already.

    parts: train (n, d), train_labels (n,), test (m, d), test_labels (m,), labels being places by arrival.
    """
    train, labels = parts["train"], parts["train_labels"].numpy()
    keep = parts["test_labels"] < protocol.classes
    queries, target = parts["test"][keep], parts["test_labels"][keep].numpy()
    base = protocol.base_classes
    first = readout.scores(queries, train.new_zeros(0, 1, train.shape[1]))
    for draw, count in itertools.product(draws, shots):
        sized = protocol.with_shots(count)
        rows = [sized.samples(labels, session, draw) for session in range(1, protocol.sessions + 1)]
        novel = train[np.concatenate(rows)].view(-1, count, train.shape[1])
        whole = readout.scores(queries, novel) if readout.classes_are_independent else None
        sessions, known_scores, contrasts, asked = [], [], [], []
        for session in range(protocol.sessions + 1):
            seen = len(protocol.seen(session))
            if not session:
                scores = first
            else:
                scores = readout.scores(queries, novel[: seen - base]) if whole is None else whole[:, :seen]
            mine = target < seen
            figures = session_scores(scores.argmax(1).numpy()[mine], target[mine], base)
            sessions.append(asdict(figures))
            if session < protocol.sessions:
                evidence = readout.evidence(scores, count)
                known_scores.append(auroc(evidence.numpy()[mine], evidence.numpy()[~mine]))
                if readout.scores_are_cosines:
                    led = contrast(Evidence(scores)).numpy()
                    contrasts.append(auroc(led[mine], led[~mine]))
                if readout.calibration:
                    asked.append(Asked(scores, torch.from_numpy(np.where(mine, target, -1)), evidence))
        last = sessions[-1]
        error = {}
        if readout.calibration:
            error["ece"] = calibration_error([(asked, ProbabilityCalibration(**readout.calibration))])
        yield {
            "shots": count,
            "draw": draw,
            **{key: last[key] for key in FIGURES[:4]},
            "session 0": sessions[0]["average"],
            "auroc": float(np.mean(known_scores)),
            **({"auroc, contrast": float(np.mean(contrasts))} if contrasts else {}),
            **error,
            "sessions": [one["average"] for one in sessions],
            "aurocs": known_scores,
        }


def compare(
    parts: Mapping[str, Tensor],
    about: Mapping[str, Any],
    out: Path,
    say: Callable[[str], None],
    draws: int = 10,
    shots: Sequence[int] = SHOTS,
    readouts: Sequence[str] = (),
    constants: Mapping[str, dict[str, Any]] | None = None,
    label: str = "",
) -> dict[str, Any]:
    """Choose the constants of each readout and measure it, into the folder; returns the content of results.json.

    parts, about: as `fscil features` writes them. readouts: names; all by default. constants: by readout, to be used
    instead of choosing them. label: of the row, where one readout is measured.
    """
    sizes = about["protocol"]
    ways = tuple(sizes.get("ways", ()))
    protocol = Sessions(sizes["base_classes"], sizes["way"], sizes["sessions"], ways=ways)
    mine = parts["train_labels"] < protocol.base_classes
    base, labels = parts["train"][mine], parts["train_labels"][mine]
    for name in readouts:
        if name not in READOUTS:
            raise ConfigError(f'no readout named "{name}". Known are {"; ".join(READOUTS)}.')
    _require_enough(labels, protocol)
    out.mkdir(parents=True, exist_ok=True)
    path, notes = out / RESULTS, out / PROVENANCE
    results: dict[str, Any] = read_json(path) if path.exists() else {"features": dict(about), "readouts": {}}
    told: dict[str, Any] = read_json(notes) if notes.exists() else {"readouts": {}}
    if results["features"] != about:
        raise ConfigError(f"{out} holds readouts of other features. Choose another folder with --out.")
    drawn = ["published", *range(draws)]
    for name in readouts or READOUTS:
        row, given, start = label or name, (constants or {}).get(name), perf_counter()
        before = _comparable(results["readouts"].get(row), name, given)
        if before and [(one["draw"], one["shots"]) for one in before["walks"]] == [*itertools.product(drawn, shots)]:
            say(f"{row}: measured before")
            continue
        chosen = before["constants"] if before else given or search(name, base, labels, out / "trials.jsonl")
        searched = perf_counter() - start
        readout = READOUTS[name](**chosen)
        readout.fit(base, labels)
        walks = list(measure(readout, parts, protocol, shots, drawn))
        results["readouts"][row] = {
            "readout": name,
            "constants": chosen,
            "how": "given" if given else "chosen",
            "walks": walks,
        }
        seconds = told["readouts"][row]["seconds"] if before and row in told["readouts"] else round(searched, 1)
        told["readouts"][row] = {"seconds": seconds, "command": command(), "machine": machine()}
        write_json(notes, told)
        write_json(path, results)
        say(f"{row}: {chosen}, {searched:.0f} s + {perf_counter() - start - searched:.0f} s")
    return results


def _comparable(row: dict[str, Any] | None, readout: str, given: dict[str, Any] | None) -> dict[str, Any] | None:
    """The row if it is of this readout with the constants given, or with chosen ones where none are given."""
    if row is None or row.get("readout", readout) != readout or row["how"] != ("given" if given else "chosen"):
        return None
    return row if not given or row["constants"] == given else None


def _require_enough(labels: Tensor, protocol: Sessions) -> None:
    """Of base classes and their images, for pseudo-novel ones; and of sessions."""
    counts = torch.bincount(labels)
    if not protocol.sessions:
        raise ProtocolError("readouts are compared in sessions of new classes, and this protocol has none.")
    if len(counts) < FEWEST_CLASSES or int(counts.min()) < FEWEST_IMAGES:
        raise ProtocolError(
            f"to choose constants, readouts need {FEWEST_CLASSES} base classes of {FEWEST_IMAGES} training images "
            f"each; there are {len(counts)}, the smallest of {int(counts.min())}."
        )
