"""From a photo to its feature: decode, preprocess, network. The one path for fit, enroll, predict, serve and export."""

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
from fscil.data.photos import LoadedPhoto, Source
from fscil.errors import BadImageError, DataError
from fscil.features import Encoder
from fscil.gallery import Photo
from fscil.models import Backbone, build_backbone
from fscil.models.state import load_state
from fscil.preprocess import Preprocess
from fscil.training.build import architecture, preprocess_of

T = TypeVar("T")

BATCH = 16  # photos that pass the network together: few, so that the first answers come soon
THREADS = min(8, max(2, os.cpu_count() or 1))  # that decode


@dataclass(frozen=True)
class EncoderConfig:
    """What is needed, beside the weights, to build an encoder again."""

    backbone: str
    options: Mapping[str, Any]
    resize: Resize  # how a photo is stored once decoded
    preprocess: Preprocess  # and what then happens to it

    @classmethod
    def of(cls, config: Config) -> "EncoderConfig":
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
    def from_dict(cls, content: Mapping[str, Any]) -> "EncoderConfig":
        size = content["resize"]["size"]
        return cls(
            content["backbone"],
            content["options"],
            Resize(tuple(size) if isinstance(size, list) else size, content["resize"]["interpolation"]),
            Preprocess.from_dict(content["preprocess"]),
        )


class PhotoEncoder:
    """Photos -> features. The weights never change."""

    def __init__(self, config: EncoderConfig, backbone: Backbone, device: torch.device) -> None:
        self.config, self.device = config, device
        self.backbone = backbone.eval().requires_grad_(False)
        self._encoder = Encoder(self.backbone, device)

    @classmethod
    def load(
        cls, config: EncoderConfig, weights: dict[str, Tensor], device: torch.device, source: str
    ) -> "PhotoEncoder":
        backbone = config.build()
        load_state(backbone, weights, source)
        return cls(config, backbone, device)

    @property
    def dim(self) -> int:
        return self.backbone.feature_dim

    @torch.inference_mode()
    def prepare(self, pixels: Bytes) -> Tensor:
        """A decoded photo (h, w, 3), as `resize` stores it -> (3, size, size).

        One by one, so that a panorama in a batch does not make all others as large.
        """
        return self.config.preprocess(torch.tensor(pixels[None]), torch.tensor([pixels.shape[:2]]))[0]

    def encode(self, prepared: Sequence[Tensor]) -> Tensor:
        """(3, size, size) each -> (n, dim) float32 on the host."""
        return self._encoder(torch.stack(list(prepared))).clone()  # changeable, unlike what inference mode makes

    def read(self, source: Source) -> Tensor:
        """A photo, ready to be encoded: all that a prediction needs."""
        return self.prepare(photos.pixels(source, self.config.resize))

    def read_to_keep(self, source: Source) -> tuple[Tensor, LoadedPhoto]:
        """A photo, ready to be encoded, and what a gallery keeps of it."""
        loaded = photos.load(source, self.config.resize)
        return self.prepare(loaded.pixels), loaded

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
        for batch in self._encoded(sources, lambda source: (self.read(source), None)):
            yield [item if isinstance(item, DataError) else item[0] for item in batch]

    def photos(self, sources: Sequence[Source]) -> Iterator[Photo | DataError]:
        """Per photo all that a gallery keeps of it, or why it could not be read."""
        now = timestamp()
        for batch in self._encoded(sources, self.read_to_keep):
            for item in batch:
                yield item if isinstance(item, DataError) else _photo(item[1], item[0], now)

    def _encoded(
        self, sources: Sequence[Source], read: Callable[[Source], tuple[Tensor, T]]
    ) -> Iterator[list[tuple[Tensor, T] | DataError]]:
        """The feature of what `read` prepares, and what it gives beside."""

        def attempt(source: Source) -> tuple[Tensor, T] | DataError:
            try:
                return read(source)
            except DataError as error:
                return error

        for batch in _prefetched(attempt, sources):
            good = [item[0] for item in batch if not isinstance(item, DataError)]
            found = iter(self.encode(good) if good else ())
            yield [item if isinstance(item, DataError) else (next(found), item[1]) for item in batch]


def timestamp() -> str:
    """Now, as photos carry it: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _prefetched(work: Callable[[Source], T], sources: Sequence[Source]) -> Iterator[list[T]]:
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


def _photo(loaded: LoadedPhoto, feature: Tensor, added: str) -> Photo | DataError:
    if not feature.isfinite().all():
        return BadImageError(f"{loaded.source}: its feature is not finite, nothing can be learned from it.")
    return Photo(loaded.digest, feature, loaded.source, added, loaded.thumbnail)
