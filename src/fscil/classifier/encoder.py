"""From a photo to its feature: decode, preprocess, network. The one path for fit, enroll, predict, serve and export."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fscil.config import Config
from fscil.data import photos
from fscil.data.decode_budget import DecodeBudget, decode_cost
from fscil.data.images import Bytes, Resize
from fscil.data.photos import LoadedPhoto, Source
from fscil.errors import BadImageError, ConfigError, DataError
from fscil.features import Encoder
from fscil.gallery import Photo
from fscil.models import Backbone, build_backbone
from fscil.models.engines import Engine, OnnxNetwork, chosen_engine
from fscil.models.state import load_state
from fscil.models.untrusted import require_fitting, require_harmless
from fscil.preprocess import Preprocess
from fscil.runtime.progress import ProgressBar
from fscil.runtime.validation import as_type, invalid
from fscil.training.build import architecture, preprocess_of

T = TypeVar("T")

MAX_SIDE = 2048  # pixels: a photo is decoded to this size at most, and enters the network at this size at most
BATCH = 16  # photos that pass the network together: few, so that the first answers come soon
CPU_BATCH = 4  # of these, at least, at once on a CPU
THREADS = min(8, max(2, os.cpu_count() or 1))  # that decode


@dataclass(frozen=True)
class EncoderConfig:
    """What is needed, beside the weights, to build an encoder again."""

    backbone: str
    options: Mapping[str, Any]
    resize: Resize  # when a photo is decoded
    preprocess: Preprocess  # from the decoded photo to the network's input

    def __post_init__(self) -> None:
        size = self.resize.size
        sides = [self.preprocess.crop, self.preprocess.resize, *(size if isinstance(size, tuple) else [size])]
        if not all(1 <= side <= MAX_SIDE for side in sides if side is not None):
            raise ConfigError(f"a classifier of photos takes images of 1 to {MAX_SIDE} pixels a side, not of {sides}.")

    @classmethod
    def from_recipe(cls, config: Config) -> "EncoderConfig":
        """Of the network a recipe trains.

        Photos come in any size. Where the recipe stores its images as they are, a photo is resized to the size at
        which the recipe tests.
        """
        resize = Resize(config.data.resize, config.data.interpolation)
        if resize.size is None:
            resize = Resize(max(config.test.resize or 0, config.views.size), config.test.interpolation)
        return cls(config.model.backbone, architecture(config.model), resize, preprocess_of(config))

    def build(self) -> Backbone:
        """A backbone of this architecture, whose weights are still to be loaded."""
        return build_backbone(self.backbone, **self.options)

    def to_dict(self) -> dict[str, Any]:
        return {
            "backbone": self.backbone,
            "options": dict(self.options),
            "resize": asdict(self.resize),
            "preprocess": self.preprocess.to_dict(),
        }

    @classmethod
    def from_dict(cls, content: Any, source: str = "the network in model.json") -> "EncoderConfig":
        """What `to_dict` made, also after it was JSON. Raises an FscilError for anything else, and for options that no
        stranger may set: none names a file, and no weights are downloaded.
        """
        found = as_type(content, cls, source)
        require_harmless(found.backbone, found.options)
        return found


class PhotoEncoder:
    """Photos -> features. The weights never change."""

    def __init__(
        self, config: EncoderConfig, backbone: Backbone, device: torch.device, engine: Engine | None = None
    ) -> None:
        """engine: what evaluates the network; by default what FSCIL_ENGINE names, or else "auto"."""
        self.config, self.device = config, device
        self.backbone = backbone.eval().requires_grad_(False)  # as trained, with its BatchNorm: what is saved
        self._encoder = Encoder(self.backbone, device)
        self._engine = chosen_engine(engine, device)
        self._onnx: OnnxNetwork | None = None  # created when first needed
        self._lock = threading.Lock()

    @classmethod
    def load(
        cls,
        config: EncoderConfig,
        weights: dict[str, Tensor],
        device: torch.device,
        source: str,
        engine: Engine | None = None,
    ) -> "PhotoEncoder":
        """source: what an error calls the place the weights came from.

        That the weights are of this architecture, and that a photo takes a bearable amount of memory, is known before
        any memory is taken.
        """
        require_fitting(config.build, weights, config.preprocess.crop, source)
        try:
            backbone = config.build()
        except (TypeError, ValueError, RuntimeError) as error:  # options of another type
            raise invalid(source, f"its network cannot be built: {error}") from error
        load_state(backbone, weights, source)
        return cls(config, backbone, device, engine)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and other processes, which start an engine of their own."""
        return {**self.__dict__, "_onnx": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    @property
    def dim(self) -> int:
        """Length of a feature."""
        return self.backbone.feature_dim

    @property
    def network(self) -> nn.Module:
        """What computes the features: the backbone with BatchNorm folded into its convolutions, on the device."""
        return self._encoder.network

    @property
    def engine(self) -> Engine:
        """What evaluates the network, "torch" or "onnxruntime"; starts it."""
        with self._lock:
            if self._engine != "torch" and self._onnx is None:
                try:
                    self._onnx = OnnxNetwork(self.network, self.config.preprocess.crop)
                except ConfigError:
                    if self._engine == "onnxruntime":
                        raise
                    self._engine = "torch"
        return "onnxruntime" if self._onnx else "torch"

    @torch.inference_mode()
    def preprocess(self, pixels: Bytes) -> Tensor:
        """(h, w, 3), decoded and resized as the config says -> (3, size, size), the network's input.

        One photo at a time: in a batch, a panorama would make all others as large.
        """
        return self.config.preprocess(torch.tensor(pixels[None]), torch.tensor([pixels.shape[:2]]))[0]

    def encode(self, inputs: Sequence[Tensor]) -> Tensor:
        """(3, size, size) each -> (n, dim) float32 on the host.

        On a CPU some at a time, whatever the batch: that is as fast, and what a layer computes from 32 photos of 224
        pixels takes 150 MB.
        """
        run = self._onnx if self.engine == "onnxruntime" and self._onnx else self._encoder
        step = max(CPU_BATCH, 2 * torch.get_num_threads()) if self.device.type == "cpu" else len(inputs)
        parts = [run(torch.stack(list(inputs[at : at + step]))) for at in range(0, len(inputs), max(1, step))]
        return torch.cat(parts) if parts else torch.empty(0, self.dim)

    def read(self, source: Source) -> Tensor:
        """Decode and preprocess a photo: all that a prediction needs."""
        return self.preprocess(photos.pixels(source, self.config.resize))

    def read_to_keep(self, source: Source) -> tuple[Tensor, LoadedPhoto]:
        """Decode and preprocess a photo, and compute what a gallery keeps of it: digest and thumbnail."""
        loaded = photos.load(source, self.config.resize)
        return self.preprocess(loaded.pixels), loaded

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
        """Per photo its feature (dim,), or why it could not be read; in order, BATCH photos at a time."""
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
        """read: source -> the network's input, and something to pass on beside the feature."""

        def read_or_error(source: Source) -> tuple[Tensor, T] | DataError:
            try:
                return read(source)
            except DataError as error:
                return error

        rest = iter(sources)
        for batch in _prefetched(read_or_error, sources):
            inputs = [item[0] for item in batch if not isinstance(item, DataError)]
            features = iter(self.encode(inputs) if inputs else ())
            yield [
                item if isinstance(item, DataError) else _finite(source, next(features), item[1])
                for item, source in zip(batch, rest, strict=False)
            ]


def timestamp() -> str:
    """Now, as photos carry it: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def with_progress(items: Iterable[T], total: int, quiet: bool) -> Iterator[T]:
    """The items, one per photo, with a progress bar."""
    with ProgressBar("photos", total, quiet=quiet) as bar:
        for item in items:
            yield item
            bar.advance()


def _prefetched(work: Callable[[Source], T], sources: Sequence[Source]) -> Iterator[list[T]]:
    """The results of work in batches, computed in threads one batch ahead of the consumer."""
    if len(sources) == 1:  # a thread would only cost time
        yield [work(sources[0])]
        return
    rest, budget = iter(sources), DecodeBudget()

    def bounded(source: Source) -> T:
        with budget.acquire(decode_cost(source)):  # many cores must not need much memory
            return work(source)

    with ThreadPoolExecutor(THREADS) as pool:
        waiting = [pool.submit(bounded, source) for source in islice(rest, BATCH)]
        while waiting:
            following = [pool.submit(bounded, source) for source in islice(rest, BATCH)]
            yield [task.result() for task in waiting]
            waiting = following


def _finite(source: Source, feature: Tensor, more: T) -> tuple[Tensor, T] | DataError:
    if not feature.isfinite().all():
        return BadImageError(f"{photos.name_of(source)}: its feature is not finite, nothing can be said about it.")
    return feature, more


def _photo(loaded: LoadedPhoto, feature: Tensor, added: str) -> Photo:
    return Photo(loaded.digest, feature, loaded.source, added, loaded.thumbnail)
