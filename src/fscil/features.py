"""Images to features: the only place where a frozen network is evaluated, and a cache for labelled images."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fscil.data.images import Images, Pixels
from fscil.models import folded
from fscil.preprocess import Preprocess
from fscil.runtime.progress import ProgressBar


class Encoder:
    """A frozen backbone for evaluation: BatchNorm folded into the convolutions, on a device."""

    def __init__(self, backbone: nn.Module, device: torch.device) -> None:
        self.device, self._backbone = device, backbone
        self._folded: nn.Module | None = None  # created when first needed

    def backbone_changed(self) -> None:
        self._folded = None

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
    """A frozen backbone with its preprocessing. Features are kept by image until `clear` is called."""

    def __init__(
        self, backbone: nn.Module, preprocess: Preprocess, device: torch.device, batch: int = 256, quiet: bool = False
    ) -> None:
        self._encoder = Encoder(backbone, device)
        self._preprocess, self._batch, self._quiet = preprocess, batch, quiet
        self._known: dict[int, tuple[Pixels, Tensor, np.ndarray[Any, Any]]] = {}

    def clear(self) -> None:
        """After the backbone has changed."""
        self._known.clear()
        self._encoder.backbone_changed()

    def __call__(self, images: Images) -> Tensor:
        """(n, feature_dim) float32 on the host."""
        pixels = images.pixels
        if id(pixels) not in self._known:
            self._known[id(pixels)] = (pixels, torch.empty(0), np.zeros(len(pixels), bool))
        _, features, done = self._known[id(pixels)]
        missing = np.unique(images.rows[~done[images.rows]])
        if len(missing):
            found = self._extract(Images(pixels, np.zeros(len(missing), np.int64), missing))
            if not len(features):
                with torch.inference_mode(False):  # or only callers in inference mode could add to it
                    features = torch.empty(len(pixels), found.shape[1])
            features[missing] = found
            done[missing] = True
            self._known[id(pixels)] = (pixels, features, done)
        return features[images.rows]

    @torch.inference_mode()
    def _extract(self, images: Images) -> Tensor:
        found = []
        with ProgressBar("features", len(images), quiet=self._quiet) as bar:
            for start in range(0, len(images), self._batch):
                pixels, sizes = images.batch(np.arange(start, min(start + self._batch, len(images))))
                views = self._preprocess(torch.from_numpy(pixels).to(self._encoder.device), torch.from_numpy(sizes))
                found.append(self._encoder(views))
                bar.advance(len(pixels))
        return torch.cat(found)
