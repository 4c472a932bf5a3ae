"""What two processes do in test_torchrun.py: everything alone first, then together; process 0 writes both down.

Called by torchrun with the folder to write to.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn

from fscil.errors import ConfigError, FscilError
from fscil.experiments.run import evaluate, installed_base_recipe
from fscil.features import FeatureCache
from fscil.methods import METHODS
from fscil.models.synchronised_batchnorm import SynchronisedBatchNorm
from fscil.runtime import torchrun
from fscil.runtime.distributed import (
    all_reduce_max,
    all_reduce_sum,
    computed_by_main,
    gather_rows,
    joined,
    raise_in_all,
    rank,
    share,
    world_size,
)
from fscil.runtime.files import save_tensors
from fscil.training.base_network import OBJECTIVES, Objective
from fscil.training.base_training import new_base_network, recipe_step, train_base_network
from fscil.training.batches import Batches
from fscil.training.build import preprocess_of
from fscil.training.run_folder import Run

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers import CONTEXT, part, small_config

CLASSES = 4
BASE = part([7, 7, 6, 6], 0)
TRAININGS = {
    "plain": ["mixing.repeats=0", "views.count=1"],
    "mixed": ["mixing.repeats=2", "views.count=2"],
    "drawn pairs": ["mixing.repeats=1", "mixing.pairs=3"],
    "crops": ["mixing.repeats=0", "views.kind=crops", "test.resize=20"],
    "compiled": ["mixing.repeats=0", "views.count=1", "train.compile=aot_eager"],
}
NORMALISED = [(False, 7), (True, 7), (True, 1)]  # with weights, and rows: of one row a process has none
WITH_OBJECTIVE = ["fact", "savc", "nc_fscil", "closer", "orco"]


def trained(name, *assignments, double=True):
    """Losses of every step and the final weights. double: so that rounding does not hide a difference."""
    config = small_config("model.width=4", "train.epochs=2", "train.batch=9", "train.lr=0.02", *assignments)
    if name in WITH_OBJECTIVE:
        config = METHODS[name].base_recipe(config)
    network = new_base_network(config, CLASSES, CONTEXT)
    encoders = [network.backbone, *([network.objective.slow_backbone] if name == "savc" else [])]
    for backbone in encoders if double else []:
        first, *_, last = backbone.double()
        first.register_forward_pre_hook(lambda module, inputs: (inputs[0].double(),))
        if name in WITH_OBJECTIVE:  # what it puts on the features is in float32
            last.register_forward_hook(lambda module, inputs, features: features.float())
        network.projection.double()
    step, losses = recipe_step(config, network, CLASSES), []

    def watched(batch):
        for loss in step(batch):
            losses.append(loss.detach().double())
            yield loss

    train_base_network(config, BASE, CONTEXT, network=network, make_step=lambda *given: watched)
    everyone = (all_reduce_sum(torch.stack(losses)) / world_size()).tolist() if losses else []
    return everyone, {name: value.double() for name, value in network.state_dict().items()}


def images_of_steps():
    """Row numbers of every step: all of the batch as one process reads them, or those of this one."""
    settings = small_config("train.batch=9", "train.epochs=3").train
    found = []
    for _, batch in Batches(BASE, settings, CONTEXT.device).from_step(0):
        pixels = batch.pixels.flatten(1).tolist()
        found.append([EVERY.index(image) for image in pixels])
    return found


EVERY = torch.from_numpy(BASE.pixels.read(BASE.rows)).flatten(1).tolist()


def normalised(weights, rows):
    """BatchNorm of this process's share: output, gradients and statistics, each as all processes have them."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, 4, 5, generator=random, dtype=torch.float64) * 2 + 100
    slope = torch.randn(rows, 3, 4, 5, generator=random, dtype=torch.float64)
    norm = nn.BatchNorm2d(3, affine=weights, momentum=0.3).double()
    if weights:
        nn.init.normal_(norm.weight, generator=random)
    own = x[share(rows)].clone().requires_grad_()
    with SynchronisedBatchNorm():
        y = norm(own)
    (y * slope[share(rows)]).sum().backward()
    found = [gather_rows(each.detach()[None], rows)[0] for each in (y, own.grad)]
    found += [norm.running_mean, norm.running_var]
    return found + ([all_reduce_sum(norm.weight.grad), all_reduce_sum(norm.bias.grad)] if weights else [])


def features(network):
    return FeatureCache(network.backbone, preprocess_of(small_config()), CONTEXT.device, batch=4, quiet=True)(BASE)


def failing(place):
    """What a mistake in one process is in this one."""
    try:
        with raise_in_all():
            if rank() == place:
                raise ConfigError("no such thing.")
    except FscilError as error:
        return [type(error).__name__, str(error)]
    return None


def refused():
    """What is said to an objective that does not divide its batches."""
    OBJECTIVES.register("undivided")(type("Undivided", (Objective,), {}))
    try:
        installed_base_recipe(small_config("train.objective=undivided", "mixing.repeats=0", "method=ncm"))
    except ConfigError as error:
        return str(error)
    return None


def threads_of_torch():
    """Names of the threads that gloo has started; some systems cannot tell."""
    names = (path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))
    return [name for name in names if "gloo" in name]


def main(folder):
    photos, trainings = folder / "photos", TRAININGS | {name: [] for name in WITH_OBJECTIVE}
    network = new_base_network(small_config(), CLASSES, CONTEXT)
    alone = {name: trained(name, *each) for name, each in trainings.items()}
    wanted = [normalised(*each) for each in NORMALISED]
    lonely = features(network)
    results = [evaluate(Run.open(folder / "run"), photos, CONTEXT)]
    with joined(torch.device("cpu")):
        both = {name: trained(name, *each) for name, each in trainings.items()}
        found = [normalised(*each) for each in NORMALISED]
        shared = features(network)
        # The first extracts features and keeps them, the second reads them.
        results += [evaluate(Run.open(folder / "run-of-two"), photos, CONTEXT) for _ in range(2)]
        record = {
            "losses": {name: [alone[name][0], both[name][0]] for name in trainings},
            "images": images_of_steps(),
            "failures": [failing(0), failing(1)],
            "bf16": {name: trained(name, "train.precision=bf16", double=False)[0] for name in ("plain", "fact")},
            "said": computed_by_main(lambda: "by process 0"),
            "largest": all_reduce_max(rank(), -rank()),
            "results": results,
            "refused": refused(),
            "threads": [threads_of_torch()],
        }
    record["threads"].append(threads_of_torch())
    tensors = {}
    for place, pair in enumerate(zip(wanted, found, strict=True)):
        for name, each in zip(("one", "two"), pair, strict=True):
            tensors |= {f"{name}.norm.{place}.{number}": value for number, value in enumerate(each)}
    for name in trainings:
        tensors |= {f"one.{name}.{key}": value for key, value in alone[name][1].items()}
        tensors |= {f"two.{name}.{key}": value for key, value in both[name][1].items()}
    tensors |= {"one.features": lonely, "two.features": shared}
    (folder / f"{torchrun.rank()}.json").write_text(json.dumps(record))
    save_tensors(folder / f"{torchrun.rank()}.safetensors", tensors)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
