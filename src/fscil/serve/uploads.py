"""The photos of a request: files of a form, or the body itself. Large ones are spooled to disk, not kept in memory."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from tempfile import SpooledTemporaryFile
from typing import IO

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from fscil.serve.limits import MIB, Limits

DEFAULT_NAME = "photo"
HEADER_BYTES = MIB // 4  # even with a thumbnail and a colour profile, the size of a photo comes before
RAW_TYPES = ("image/", "application/octet-stream")


@dataclass(frozen=True)
class Upload:
    name: str  # the client's file name, without folders
    file: IO[bytes]

    def start(self) -> bytes:
        """As much as has its headers."""
        self.file.seek(0)
        return self.file.read(HEADER_BYTES)

    def read(self) -> bytes:
        """Called in the thread that decodes it, so that only as many are in memory as there are threads."""
        self.file.seek(0)
        return self.file.read()


def uploads(request: Request, limits: Limits) -> AbstractAsyncContextManager[list[Upload]]:
    """All photos of the request, at least one; their files are closed after the block."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == "multipart/form-data":
        return _form_uploads(request, limits.max_photos_per_request)
    if content_type.startswith(RAW_TYPES):
        return _body_upload(request)
    raise HTTPException(
        415, "Send photos as multipart/form-data, or one photo as the body with an image type such as image/jpeg."
    )


@asynccontextmanager
async def _form_uploads(request: Request, max_photos: int) -> AsyncIterator[list[Upload]]:
    form = await _parse_form(request, max_photos)
    try:
        found = [
            Upload(_base_name(part.filename), part.file)
            for _, part in form.multi_items()
            if isinstance(part, UploadFile) and part.filename
        ]
        if not found:
            raise HTTPException(422, 'No photo in the request: send one or more as the form field "files".')
        yield found
    finally:
        await form.close()


@asynccontextmanager
async def _body_upload(request: Request) -> AsyncIterator[list[Upload]]:
    with SpooledTemporaryFile(max_size=MIB) as file:
        size = 0
        async for chunk in request.stream():
            size += file.write(chunk)
        if not size:
            raise HTTPException(422, "The request has no body: send a photo.")
        yield [Upload(DEFAULT_NAME, file)]


async def _parse_form(request: Request, max_photos: int) -> FormData:
    """Fields that are not files are ignored, but there may be only as many."""
    try:
        return await request.form(max_files=max_photos, max_fields=max_photos)
    except HTTPException as error:
        if error.status_code != 400:
            raise
        if "Too many" in error.detail:
            raise HTTPException(
                413, f"More than {max_photos} photos in one request. Send them in several requests."
            ) from error
        raise HTTPException(422, f"The form cannot be parsed: {error.detail}") from error


def _base_name(filename: str | None) -> str:
    """The last part of a POSIX or Windows path, safe to show in a message."""
    name = PureWindowsPath(PurePosixPath(filename or "").name).name
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:100] or DEFAULT_NAME
