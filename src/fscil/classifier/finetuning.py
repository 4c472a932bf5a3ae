"""Base training on a folder's classes: planned to fit into the time there is, and able to be stopped and resumed."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from fscil.config import Config, flatten
from fscil.data.images import Images
from fscil.errors import StoreError
from fscil.models import Backbone
from fscil.runtime.text import duration
from fscil.training.base_training import base_step, load_base_network, new_base_network, train_base_network
from fscil.training.context import Context
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


def finetune(
    config: Config,
    base: Images,
    minutes: float | None,
    context: Context,
    say: Say,
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
        plan = make_plan(config, base, minutes, context)
        _announce(say, plan, base, minutes, context)
        if work:
            run = Run.create(work, plan.config, {"asked": asked, "limit": plan.limit, "estimate": plan.seconds})
    chosen = at_most(base, plan.limit)
    began = time.monotonic()
    with run.locked() if run else nullcontext():
        if run and run.finished:
            backbone = load_base_network(plan.config, run, context).backbone
        else:
            backbone = train_base_network(plan.config, chosen, context, run).backbone
    seconds = run.about()["seconds"] if run else round(time.monotonic() - began, 1)
    trained_on = {"classes": len(base.counts), "photos": len(chosen)}
    return backbone, {"settings": flatten(plan.config), "trained on": trained_on, "seconds": seconds}


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


def make_plan(config: Config, base: Images, minutes: float | None, context: Context) -> Plan:
    """The recipe, or as much of it as fits into the minutes: fewer epochs, and if not even one fits, fewer photos."""
    classes = len(base.counts)
    network = new_base_network(config, classes, context)
    seconds = Trainer(config.train, context).estimate(network, base, base_step(config, network, classes))
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


def _announce(say: Say, plan: Plan, base: Images, minutes: float | None, context: Context) -> None:
    epochs, count = plan.config.train.epochs, len(at_most(base, plan.limit))
    most = f" (at most {plan.limit} of a class)" if plan.limit else ""
    within = "" if minutes is None else f", to stay within {minutes:g} min"
    say(
        f"training {plan.config.model.backbone} on {len(base.counts)} classes: "
        f"{epochs} {'epoch' if epochs == 1 else 'epochs'} of {count} photos{most}{within}"
    )
    where = f"{context.device.type}, {torch.get_num_threads()} threads"
    say(f"time on this machine ({where}): about {duration(plan.seconds)}")
