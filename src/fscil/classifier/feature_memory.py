"""Features of photos that a process has seen lately, so that cross-validation computes each once."""

import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fscil.classifier.encoder import PhotoEncoder
from fscil.data.photos import Source

Features = NDArray[np.float32]


class FeatureMemory:
    """Of all networks together; what was used longest ago is forgotten first. Several threads may use it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, Features] = OrderedDict()

    def features(
        self, network: str, sources: Sequence[Source], size: int, compute: Callable[[list[Source]], Features]
    ) -> list[Features]:
        """(d,) per photo: what is known, and the rest by `compute`. At most `size` features are kept afterwards."""
        keys = [(network, key) if (key := _key(source)) is not None else object() for source in sources]
        with self._lock:
            found = {key: self._known[key] for key in keys if key in self._known}
        missing = {key: source for key, source in zip(keys, sources, strict=True) if key not in found}
        if missing:
            found |= dict(zip(missing, compute(list(missing.values())), strict=True))
        with self._lock:
            for key in keys:
                if isinstance(key, tuple):
                    self._known[key] = found[key]
                    self._known.move_to_end(key)
            while len(self._known) > size:
                self._known.popitem(last=False)
        return [found[key] for key in keys]


def network_digest(encoder: PhotoEncoder) -> str:
    """Equal for encoders that give the same features."""
    found = hashlib.sha256(json.dumps(encoder.config.to_dict(), sort_keys=True).encode())
    for name, value in encoder.backbone.state_dict().items():
        found.update(f"{name}:{tuple(value.shape)}:{value.dtype};".encode())
        found.update(value.detach().cpu().contiguous().view(-1).numpy().data)
    return found.hexdigest()


def _key(source: Source) -> Hashable | None:
    """Equal for the same photo, whatever object it is in; of a file by its path, size and time. None: not known."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).digest()
    if isinstance(source, np.ndarray):
        return source.shape, str(source.dtype), hashlib.sha256(np.ascontiguousarray(source).data).digest()
    if isinstance(source, Image.Image):
        return None  # may be decoded later, and differently
    try:
        state = Path(source).stat()
    except OSError:
        return None
    return os.path.realpath(source), state.st_size, state.st_mtime_ns
