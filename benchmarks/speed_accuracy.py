"""How long it takes to reach the accuracy that the literal recipe has after a few epochs.

Both train on the validation split of tune.py: the first 50 base classes of CIFAR-100 as base, the other 10 as new ones,
a tenth of the training images as test part, no test data. First the literal program trains, then ours, until the mean
5-shot harmonic accuracy of the last session is as good; evaluation is not part of the time. The literal training, when
stopped, continues after its last whole epoch, and is not repeated once it is finished.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter

import literal
import numpy as np
import torch
from speed_images import random_dataset
from speed_table import Row
from speed_worker import Worker
from torch import Tensor
from tune import without_test_data

from fscil.config import load_recipe
from fscil.data import Dataset
from fscil.experiments.sessions import walk_all
from fscil.methods import Alice
from fscil.protocol import Draw, Protocol
from fscil.runtime.allocator import tune_allocator
from fscil.runtime.files import load_tensors, save_tensors
from fscil.runtime.progress import ProgressBar
from fscil.runtime.text import duration
from fscil.training.base_training import TrainedNetwork, base_step, new_base_network
from fscil.training.build import backbone_of, base_images, dataset_of
from fscil.training.context import Context
from fscil.training.loop import Batch, Trainer

CPU = Context.on("cpu", quiet=True)
SHOTS, DRAWS = 5, 10
GOAL = 5.0
WIDTH = 16


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("time to accuracy, with --long")
    group.add_argument("--epochs", type=int, default=3, help="of the literal recipe (default: %(default)s)")
    group.add_argument("--every", type=int, default=200, help="steps between our evaluations (default: %(default)s)")
    group.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change our recipe, cifar100_cpu, for instance train.epochs=4",
    )
    group.add_argument(
        "--work",
        type=Path,
        default=Path("runs/time-to-accuracy"),
        help="keeps the literal training, which continues from there (default: %(default)s)",
    )


def validation_data(data: str | None) -> tuple[Dataset, Protocol]:
    """Without a folder: a few random images of as many classes."""
    dataset = dataset_of(load_recipe("cifar100"), Path(data), quiet=True) if data else random_dataset(60, 6, 1)
    return without_test_data(dataset, tuple(range(60))), Protocol(50, 5, 2, SHOTS)


def harmonic_accuracy(method: Alice, dataset: Dataset, protocol: Protocol) -> float:
    """After the last session, the mean over the draws."""
    method.features.clear()
    method.fit_base(base_images(dataset, protocol), (SHOTS,))
    draws: list[Draw] = list(range(DRAWS))
    walks = walk_all(method, dataset, protocol, (SHOTS,), draws, judged=(protocol.sessions,))
    return float(np.mean([walk.sessions[-1].scores.harmonic for walk in walks]))


# The two sides


def literal_training(
    data: str | None, width: int, hidden: int, batch: int, epochs: int, folder: str
) -> Callable[[], dict[str, float]]:
    """A round is one epoch, as long as there is one to do; it answers with all seconds so far and the accuracy."""
    dataset, protocol = validation_data(data)
    base = base_images(dataset, protocol)
    torch.manual_seed(0)
    network = literal.Network(width, protocol.base_classes, hidden)
    optimizer = literal.optimizer_of(network)
    kept = Path(folder) / f"literal-{len(base)}-{width}-{batch}.safetensors"
    history: list[dict[str, float]] = []  # an entry per epoch
    if kept.exists():
        tensors, about = load_tensors(kept)
        history = about["history"]
        network.load_state_dict({name: tensors[f"network.{name}"] for name in network.state_dict()})
        for name, parameter in network.named_parameters():
            optimizer.state[parameter]["momentum_buffer"] = tensors[f"momentum.{name}"]
    views = literal.TwoViews(base.pixels.read(base.rows), base.labels.tolist(), 32)

    def next_epoch() -> None:
        number = len(history)
        random.seed(number)
        torch.manual_seed(number)
        loader = literal.loader_of(views, batch)
        began = perf_counter()
        with ProgressBar(f"literal, epoch {number + 1}", len(loader)) as bar:
            for loss in literal.train_epoch(network, optimizer, loader, protocol.base_classes):
                bar.advance(1, f"loss {loss:.3f}")
        seconds = perf_counter() - began + (history[-1]["seconds"] if history else 0.0)
        config = load_recipe("cifar100", [f"model.width={width}"])
        method = Alice(config, TrainedNetwork(backbone_of(config), None), CPU)
        method.backbone.load_state_dict(network.backbone.state_dict())
        harmonic = harmonic_accuracy(method, dataset, protocol)
        history.append({"epochs": number + 1, "seconds": seconds, "harmonic": harmonic})
        tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
        for name, parameter in network.named_parameters():
            tensors[f"momentum.{name}"] = optimizer.state[parameter]["momentum_buffer"]
        save_tensors(kept, tensors, {"history": history})

    def work() -> dict[str, float]:
        if len(history) < epochs:
            next_epoch()
        return history[min(len(history), epochs) - 1]

    return work


class _Reached(Exception):
    """Training may end."""


def our_training(data: str | None, settings: list[str], every: int, target: float) -> Callable[[], dict[str, float]]:
    """One round is one training, which ends when it has reached the target."""
    tune_allocator()
    dataset, protocol = validation_data(data)
    config, base = load_recipe("cifar100_cpu", settings), base_images(dataset, protocol)

    def training() -> dict[str, float]:
        trainer = Trainer(config.train, CPU)
        network = new_base_network(config, protocol.base_classes, CPU)
        method = Alice(config, TrainedNetwork(network.backbone, None), CPU)
        loss = base_step(config, network, protocol.base_classes)
        state = {"steps": 0, "pauses": 0.0, "seconds": 0.0, "harmonic": 0.0}

        def evaluate() -> None:
            paused = perf_counter()
            state["seconds"] = paused - began - state["pauses"]
            state["harmonic"] = harmonic_accuracy(method, dataset, protocol)
            say(f"  ours, step {state['steps']}, {duration(state['seconds'])}: harmonic {state['harmonic']:.2%}")
            state["pauses"] += perf_counter() - paused

        def step(batch: Batch) -> Iterable[Tensor]:
            if state["steps"] and state["steps"] % every == 0:
                evaluate()
                if state["harmonic"] >= target:
                    raise _Reached
            state["steps"] += 1
            return loss(batch)

        began = perf_counter()
        try:
            trainer.train(network, base, step)
            evaluate()
        except _Reached:
            pass
        return state

    return training


# The row


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(given: argparse.Namespace) -> Row:
    """given: data, quick, and what add_options adds."""
    data, epochs, settings = given.data and str(given.data), given.epochs, given.settings
    model = {"width": WIDTH, "hidden": 2048, "batch": 128}
    if given.quick:
        data, epochs, model = None, 1, {"width": 8, "hidden": 64, "batch": 32}
        settings = ["model.width=8", "model.projection=64", "train.batch=32", "train.epochs=1", *settings]
    say(f"time to accuracy: the literal recipe, epochs: {epochs} …")
    options = {**model, "data": data, "epochs": epochs, "folder": str(given.work)}
    with Worker("accuracy", "literal_training", **options) as worker:
        theirs = worker.round()
        while theirs["epochs"] < epochs:
            say(
                f"  literal, epoch {theirs['epochs']}, {duration(theirs['seconds'])}: harmonic {theirs['harmonic']:.2%}"
            )
            theirs = worker.round()
    target = theirs["harmonic"]
    say(f"  literal, {duration(theirs['seconds'])}: harmonic {target:.2%}. Ours …")
    with Worker("accuracy", "our_training", data=data, settings=settings, every=given.every, target=target) as worker:
        ours = worker.round()
    reached = ours["harmonic"] >= target
    cells = (
        f"{duration(ours['seconds'])} to {ours['harmonic']:.1%}" + ("" if reached else ": not reached"),
        f"{duration(theirs['seconds'])} to {target:.1%} (literal, width {model['width']}, epochs: {epochs})",
    )
    seconds = {"ours": [ours["seconds"]], "literal": [theirs["seconds"]]}
    figure = theirs["seconds"] / ours["seconds"] if reached else 0.0
    return Row("time to 5-shot harmonic accuracy, validation", *cells, figure, GOAL, "times faster", seconds)
