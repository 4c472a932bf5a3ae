"""The photos of a request: files of a form, or the body itself. What is large waits on disk, not in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from tempfile import SpooledTemporaryFile
from typing import IO

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from fscil.serve.limits import MIB, Limits

UNNAMED = "photo"
RAW_TYPES = ("image/", "application/octet-stream")


@dataclass(frozen=True)
class Upload:
    name: str  # as the sender calls it, without folders
    file: IO[bytes]

    def read(self) -> bytes:
        """Called in the thread that decodes it, so that only as many are in memory as there are threads."""
        self.file.seek(0)
        return self.file.read()


@asynccontextmanager
async def uploads(request: Request, limits: Limits) -> AsyncIterator[list[Upload]]:
    """All photos of the request, at least one; their files are gone after the block."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        form = await _form(request, limits)
        try:
            found = [
                Upload(_plain(part.filename), part.file)
                for _, part in form.multi_items()
                if isinstance(part, UploadFile) and part.filename
            ]
            if not found:
                raise HTTPException(422, 'No photo in the request: send one or more as the form field "files".')
            yield found
        finally:
            await form.close()
    elif kind.startswith(RAW_TYPES):
        with SpooledTemporaryFile(max_size=MIB) as file:
            size = 0
            async for chunk in request.stream():
                size += file.write(chunk)
            if not size:
                raise HTTPException(422, "The request has no body: send a photo.")
            yield [Upload(UNNAMED, file)]
    else:
        raise HTTPException(
            415, "Send photos as multipart/form-data, or one photo as the body with an image type such as image/jpeg."
        )


async def _form(request: Request, limits: Limits) -> FormData:
    """Fields that are no files are ignored."""
    try:
        return await request.form(max_files=limits.files, max_fields=limits.files)
    except HTTPException as error:
        if error.status_code != 400:
            raise
        if "Too many" in error.detail:
            raise HTTPException(
                413, f"More than {limits.files} photos in one request. Send them in several requests."
            ) from error
        raise HTTPException(422, f"The form cannot be read: {error.detail}") from error


def _plain(filename: str | None) -> str:
    """The last part of a path of any system, fit for a message."""
    name = PureWindowsPath(PurePosixPath(filename or "").name).name
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:100] or UNNAMED
