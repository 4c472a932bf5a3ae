"""What the OpenAPI document says beside the types: keys, limits, errors."""

from typing import Any

from fastapi import Depends, Path
from fastapi.params import Depends as Dependency
from fastapi.params import Path as PathParameter
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.convertors import PathConvertor, register_url_convertor

from fscil.gallery.photo import MAX_NAME_LENGTH
from fscil.serve.limits import MIB, Limits
from fscil.serve.schemas import Problem

DESCRIPTION = """Predicts the class of a photo, or that it is unknown; learns a new class from one to five photos.

Send a key of the key file, or the token that a service without one printed, as `Authorization: Bearer KEY` or
`X-API-Key: KEY`. A read key allows prediction and listing, an enroll key and the token also enrollment, forgetting and
the review. A service that was started with `--no-token` needs none. Every error is JSON: `{"error": "…"}`; 500 is
internal."""

ERRORS = {
    400: "The request can be understood in two ways, such as with two Content-Length headers.",
    401: "The key or token is missing or not valid.",
    403: "The key does not allow this, the model is read-only, or the request comes from another site.",
    404: "There is no such class or photo.",
    408: "Read timeout of the request body.",
    413: "Too many bytes, photos or pixels.",
    415: "Not an image, or not in a supported format.",
    422: "A corrupt photo, no photo, or an invalid name or number.",
    429: "Too many concurrent requests; try again after Retry-After seconds.",
    503: "The queue of photos is full, the database cannot be reached, or the service is shutting down; try again "
    "after Retry-After seconds.",
    507: "The model cannot be written, such as on a full disk.",
}
UPLOAD_ERRORS = (401, 403, 408, 413, 415, 422, 429, 503, 507)


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem, "description": ERRORS[status]} for status in (400, *statuses)}


def key_or_token() -> list[Dependency]:
    """Either is enough. The middleware checks them; these only describe them."""
    schemes = (HTTPBearer(auto_error=False), APIKeyHeader(name="X-API-Key", auto_error=False))
    return [Depends(scheme) for scheme in schemes]


class AnyText(PathConvertor):
    """{name:text}: also with line breaks, which "path" does not match: a name that has one is refused as such."""

    regex = "(?s:.*)"


register_url_convertor("text", AnyText())


def class_name_in_path() -> PathParameter:
    """Described, not checked: whether a name is valid is decided by the gallery, after normalisation."""
    text = (
        f"Name of a class: 1 to {MAX_NAME_LENGTH} Unicode characters without surrounding whitespace, none of them a "
        'control character; percent-encoded, a slash as %2F. No class can be called "." or "..".'
    )
    found: PathParameter = Path(
        description=text,
        examples=["red panda"],
        json_schema_extra={"minLength": 1, "maxLength": MAX_NAME_LENGTH},
    )
    return found


def photos_body(limits: Limits) -> dict[str, Any]:
    """The request body of uploads: a form with photos, or one photo."""
    photo = {"type": "string", "format": "binary"}
    photos = {"type": "array", "items": photo, "minItems": 1, "maxItems": limits.max_photos_per_request}
    form = {"schema": {"type": "object", "required": ["files"], "properties": {"files": photos}}}
    kinds = {kind: {"schema": photo} for kind in ("image/jpeg", "image/png", "application/octet-stream")}
    text = (
        f"Up to {limits.max_photos_per_request} photos as files of a form, with any field name, or one photo as the "
        f"body. At most {limits.max_request_bytes / MIB:.3g} MiB together and {limits.max_pixels_per_photo / 1e6:g} "
        f"million pixels each."
    )
    return {
        "requestBody": {"required": True, "description": text, "content": {"multipart/form-data": form, **kinds}},
    }
