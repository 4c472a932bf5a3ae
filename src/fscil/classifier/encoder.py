"""A frozen network with all that turns a photo into its feature: how to decode it, prepare it and send it through."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor

from fscil.config import Config
from fscil.data import photos
from fscil.data.images import Bytes, Resize
from fscil.data.photos import Loaded, Source
from fscil.errors import BadImageError, DataError
from fscil.gallery import Photo
from fscil.models import Backbone, build_backbone
from fscil.preprocess import Preprocess
from fscil.training.build import architecture, preprocess_of
from fscil.training.loop import load_state

T = TypeVar("T")

BATCH = 16  # photos that pass the network together: few, so that the first answers come soon
THREADS = min(8, max(2, os.cpu_count() or 1))  # that decode


@dataclass(frozen=True)
class Blueprint:
    """What is needed, beside the weights, to build a network again and to feed it."""

    backbone: str
    options: Mapping[str, Any]
    resize: Resize  # how a photo is stored once decoded
    preprocess: Preprocess  # and what then happens to it

    @classmethod
    def of(cls, config: Config) -> "Blueprint":
        """Of the network a recipe trains.

        Photos come in any size, whatever the recipe's data set is like: where it stores images as they are, a photo
        gets the size at which the recipe tests.
        """
        resize = Resize(config.data.resize, config.data.interpolation)
        if resize.size is None:
            resize = Resize(max(config.test.resize or 0, config.views.size), config.test.interpolation)
        return cls(config.model.backbone, architecture(config.model), resize, preprocess_of(config))

    def build(self) -> Backbone:
        return build_backbone(self.backbone, **self.options)

    def to_dict(self) -> dict[str, Any]:
        return {
            "backbone": self.backbone,
            "options": dict(self.options),
            "resize": asdict(self.resize),
            "preprocess": self.preprocess.to_dict(),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Blueprint":
        size = content["resize"]["size"]
        return cls(
            content["backbone"],
            content["options"],
            Resize(tuple(size) if isinstance(size, list) else size, content["resize"]["interpolation"]),
            Preprocess.from_dict(content["preprocess"]),
        )


class Network:
    """Photos -> features. The weights never change."""

    def __init__(self, blueprint: Blueprint, backbone: Backbone, device: torch.device) -> None:
        self.blueprint, self.device = blueprint, device
        self.backbone = backbone.eval().requires_grad_(False)
        self.backbone.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    @classmethod
    def load(cls, blueprint: Blueprint, weights: dict[str, Tensor], device: torch.device, source: str) -> "Network":
        backbone = blueprint.build()
        load_state(backbone, weights, source)
        return cls(blueprint, backbone, device)

    @property
    def dim(self) -> int:
        return self.backbone.feature_dim

    @torch.inference_mode()
    def prepare(self, pixels: Bytes) -> Tensor:
        """A decoded photo (h, w, 3), as `resize` stores it -> (3, size, size)."""
        return self.blueprint.preprocess(torch.tensor(pixels[None]), torch.tensor([pixels.shape[:2]]))[0]

    def embed(self, prepared: Sequence[Tensor]) -> Tensor:
        """(3, size, size) each -> (n, dim) float32 on the host."""
        with torch.inference_mode():
            images = torch.stack(list(prepared)).to(self.device)
            found: Tensor = self.backbone(images.contiguous(memory_format=torch.channels_last)).float().cpu()
        return found.clone()  # one that may be changed, unlike what inference mode makes

    def features(self, sources: Sequence[Source]) -> Tensor:
        """(n, dim); the first photo that cannot be read raises its error."""
        found: list[Tensor] = []
        for batch in self.batches(sources):
            for row in batch:
                if isinstance(row, DataError):
                    raise row
                found.append(row)
        return torch.stack(found) if found else torch.empty(0, self.dim)

    def batches(self, sources: Sequence[Source]) -> Iterator[list[Tensor | DataError]]:
        """Per photo its feature (dim,), or why it could not be read; some photos at a time, in order."""

        def read(source: Source) -> tuple[Bytes, None]:
            return photos.pixels(source, self.blueprint.resize), None

        for batch in self._embedded(sources, read):
            yield [item if isinstance(item, DataError) else item[0] for item in batch]

    def photos(self, sources: Sequence[Source]) -> Iterator[Photo | DataError]:
        """Per photo all that a gallery keeps of it, or why it could not be read."""
        now = datetime.now(UTC).isoformat(timespec="seconds")

        def read(source: Source) -> tuple[Bytes, Loaded]:
            loaded = photos.load(source, self.blueprint.resize)
            return loaded.pixels, loaded

        for batch in self._embedded(sources, read):
            for item in batch:
                yield item if isinstance(item, DataError) else _photo(item[1], item[0], now)

    def _embedded(
        self, sources: Sequence[Source], read: Callable[[Source], tuple[Bytes, T]]
    ) -> Iterator[list[tuple[Tensor, T] | DataError]]:
        """The feature of what `read` decodes, and what it gives beside."""

        def attempt(source: Source) -> tuple[Tensor, T] | DataError:
            try:
                pixels, beside = read(source)
                return self.prepare(pixels), beside
            except DataError as error:
                return error

        for batch in _ahead(attempt, sources):
            good = [item[0] for item in batch if not isinstance(item, DataError)]
            found = iter(self.embed(good) if good else ())
            yield [item if isinstance(item, DataError) else (next(found), item[1]) for item in batch]


def _ahead(work: Callable[[Source], T], sources: Sequence[Source]) -> Iterator[list[T]]:
    """Work done in threads, one batch ahead of whoever takes the results."""
    if len(sources) == 1:  # a thread would only cost time
        yield [work(sources[0])]
        return
    rest = iter(sources)
    with ThreadPoolExecutor(THREADS) as pool:
        waiting = [pool.submit(work, source) for source in islice(rest, BATCH)]
        while waiting:
            following = [pool.submit(work, source) for source in islice(rest, BATCH)]
            yield [task.result() for task in waiting]
            waiting = following


def _photo(loaded: Loaded, feature: Tensor, added: str) -> Photo | DataError:
    if not feature.isfinite().all():
        return BadImageError(f"{loaded.source}: the network's answer is not finite, nothing can be learned from it.")
    return Photo(loaded.digest, feature, loaded.source, added, loaded.thumbnail)
