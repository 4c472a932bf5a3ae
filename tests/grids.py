"""Made-up results of a grid, in the files that `fscil bench` and `fscil study` write; and a look at their tables."""

import numpy as np
import torch

from fscil.runtime.files import save_tensors, write_json


def session(number, average, base_classes=60, way=5):
    novel = None if number == 0 else average * 0.6
    base = average * 1.1
    return {
        "session": number,
        "classes": base_classes + way * number,
        "images": 100,
        "average": average,
        "base": base,
        "novel": novel,
        "harmonic": None if novel is None else 2 * base * novel / (base + novel),
        "class_mean": average,
        "alternatives": {},
    }


def accuracy(row, seed, shots, draw, number):
    """A number that differs in everything it depends on."""
    return 0.7 - 0.03 * number - 0.01 * row - 0.004 * seed - 0.002 * (draw + 1) - (0.1 if shots == 1 else 0.0)


def write_grid(
    folder,
    kind="bench",
    labels=("alice", "cec"),
    seeds=(0,),
    shots=(5, 1),
    draws=(0, 1),
    data="cifar100",
    sessions=8,
):
    """All sessions of every label; "joint" is judged at the first and the last only."""
    cells = []
    for row, label in enumerate(labels):
        for seed in seeds:
            name = f"{row}-seed{seed}"
            cells.append({"name": name, "label": label, "seed": seed})
            walks = []
            for count in shots:
                for draw in draws:
                    numbers = (0, sessions) if label == "joint" else range(sessions + 1)
                    steps = [session(number, accuracy(row, seed, count, draw, number)) for number in numbers]
                    memory = {"images": 300 if label == "icarl" else 0, "floats": 1234}
                    walk = {"shots": count, "draw": draw, "pd": 0.0, "memory": memory, "seconds": 1.5}
                    walks.append({**walk, "sessions": steps})
                    random = np.random.default_rng([row, seed, count, draw])
                    target = torch.arange(100).repeat_interleave(2)
                    predicted = torch.where(
                        torch.from_numpy(random.random(200) < 0.6),
                        target,
                        torch.from_numpy(random.integers(0, 100, 200)),
                    )
                    tensors = {"predicted.session-8": predicted, "target.session-8": target}
                    place = folder / "cells" / name / "predictions"
                    save_tensors(place / f"{count}-shot-draw-{draw}.safetensors", tensors)
            results = {
                "schema": 1,
                "data": data,
                "images": {"base training": 30000, "test": 10000},
                "protocol": {"base_classes": 60, "way": 5, "sessions": sessions},
                "method": label if kind == "bench" else "alice",
                "prototypes": "balanced",
                "backbone": "resnet18",
                "parameters": 700176,
                "training": {"epochs": 10, "seed": seed, "seconds": 100.0, "images_seen": 599040},
                "departures": {"model.width": [16, 64]},
                "machine": {"system": "Linux", "cores": 2, "device": "cpu", "torch": "2.13.0"},
                "label": label,
                "base": f"base{row}",
                "fit_seconds": 2.0,
                "command": "fscil bench cifar100 --out DIR",
                "walks": walks,
            }
            write_json(folder / "cells" / name / "results.json", results)
        points = np.random.default_rng(row).normal(size=(120, 8)).astype(np.float32)
        sample = {"features": torch.from_numpy(points), "labels": torch.arange(60).repeat(2)}
        save_tensors(folder / "base" / f"base{row}" / "sample.safetensors", sample)
    write_json(folder / "grid.json", {"schema": 1, "kind": kind, "command": "fscil bench …", "cells": cells})
    return folder


ABLATION = (
    "cross-entropy",
    "cross-entropy, balanced",
    "angular penalty",
    "angular penalty, balanced",
    "+ projection",
    "+ two views",
    "+ class augmentation",
)
SWEEPS = tuple(
    dict.fromkeys(
        [f"m={m:g} s=30" for m in (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)]
        + [f"m=0.4 s={s}" for s in (10, 20, 30, 40, 50, 60)]
    )
)


def groups(table):
    """The cells of a table's rows by the heading above them."""
    found = {}
    for kind, cells in table.rows:
        if kind == "heading":
            rows = found[cells[0]] = []
        else:
            rows.append(list(cells))
    return found
