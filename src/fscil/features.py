"""Images -> features, once: whoever asks again for an image gets what was computed the first time."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fscil.data.images import Images, Pixels
from fscil.models import folded
from fscil.preprocess import Preprocess
from fscil.runtime.progress import Bar


class FeatureExtractor:
    """A frozen backbone with its preprocessing. Features are remembered by image until `forget` is called."""

    def __init__(
        self, backbone: nn.Module, preprocess: Preprocess, device: torch.device, batch: int = 256, quiet: bool = False
    ) -> None:
        self._backbone, self._preprocess, self._device = backbone, preprocess, device
        self._batch, self._quiet = batch, quiet
        self._known: dict[int, tuple[Pixels, Tensor, np.ndarray[Any, Any]]] = {}
        self._ready: nn.Module | None = None  # the backbone as it is evaluated, until it changes

    def forget(self) -> None:
        """After the backbone has changed."""
        self._known.clear()
        self._ready = None

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
                with torch.inference_mode(False):  # whoever asked first, others must be able to add to it
                    features = torch.empty(len(pixels), found.shape[1])
            features[missing] = found
            done[missing] = True
            self._known[id(pixels)] = (pixels, features, done)
        return features[images.rows]

    @torch.inference_mode()
    def _extract(self, images: Images) -> Tensor:
        if self._ready is None:
            self._ready = folded(self._backbone)
        found = []
        with Bar("features", len(images), quiet=self._quiet) as bar:
            for start in range(0, len(images), self._batch):
                pixels, sizes = images.batch(np.arange(start, min(start + self._batch, len(images))))
                views = self._preprocess(torch.from_numpy(pixels).to(self._device), torch.from_numpy(sizes))
                found.append(self._ready(views).float().cpu())
                bar.advance(len(pixels))
        return torch.cat(found)
