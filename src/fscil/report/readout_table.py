"""The table of `fscil study readout`: decision rules on the same features, paired gains over the balanced cosine."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fscil.metrics import mean_and_interval

FIGURES = ("average", "base", "novel", "harmonic", "auroc")
GAINS = ("harmonic", "average", "auroc")
REFERENCE = "cosine, balanced"


VERSIONS = ("fscil", "torch", "python")


def readout_table(results: Mapping[str, Any], provenance: Mapping[str, Any]) -> str:
    """Percentages, as Markdown: the published draw; mean and 95% interval of seeded ones; paired gains and theirs.

    results, provenance: the content of the folder's results.json and provenance.json.
    """
    lines, entries = [], results["readouts"]
    for shots in dict.fromkeys(walk["shots"] for entry in entries.values() for walk in entry["walks"]):
        heads = " | ".join(FIGURES)
        lines += [
            f"### {shots}-shot",
            "",
            f"| | published: {' / '.join(FIGURES)} | {heads} | harmonic gain | average gain | AUROC gain |",
            f"| --- | --- | {' | '.join(['---:'] * (len(FIGURES) + 3))} |",
        ]
        before = {one["draw"]: one for one in _walks(entries.get(REFERENCE), shots)}
        lines += [_row(name, _walks(entry, shots), before) for name, entry in entries.items()]
        lines.append("")
    lines += ["Constants:", ""]
    lines += [f"- {name} ({entry['how']}): {json.dumps(entry['constants'])}" for name, entry in entries.items()]
    lines += ["", "How these were made:", "", f"- features of {_features(results['features'])}"]
    lines += [f"- {how}: {'; '.join(names)}" for how, names in _made_by(provenance["readouts"]).items()]
    return "\n".join(lines) + "\n"


def _features(about: Mapping[str, Any]) -> str:
    images = f", images (SHA-256) {about['data_fingerprint'][:16]}" if "data_fingerprint" in about else ""
    return f"{about['data']}, {about['backbone']}{images}; all settings and the order of classes: results.json"


def _made_by(readouts: Mapping[str, Any]) -> dict[str, list[str]]:
    """Command, versions and machine -> the readouts measured by it."""
    found: dict[str, list[str]] = {}
    for name, how in readouts.items():
        machine = how["machine"]
        versions = [f"{key} {machine[key]}" for key in VERSIONS if key in machine]
        place = [machine[key] for key in ("cpu", "device", "system") if machine.get(key)]
        found.setdefault(f"`{how['command']}` ({', '.join([*versions, *place])})", []).append(name)
    return found


def _walks(entry: Mapping[str, Any] | None, shots: int) -> list[dict[str, Any]]:
    return [walk for walk in entry["walks"] if walk["shots"] == shots] if entry else []


def _row(name: str, walks: Sequence[Mapping[str, Any]], before: Mapping[Any, Mapping[str, Any]]) -> str:
    fixed = next(one for one in walks if one["draw"] == "published")
    seeded = [one for one in walks if one["draw"] != "published"] or [fixed]
    cells = [_interval([100 * one[key] for one in seeded]) for key in FIGURES]
    if "auroc, contrast" in fixed:
        cells[-1] += f" (contrast {100 * np.mean([one['auroc, contrast'] for one in seeded]):.1f})"
    for key in GAINS:
        gains = [100 * (one[key] - before[one["draw"]][key]) for one in seeded if one["draw"] in before]
        cells.append(_interval(gains, "+") if gains else "")
    first = " / ".join(f"{100 * fixed[key]:.1f}" for key in FIGURES)
    return f"| {name} | {first} | {' | '.join(cells)} |"


def _interval(values: Sequence[float], sign: str = "") -> str:
    mean, half = mean_and_interval(values)
    return f"{mean:{sign}.1f}" + (f" ± {half:.1f}" if half is not None else "")
