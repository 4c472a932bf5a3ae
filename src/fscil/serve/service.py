"""The work behind the routes: decode in a few threads, features in batches, changes one at a time and on disk."""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import torch
from starlette.exceptions import HTTPException
from torch import Tensor

from fscil.classifier import Classifier, Prediction, StoredClassifier
from fscil.classifier.encoder import timestamp
from fscil.errors import BadImageError, HugeImageError, UnsupportedImageError
from fscil.gallery import ClassInfo, Photo, class_name
from fscil.serve.batching import Batcher
from fscil.serve.limits import RETRY, Limits, Slots
from fscil.serve.telemetry import Telemetry
from fscil.serve.uploads import Upload

Result = TypeVar("Result")


class Listed(NamedTuple):
    info: ClassInfo
    pictured: bool  # whether its first photo has a thumbnail


class Service:
    """A stored classifier for many callers at once. Its coroutines belong to one event loop."""

    def __init__(self, stored: StoredClassifier, limits: Limits) -> None:
        self._stored, self.limits = stored, limits
        self.requests = Slots(limits.in_flight, lambda: HTTPException(429, "Too many requests at once.", RETRY))
        self._waiting = Slots(limits.queued, lambda: HTTPException(503, "Too many photos are waiting.", RETRY))
        self.telemetry = Telemetry(
            lambda: len(self._classifier.gallery), lambda: self.requests.taken, lambda: self._waiting.taken
        )
        self._decoders = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "decode")
        self._writer = ThreadPoolExecutor(1, "write")
        self._network = Batcher(self._features, limits.batch)

    def close(self) -> None:
        """Finish what is under way."""
        self._decoders.shutdown()
        self._network.close()
        self._writer.shutdown()

    async def predict(self, files: Sequence[Upload], top: int) -> list[Prediction]:
        with self._waiting.hold(len(files)):
            images = await self._decode(files, self._classifier.encoder.read)
            features = torch.stack(await self._embed(images))
            return await asyncio.to_thread(self._classifier.answer, features, top)

    async def enroll(self, name: str, files: Sequence[Upload]) -> tuple[int, ClassInfo]:
        """How many photos were new, and the class as it is then. Returns once they are on disk."""
        name = class_name(name)  # before any work is done for it
        with self._waiting.hold(len(files)):
            found = await self._decode(files, self._classifier.encoder.read_to_keep)
            features = await self._embed([image for image, _ in found])
        now = timestamp()
        kept = [
            Photo(loaded.digest, feature, file.name, now, loaded.thumbnail)
            for file, (_, loaded), feature in zip(files, found, features, strict=True)
        ]
        return await self._write(lambda: (self._stored.enroll_prepared(name, kept), self._info(name)))

    async def forget(self, name: str) -> str:
        """The name as the gallery spells it."""
        name = class_name(name)
        await self._write(lambda: self._stored.forget(name))
        return name

    async def classes(self, search: str, offset: int, limit: int | None) -> tuple[list[Listed], int]:
        """Some of those with this text in their name, last changed first; and how many there are."""
        return await asyncio.to_thread(self._classes, search.casefold(), offset, limit)

    async def thumbnail(self, name: str, photo: int) -> bytes:
        """A small JPEG of one photo of a class."""
        found = await asyncio.to_thread(self._photos, name)
        if photo >= len(found) or not found[photo].thumbnail:
            raise HTTPException(404, f'"{class_name(name)}" has no photo {photo} to show.')
        return found[photo].thumbnail

    @property
    def calibrated(self) -> bool:
        """Whether a photo can come out as unknown."""
        return self._classifier.calibration is not None

    # Inside

    @property
    def _classifier(self) -> Classifier:
        return self._stored.classifier

    def _info(self, name: str) -> ClassInfo:
        with self._classifier.lock:
            return self._classifier.gallery.info(name)

    def _photos(self, name: str) -> tuple[Photo, ...]:
        with self._classifier.lock:
            return self._classifier.gallery.photos(name)

    def _classes(self, wanted: str, offset: int, limit: int | None) -> tuple[list[Listed], int]:
        with self._classifier.lock:
            found = [info for info in self._classifier.classes() if wanted in info.name.casefold()]
            found.reverse()  # of those changed in the same second, the last to arrive comes first
            found.sort(key=lambda info: info.changed, reverse=True)
            page = found[offset : None if limit is None else offset + limit]
            return [Listed(info, bool(self._photos(info.name)[0].thumbnail)) for info in page], len(found)

    async def _write(self, change: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._writer, change)

    async def _decode(self, files: Sequence[Upload], read: Callable[[bytes], Result]) -> list[Result]:
        loop = asyncio.get_running_loop()
        tasks = [loop.run_in_executor(self._decoders, _decoded, file, read) for file in files]
        # One bad photo ends the request, but not before the others are done with its files.
        found = await asyncio.gather(*tasks, return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return [each for each in found if not isinstance(each, BaseException)]

    async def _embed(self, images: Sequence[Tensor]) -> list[Tensor]:
        """(3, size, size) each -> (d,) each."""
        return await asyncio.gather(*(asyncio.wrap_future(self._network.submit(image)) for image in images))

    def _features(self, images: list[Tensor]) -> Sequence[Tensor]:
        """What the batcher calls in its one thread."""
        self.telemetry.batch(len(images))
        return self._classifier.encoder.encode(images).unbind()


def _decoded(file: Upload, read: Callable[[bytes], Result]) -> Result:
    """Runs in a thread. An error calls the file what its sender calls it."""
    try:
        return read(file.read())
    except BadImageError as error:
        status = 415 if isinstance(error, UnsupportedImageError) else 413 if isinstance(error, HugeImageError) else 422
        raise HTTPException(status, f"{file.name}: {str(error).removeprefix('the image: ')}") from error
