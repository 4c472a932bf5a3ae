"""results.json and the files beside it: how results were produced, the accuracies of every session, all predictions."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fscil import __version__
from fscil.config import Config, flatten, load_recipe
from fscil.data import Dataset
from fscil.experiments.published import DATA_NAMES
from fscil.experiments.sessions import Walk
from fscil.methods import METHODS, Method
from fscil.metrics import confusion_matrix, performance_drop
from fscil.models import parameter_count
from fscil.protocol import Protocol
from fscil.runtime.files import save_tensors, write_text
from fscil.runtime.text import csv_text
from fscil.training.build import backbone_of, base_images

NOT_DECISIVE = (  # settings that make no result differ from the paper's
    *("about", "train.seed", "train.checkpoint_minutes", "protocol.shots", "data.test_share", "data.word_vectors"),
)
EPISODES = "incremental.episodes"


def result_header(config: Config, dataset: Dataset, protocol: Protocol, fingerprint: str) -> dict[str, Any]:
    """All that decides the figures. fingerprint: of the data, by content. What differs from run to run is not in it."""
    base, method = base_images(dataset, protocol), METHODS[config.method]
    return {
        "schema": 1,
        "data": config.data.name,
        "data_fingerprint": fingerprint,
        "images": {"base training": len(base), "test": len(dataset.test)},
        "protocol": protocol_record(protocol),
        "method": config.method,
        "shown": shown_as(config.method),
        "prototypes": config.test.prototypes,
        "backbone": config.model.backbone,
        "parameters": parameter_count(backbone_of(config, blank=True)),
        "training": {
            "epochs": method.base_recipe(config).train.epochs,
            "seed": config.train.seed,
            "images_seen": round(method.images_seen(config, base, protocol)),
        },
        "departures": departures_from_paper(config),
        "settings": flatten(config),
        "classes": [dataset.class_names[label] for label in protocol.seen(protocol.sessions)],
        "versions": {"fscil": __version__, "torch": torch.__version__, "numpy": np.__version__},
    }


def protocol_record(protocol: Protocol) -> dict[str, Any]:
    """The sessions, as JSON; ways only where they differ. Classes are in the order of their arrival elsewhere."""
    even = {"base_classes": protocol.base_classes, "way": protocol.way, "sessions": protocol.sessions}
    return {**even, "ways": list(protocol.ways)} if protocol.ways else even


def shown_as(name: str) -> dict[str, Any]:
    """How a method wants to be shown in reports; one that is not installed by its name."""
    method = METHODS[name] if name in METHODS else Method  # noqa: SIM401 - get would raise: it expects a KeyError
    return {
        "title": method.title or name,
        "table_order": method.table_order,
        "highlighted": method.highlighted,
        "images_seen_note": method.images_seen_note,
    }


def departures_from_paper(config: Config) -> dict[str, list[Any]]:
    """Settings in which a run departs from the paper's recipe for the same data: key -> [here, in the paper]."""
    if config.data.name not in DATA_NAMES:
        return {}
    here, paper = flatten(config), flatten(load_recipe(config.data.name))
    ignored, method = [*NOT_DECISIVE], METHODS[config.method]
    if not method.trains_in_sessions:
        ignored += [key for key in here if key.startswith("incremental.") and key != EPISODES]
    if not method.trains_in_episodes:
        ignored.append(EPISODES)
    if paper["model.init"] == "pretrained":
        ignored.append("model.weights")
    return {key: [here[key], paper[key]] for key in here if here[key] != paper[key] and key not in ignored}


def walk_record(walk: Walk) -> dict[str, Any]:
    """One pass through all sessions, as JSON."""
    sessions = [
        {
            "session": result.session,
            "classes": result.classes,
            "images": len(result.target),
            **asdict(result.scores),
            "alternatives": {name: scores.average for name, scores in result.alternatives.items()},
            **({"openset": {name: asdict(found) for name, found in result.openset.items()}} if result.openset else {}),
        }
        for result in walk.sessions
    ]
    return {
        "shots": walk.shots,
        "draw": walk.draw,
        "pd": performance_drop([result.scores.average for result in walk.sessions]),
        "memory": asdict(walk.sessions[-1].memory),
        "sessions": sessions,
    }


def save_predictions(folder: Path, walks: Sequence[Walk], names: Sequence[str]) -> None:
    """Every prediction, and per number of shots the confusion matrix of the last session over all draws."""
    tensors = {}
    for walk in walks:
        for result in walk.sessions:
            name = f"{walk.shots}-shot.draw-{walk.draw}.session-{result.session}"
            tensors[name] = torch.tensor(result.predicted)  # a copy: all walks share the array of session 0
            tensors[f"target.session-{result.session}"] = torch.from_numpy(result.target)
    save_tensors(folder / "predictions.safetensors", tensors, {"classes": list(names)})
    for stale in folder.glob("confusion-*-shot.csv"):
        stale.unlink()
    for shots in dict.fromkeys(walk.shots for walk in walks):
        last = [walk.sessions[-1] for walk in walks if walk.shots == shots]
        matrix = sum(confusion_matrix(result.predicted, result.target, result.classes) for result in last)
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["true \\ predicted", *map(csv_text, names)])
        writer.writerows([csv_text(name), *row] for name, row in zip(names, np.asarray(matrix).tolist(), strict=True))
        write_text(folder / f"confusion-{shots}-shot.csv", text.getvalue())
