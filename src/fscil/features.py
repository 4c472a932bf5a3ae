"""Images to features: the only place where a frozen network is evaluated, and a cache for labelled images."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fscil.data.images import Images, Pixels
from fscil.models import folded
from fscil.preprocess import Preprocess, SeveralCrops
from fscil.runtime.distributed import all_gather, all_reduce_max, rank, world_size
from fscil.runtime.progress import ProgressBar


class Encoder:
    """A frozen backbone for evaluation: BatchNorm folded into the convolutions, on a device."""

    def __init__(self, backbone: nn.Module, device: torch.device) -> None:
        self.device, self._backbone = device, backbone
        self._folded: nn.Module | None = None  # created when first needed

    def backbone_changed(self) -> None:
        self._folded = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and other processes fold the network again."""
        return {**self.__dict__, "_folded": None}

    @property
    def network(self) -> nn.Module:
        """The folded network itself, as `__call__` and the export use it."""
        if self._folded is None:
            self._folded = folded(self._backbone)
            self._folded.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self._folded

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) preprocessed images -> (n, feature_dim) float32 on the host."""
        images = images.to(self.device).contiguous(memory_format=torch.channels_last)
        features: Tensor = self.network(images).float().cpu()
        return features


class FeatureCache:
    """A frozen backbone with its preprocessing. Features are kept by image until `clear` is called.

    The feature of an image of which there are several crops is their mean.
    """

    def __init__(
        self,
        backbone: nn.Module,
        preprocess: Preprocess | SeveralCrops,
        device: torch.device,
        batch: int = 256,
        quiet: bool = False,
    ) -> None:
        self._encoder = Encoder(backbone, device)
        self._crops = preprocess if isinstance(preprocess, SeveralCrops) else SeveralCrops(preprocess, 1)
        self._batch, self._quiet = batch, quiet
        self._known: dict[int, tuple[Pixels, Tensor, np.ndarray[Any, Any]]] = {}

    def clear(self) -> None:
        """After the backbone has changed."""
        self._known.clear()
        self._encoder.backbone_changed()

    def __call__(self, images: Images) -> Tensor:
        """(n, feature_dim) float32 on the host."""
        pixels = images.pixels
        done = self._known[id(pixels)][2] if id(pixels) in self._known else np.zeros(len(pixels), bool)
        missing = np.unique(images.rows[~done[images.rows]])
        if len(missing):
            some = Images(pixels, np.zeros(len(missing), np.int64), missing)
            self.add(some, self._extract(some))
        return self._known[id(pixels)][1][images.rows]

    def add(self, images: Images, features: Tensor) -> None:
        """(n, feature_dim) features of these images that are known already, for instance from a file."""
        pixels = images.pixels
        if id(pixels) not in self._known:
            with torch.inference_mode(False):  # or only callers in inference mode could add to it
                space = torch.empty(len(pixels), features.shape[1])
            self._known[id(pixels)] = (pixels, space, np.zeros(len(pixels), bool))
        _, space, done = self._known[id(pixels)]
        space[images.rows] = features
        done[images.rows] = True

    @torch.inference_mode()
    def _extract(self, images: Images) -> Tensor:
        """Under torchrun each process encodes every n-th batch, so that batches are those of a process alone."""
        batches = np.split(np.arange(len(images)), range(self._batch, len(images), self._batch))
        found = []
        own = batches[rank() :: world_size()]
        with ProgressBar("features", sum(map(len, own)), quiet=self._quiet) as bar:
            for positions in own:
                pixels, sizes = images.batch(positions)
                crops = self._crops(torch.from_numpy(pixels).to(self._encoder.device), torch.from_numpy(sizes))
                features = [self._encoder(crop) for crop in crops]
                found.append(features[0] if len(features) == 1 else torch.stack(features).mean(0))
                bar.advance(len(pixels))
        return torch.cat(found) if world_size() == 1 else self._joined(found, len(batches), len(images))

    def _joined(self, own: list[Tensor], batches: int, images: int) -> Tensor:
        """This process's batches of features -> those of all processes, in order."""
        width = int(all_reduce_max(own[0].shape[1] if own else 0)[0])
        padded = torch.zeros(-(-batches // world_size()), self._batch, width)
        for place, features in enumerate(own):
            padded[place, : len(features)] = features
        return torch.stack(all_gather(padded), 1).view(-1, width)[:images]
