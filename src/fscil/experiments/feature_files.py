"""Features of a run's images, kept in its folder: what is extracted once is extracted once, whatever is killed.

RUN/features/<key>/base-0000000.safetensors   the first images of the base classes, and so on
RUN/features/<key>/new-…, test-…              training images of the other classes; test images

The key stands for the weights, the preprocessing and the content of the images.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fscil.config import Config, flatten
from fscil.data import Dataset, Images
from fscil.experiments.provenance import data_fingerprint
from fscil.experiments.results import protocol_record
from fscil.experiments.sessions import evaluation_images
from fscil.features import FeatureCache
from fscil.methods import METHODS
from fscil.protocol import Protocol
from fscil.runtime import torchrun
from fscil.runtime.distributed import computed_by_main, raise_in_all
from fscil.runtime.files import digest_of_file, load_tensors, save_tensors
from fscil.training.base_training import load_base_network
from fscil.training.build import base_images, dataset_of, evaluation_crops_of, preprocess_of, protocol_of
from fscil.training.context import Context
from fscil.training.run_folder import Run

PART = 2560  # images per file: ten batches


class KeptFeatures:
    """The features of a run's network, by way of files.

    Under torchrun process 0 writes them, and each process reads what process 0 has found when this was made.
    """

    def __init__(self, run: Run, config: Config, fingerprint: str, cache: FeatureCache) -> None:
        """fingerprint: of the data set. cache: of the run's network; it will know what is read or extracted."""
        identity: list[Any] = [digest_of_file(run.weights), preprocess_of(config).to_dict(), fingerprint]
        identity += (
            [config.test.crops] if config.test.crops > 1 else []
        )  # left out otherwise: files of earlier versions
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
        self.folder, self._cache = run.folder / "features" / key, cache
        self._there = computed_by_main(lambda: {path.name for path in self.folder.glob("*.safetensors")})

    def __call__(self, kind: str, images: Images) -> Tensor:
        """(n, d). kind: base, new or test, always with the same images."""
        found = [torch.empty(0)]
        for start in range(0, len(images), PART):
            part = images.select(np.arange(start, min(start + PART, len(images))))
            path = self.folder / f"{kind}-{start:07}.safetensors"
            if path.name in self._there:
                with raise_in_all():
                    features = load_tensors(path)[0]["features"]
                self._cache.add(part, features)
            else:
                features = self._cache(part)
                with raise_in_all():
                    if torchrun.is_main():
                        save_tensors(path, {"features": features})
            found.append(features)
        return torch.cat(found if len(found) == 1 else found[1:])


def keep_features(kept: KeptFeatures, dataset: Dataset, protocol: Protocol) -> None:
    """What an evaluation needs first: all training images of the base classes, all test images."""
    kept("base", base_images(dataset, protocol))
    kept("test", evaluation_images(dataset, protocol, protocol.sessions))


def features_of(run: Run, root: Path | None, context: Context) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Features of all images of a run's classes: train, train_labels, test, test_labels, and what they are.

    Images are in the order of the data set, labels are places by arrival.
    """
    config = run.config()
    run.require_finished()
    dataset = dataset_of(config, root, context.quiet)
    protocol, fingerprint = protocol_of(config, dataset), data_fingerprint(dataset)
    network = load_base_network(METHODS[config.method].base_recipe(config), run, context)
    cache = FeatureCache(network.backbone.eval(), evaluation_crops_of(config), context.device, quiet=context.quiet)
    kept = KeptFeatures(run, config, fingerprint, cache)
    keep_features(kept, dataset, protocol)
    seen = protocol.seen(protocol.sessions)
    kept("new", dataset.train.of_classes(seen[protocol.base_classes :]))
    tensors = {}
    for name, images in (("train", dataset.train), ("test", dataset.test)):
        mine = images.of_classes(seen).relabel(seen)
        tensors[name], tensors[f"{name}_labels"] = cache(mine), torch.from_numpy(mine.labels)
    return tensors, described(config, dataset, protocol, fingerprint)


def described(config: Config, dataset: Dataset, protocol: Protocol, fingerprint: str) -> dict[str, Any]:
    """What a file of features is of."""
    return {
        "data": dataset.name,
        "data_fingerprint": fingerprint,
        "backbone": config.model.backbone,
        "protocol": protocol_record(protocol),
        "classes": [dataset.class_names[label] for label in protocol.seen(protocol.sessions)],
        "settings": flatten(config),
    }
