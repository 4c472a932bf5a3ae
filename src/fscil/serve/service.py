"""What the routes do: decode in other processes, encode in batches, write one change at a time."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from starlette.exceptions import HTTPException
from torch import Tensor

from fscil.classifier import Classifier, Prediction, StoredClassifier, Thresholds
from fscil.classifier.doubts import Doubt
from fscil.classifier.encoder import timestamp
from fscil.data.image_headers import image_size
from fscil.errors import BadImageError, HugeImageError, UnsupportedImageError
from fscil.gallery import ClassInfo, Photo, class_name
from fscil.serve.batching import Batcher
from fscil.serve.decoding import Decoded, DecoderPool, PixelBudget
from fscil.serve.limits import CapacityLimit, Limits
from fscil.serve.metrics import ServiceMetrics
from fscil.serve.review import Review
from fscil.serve.uploads import Upload

Result = TypeVar("Result")
Order: TypeAlias = Literal["changed", "name"]

NO_PIXELS = np.empty((0, 0, 3), np.uint8)


class ListedClass(NamedTuple):
    info: ClassInfo
    has_thumbnail: bool  # of its first photo
    negatives: int  # photos that are known not to show it


class Doubtful(NamedTuple):
    doubt: Doubt
    file: str | None  # the client's name of the photo that it is about
    other_file: str | None  # and of the photo that this one is too like
    other_photo: int | None  # or its place among those of the class


class DoubtfulError(Exception):
    """Photos that were not enrolled, because of these doubts."""

    def __init__(self, name: str, doubts: Sequence[Doubtful]) -> None:
        super().__init__(" ".join(str(each.doubt) for each in doubts))
        self.name, self.doubts = name, doubts


class Enrollment(NamedTuple):
    added: int  # photos that were new to the class
    info: ClassInfo  # after that
    doubts: Sequence[Doubtful]


class Service:
    """A stored classifier for concurrent requests. Its coroutines belong to one event loop."""

    def __init__(
        self, stored: StoredClassifier, limits: Limits, read_only: bool = False, review: Review | None = None
    ) -> None:
        self._stored, self.limits, self.read_only = stored, limits, read_only
        self.review = review or Review(stored)
        self.concurrent_requests = CapacityLimit(limits.max_concurrent_requests, 429, "Too many concurrent requests.")
        self._queued_photos = CapacityLimit(limits.max_queued_photos, 503, "The queue of photos is full.")
        self.metrics = ServiceMetrics(
            classes=lambda: self.class_count,
            in_flight=lambda: self.concurrent_requests.in_use,
            queued=lambda: self._queued_photos.in_use,
        )
        self._decoders = DecoderPool(limits)
        self._pixels_in_flight = PixelBudget(limits.max_pixels_in_flight)
        self._writer = ThreadPoolExecutor(1, "write")
        self._batcher = Batcher(self._encode_batch, limits.max_batch_size)

    def close(self) -> None:
        """Finish the work in progress."""
        self._decoders.close()
        self._batcher.close()
        self._writer.shutdown()

    async def predict(self, files: Sequence[Upload], top: int, keep: bool = True) -> list[Prediction]:
        """With `keep`, photos that were not known are kept for review, if the service does so at all."""
        self._stored.require_current()
        keep = keep and self.review.keeping
        with self._queued_photos.acquire(len(files)):
            decoded = await self._decode(files, keep)
            features = await self._encode([image for image, _ in decoded])
            answers = await asyncio.to_thread(self._classifier.predict_features, torch.stack(features), top)
            if keep and any(answer.state != "known" for answer in answers):
                photos = _photos(files, decoded, features)
                await self.write(lambda: self.review.keep(photos, answers))
            return answers

    async def enroll(self, name: str, files: Sequence[Upload], strict: bool = False) -> Enrollment:
        """Returns once the photos are on disk. With `strict`, raises DoubtfulError if there are doubts."""
        name = class_name(name)  # an invalid one costs no work
        with self._queued_photos.acquire(len(files)):
            decoded = await self._decode(files, keep=True)
            features = await self._encode([image for image, _ in decoded])
        photos = _photos(files, decoded, features)
        return await self.write(lambda: self._enroll(name, photos, strict))

    async def reject(self, name: str, files: Sequence[Upload]) -> tuple[int, int]:
        """They do not show this class. How many were new, and how many negative examples it has now."""
        name = class_name(name)
        self._info(name)  # one that is not enrolled costs no work either
        with self._queued_photos.acquire(len(files)):
            decoded = await self._decode(files, keep=True)
            features = await self._encode([image for image, _ in decoded])
        photos = _photos(files, decoded, features)
        return await self.write(lambda: self.review.reject_photos(name, photos))

    async def name_kept(self, name: str, digests: Sequence[str], strict: bool = False) -> Enrollment:
        """As `enroll`, with photos of the review, which they leave."""
        name = class_name(name)
        return await self.write(lambda: self._enroll(name, self.review.photos(digests), strict))

    async def forget(self, name: str) -> str:
        """The name as the gallery spells it."""
        name = class_name(name)
        await self.write(lambda: self._stored.forget(name))
        return name

    async def classes(
        self, search: str, offset: int, limit: int | None, order: Order = "changed"
    ) -> tuple[list[ListedClass], int]:
        """One page of the classes with this text in their name, and how many there are."""
        return await asyncio.to_thread(self._classes, search.casefold(), offset, limit, order)

    async def thumbnail(self, name: str, photo: int) -> bytes:
        """A small JPEG of one photo of a class."""
        found = await asyncio.to_thread(self._photos, name)
        if photo >= len(found) or not found[photo].thumbnail:
            raise HTTPException(404, f'"{class_name(name)}" has no thumbnail of photo {photo}.')
        return found[photo].thumbnail

    @property
    def calibrated(self) -> bool:
        """Whether a photo can be unknown: the model has probabilities or a threshold."""
        return self._classifier.decision.rejects

    @property
    def thresholds(self) -> Thresholds | None:
        """Of the three states; None without probabilities."""
        decision, gallery = self._classifier.decision, self._classifier.gallery
        return decision.effective_thresholds(len(gallery)) if decision.probability else None

    @property
    def place(self) -> str:
        """Of the model, for people."""
        return self._stored.storage.place

    @property
    def class_count(self) -> int:
        return len(self._classifier.gallery)

    @property
    def _classifier(self) -> Classifier:
        return self._stored.classifier

    def _info(self, name: str) -> ClassInfo:
        with self._classifier.lock:
            return self._classifier.gallery.info(name)

    def _photos(self, name: str) -> tuple[Photo, ...]:
        with self._classifier.lock:
            return self._classifier.gallery.photos(name)

    def _enroll(self, name: str, photos: Sequence[Photo], strict: bool) -> Enrollment:
        # Equal pictures may have been sent twice: the first file stands for them.
        sources = {photo.digest: photo.source for photo in reversed(photos)}
        found = self._stored.doubts(name, photos)
        with self._classifier.lock:
            gallery = self._classifier.gallery
            known = [photo.digest for photo in gallery.photos(name)] if name in gallery else []
        doubts = [
            Doubtful(
                each,
                sources.get(each.photo or ""),
                sources.get(each.other or ""),
                known.index(each.other) if each.other in known else None,
            )
            for each in found
        ]
        if strict and doubts:
            raise DoubtfulError(name, doubts)
        added = self._stored.enroll_photos(name, photos)
        self.review.forget([photo.digest for photo in photos])
        return Enrollment(added, self._info(name), doubts)

    def _classes(self, search: str, offset: int, limit: int | None, order: Order) -> tuple[list[ListedClass], int]:
        with self._classifier.lock:
            found = [info for info in self._classifier.classes() if search in info.name.casefold()]
            found.reverse()  # of those changed in the same second, the last one added comes first
            if order == "name":
                found.sort(key=lambda info: (info.name.casefold(), info.name))
            else:
                found.sort(key=lambda info: info.changed, reverse=True)
            page = found[offset : None if limit is None else offset + limit]
            return [self._listed(info) for info in page], len(found)

    def _listed(self, info: ClassInfo) -> ListedClass:
        gallery = self._classifier.gallery
        return ListedClass(info, bool(gallery.photos(info.name)[0].thumbnail), len(gallery.negatives(info.name)))

    async def write(self, change: Callable[[], Result]) -> Result:
        """Call it in the thread that writes."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, change)

    async def _decode(self, files: Sequence[Upload], keep: bool = False) -> list[tuple[Tensor, Decoded]]:
        """Per photo the network's input, and what else was computed from it."""
        # Wait for all before an error is raised: then the request ends, and its files are closed.
        found = await asyncio.gather(*(self._decode_one(file, keep) for file in files), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return [each for each in found if not isinstance(each, BaseException)]

    async def _decode_one(self, file: Upload, keep: bool) -> tuple[Tensor, Decoded]:
        """An error has the client's name of the file."""
        encoder = self._classifier.encoder

        def work(decoders: DecoderPool) -> tuple[Tensor, Decoded]:
            decoded = decoders.decode(file.read(), encoder.config.resize, keep)
            return encoder.preprocess(decoded.pixels), decoded._replace(pixels=NO_PIXELS)

        try:
            async with self._pixels_in_flight.acquire(self._pixels_of(file)):
                return await self._decoders.run(work)
        except BadImageError as error:
            message = f"{file.name}: {str(error).removeprefix('the image: ')}"
            raise HTTPException(_status_of(error), message) from error

    def _pixels_of(self, file: Upload) -> int:
        """As its header says; the most that is allowed if it does not say."""
        size = image_size(file.start())
        limit = self.limits.max_pixels_per_photo
        if size is None:
            return limit
        height, width = size
        if height * width > limit:
            raise HugeImageError(f"too large ({width} x {height} is more than {limit} pixels)")
        return height * width

    async def _encode(self, images: Sequence[Tensor]) -> list[Tensor]:
        """(3, size, size) each -> (d,) each."""
        return await asyncio.gather(*(asyncio.wrap_future(self._batcher.submit(image)) for image in images))

    def _encode_batch(self, images: list[Tensor]) -> Sequence[Tensor]:
        """Called in the thread of the batcher."""
        self.metrics.observe_batch(len(images))
        return self._classifier.encoder.encode(images).unbind()


def _photos(
    files: Sequence[Upload], decoded: Sequence[tuple[Tensor, Decoded]], features: Sequence[Tensor]
) -> list[Photo]:
    """What is kept of photos that were decoded to be kept."""
    now = timestamp()
    return [
        Photo(kept.digest, feature, file.name, now, kept.thumbnail)
        for file, (_, kept), feature in zip(files, decoded, features, strict=True)
    ]


def _status_of(error: BadImageError) -> int:
    if isinstance(error, UnsupportedImageError):
        return 415
    return 413 if isinstance(error, HugeImageError) else 422
