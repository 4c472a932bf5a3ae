"""Base training on a folder's classes: planned to fit into the time there is, and able to be stopped and resumed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from fscil.config import Config, flatten
from fscil.data.images import Images
from fscil.errors import StoreError
from fscil.methods import Alice
from fscil.models import Backbone
from fscil.runtime.files import load_tensors
from fscil.runtime.progress import clock
from fscil.training.loop import Trainer
from fscil.training.run_folder import Run

CAUTION = 0.9  # share of the minutes that is planned for, because an estimate may be wrong

Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How long to train, and on how many photos."""

    config: Config
    limit: int | None  # photos per class, where there is no time for all
    seconds: float


def learn(
    config: Config,
    base: Images,
    minutes: float | None,
    device: torch.device,
    say: Say,
    quiet: bool,
    work: Path | None,
    asked: Mapping[str, Any],
) -> tuple[Backbone, dict[str, Any]]:
    """The trained backbone, and how it came about.

    With a run folder (`work`) it can be stopped: the same call, with the same `asked`, goes on with what was decided.
    """
    asked = {**asked, "settings": flatten(config), "minutes": minutes}
    run = _begun(work, asked) if work else None
    if run:
        plan = Plan(run.config(), run.about()["limit"], run.about()["estimate"])
        say(f"going on with the training in {run.folder}")
    else:
        plan = make_plan(config, base, minutes, device, quiet)
        _tell(say, plan, base, minutes, device)
        if work:
            run = Run.create(work, plan.config, {"asked": asked, "limit": plan.limit, "estimate": plan.seconds})
    chosen = at_most(base, plan.limit)
    with _held(run):
        trainer = Trainer(plan.config.train, device, run, quiet)
        finished = run is not None and run.finished
        method = Alice(plan.config, trainer, blank=finished)
        if run and finished:
            method.load_backbone(load_tensors(run.weights)[0], str(run.weights))
            trainer.seconds = run.about()["seconds"]
        else:
            method.train_backbone(chosen)
            if run:
                run.note(seconds=round(trainer.seconds, 1))
                run.finish(method.backbone.state_dict(), {"backbone": plan.config.model.backbone})
    trained_on = {"classes": len(base.counts), "photos": len(chosen)}
    made = {"settings": flatten(plan.config), "trained on": trained_on, "seconds": round(trainer.seconds, 1)}
    return method.backbone, made


@contextmanager
def _held(run: Run | None) -> Iterator[None]:
    if run is None:
        yield
        return
    with run.locked():
        yield


def _begun(work: Path, asked: Mapping[str, Any]) -> Run | None:
    """The run that the same command began before, if there is one."""
    if not (work / "run.json").is_file():
        return None
    run = Run.open(work)
    before = run.about().get("asked", {})
    differing = [key for key in asked if before.get(key) != asked[key]]
    if differing:
        raise StoreError(
            f"{work} holds an unfinished training that was begun with other {' and '.join(differing)}. Give the same "
            f"to go on with it, or delete that folder to begin anew."
        )
    return run


def make_plan(config: Config, base: Images, minutes: float | None, device: torch.device, quiet: bool) -> Plan:
    """The recipe, or as much of it as fits into the minutes: fewer epochs, and if not even one fits, fewer photos."""
    trainer = Trainer(config.train, device, quiet=quiet)
    method, classes = Alice(config, trainer), len(base.counts)
    network = method.network(classes)
    seconds = trainer.estimate(network, base, method.step(network, classes))
    if minutes is None or seconds <= 60 * minutes * CAUTION:
        return Plan(config, None, seconds)
    epoch, budget = seconds / config.train.epochs, 60 * minutes * CAUTION
    epochs = max(1, int(budget / epoch))
    shorter = replace(config, train=replace(config.train, epochs=epochs))
    if epoch <= budget:
        return Plan(shorter, None, epochs * epoch)
    limit = largest_limit(list(base.counts.values()), budget / epoch)
    return Plan(shorter, limit, epoch * len(at_most(base, limit)) / len(base))


def largest_limit(counts: Sequence[int], share: float) -> int:
    """The largest number of photos per class that keeps at most this share of all, and never less than one."""
    numbers = np.array(counts)
    kept = np.minimum(numbers[:, None], np.arange(1, numbers.max() + 1)).sum(0)  # with a limit of 1, 2, …
    return max(1, int((kept <= share * numbers.sum()).sum()))


def at_most(base: Images, limit: int | None) -> Images:
    """Of each class a seeded draw of this many photos."""
    if limit is None:
        return base
    order = np.random.default_rng(0).permutation(len(base))
    chosen = np.concatenate([order[base.labels[order] == label][:limit] for label in base.counts])
    return base.select(np.sort(chosen))


def _tell(say: Say, plan: Plan, base: Images, minutes: float | None, device: torch.device) -> None:
    epochs, count = plan.config.train.epochs, len(at_most(base, plan.limit))
    most = f" (at most {plan.limit} of a class)" if plan.limit else ""
    within = "" if minutes is None else f", to stay within {minutes:g} min"
    say(
        f"training {plan.config.model.backbone} on {len(base.counts)} classes: "
        f"{epochs} {'epoch' if epochs == 1 else 'epochs'} of {count} photos{most}{within}"
    )
    say(f"time on this machine ({device.type}, {torch.get_num_threads()} threads): about {clock(plan.seconds)}")
