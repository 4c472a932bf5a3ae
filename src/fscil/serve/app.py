"""The routes of the HTTP API and the page, with their OpenAPI descriptions."""

from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from fscil import __version__
from fscil.classifier import Prediction
from fscil.errors import ClassNameError, DataError, StoreError, UnknownClassError
from fscil.serve.auth import Authenticator, unknown_token
from fscil.serve.keys import Keys
from fscil.serve.middleware import ServiceMiddleware, error_response, log
from fscil.serve.schemas import (
    Enrolled,
    Forgotten,
    Health,
    KnownClass,
    KnownClasses,
    Predicted,
    Predictions,
    Problem,
    Ranked,
)
from fscil.serve.service import ListedClass, Service
from fscil.serve.tokens import Token
from fscil.serve.uploads import uploads

PAGE = Path(__file__).parent / "page"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGE_FILES = {f"/{file.name}": file for file in sorted(PAGE.iterdir()) if file.suffix in MEDIA_TYPES}
PAGE_FILES["/"] = PAGE_FILES.pop("/index.html")
PUBLIC_PATHS = frozenset({*PAGE_FILES, "/health", "/openapi.json"})
DESCRIPTION = """Predicts the class of a photo, or that it is unknown; learns a new class from one to five photos.

Send a key of the key file, or the token that a service without one printed, as `Authorization: Bearer KEY` or
`X-API-Key: KEY`. A read key allows prediction and listing, an enroll key and the token also enrollment and forgetting.
Every error is JSON: `{"error": "…"}`."""

PHOTOS = {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
FORM = {"multipart/form-data": {"schema": {"type": "object", "required": ["files"], "properties": {"files": PHOTOS}}}}
ONE_PHOTO = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in ("image/jpeg", "image/png")}
REQUEST_BODY = {"requestBody": {"required": True, "content": {**FORM, **ONE_PHOTO}}}

ERRORS = {
    401: "The key or token is missing or not valid.",
    403: "The key does not allow this, the model is read-only, or the request comes from another site.",
    408: "Read timeout of the request body.",
    413: "Too many bytes, photos or pixels.",
    415: "Not an image, or not in a supported format.",
    422: "A corrupt photo, no photo, or an invalid name or number.",
    429: "Too many concurrent requests; try again after Retry-After seconds.",
    503: "The queue of photos is full, or the service is shutting down; try again after Retry-After seconds.",
    507: "The model cannot be written, such as on a full disk.",
}
UPLOAD_ERRORS = (401, 403, 408, 413, 415, 422, 429, 503, 507)


def error_responses(*statuses: int, **others: str) -> dict[int | str, dict[str, Any]]:
    texts = {**{str(status): ERRORS[status] for status in statuses}, **others}
    return {status: {"model": Problem, "description": text} for status, text in texts.items()}


def may_enroll(request: Request) -> bool:
    return bool(request.state.permission == "enroll") and not request.app.state.read_only


def require_enroll(request: Request) -> None:
    if request.app.state.read_only:
        raise HTTPException(403, "The model folder is read-only: this service can neither enroll nor forget classes.")
    if not may_enroll(request):
        raise HTTPException(403, "This is a read key: it allows neither enrollment nor forgetting.")


def decoded_name(name: str) -> str:
    """The class name of a URL; whether it is a valid one is decided by the gallery."""
    if "\N{REPLACEMENT CHARACTER}" in name:
        raise HTTPException(422, "The name in the URL is not percent-encoded UTF-8.")
    return name


NameInPath = Annotated[str, Depends(decoded_name)]


def make_app(
    service: Service, keys: Keys | None, is_shutting_down: Callable[[], bool], token: Token | None = None
) -> FastAPI:
    """The application. Once `is_shutting_down` returns True, it rejects requests with 503."""
    app = FastAPI(
        title="fscil",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # FastAPI's own pages load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[
            Depends(HTTPBearer(auto_error=False)),
            Depends(APIKeyHeader(name="X-API-Key", auto_error=False)),
        ],
    )
    app.add_middleware(
        ServiceMiddleware,
        authenticator=Authenticator(keys, PUBLIC_PATHS, token),
        limits=service.limits,
        concurrent_requests=service.concurrent_requests,
        metrics=service.metrics,
        is_shutting_down=is_shutting_down,
    )
    app.state.read_only = service.read_only
    _add_error_handlers(app)
    _add_page(app, token)
    _add_monitoring(app, service)
    _add_classes(app, service)
    _add_predict(app, service)
    return app


def _add_predict(app: FastAPI, service: Service) -> None:
    @app.post(
        "/predict",
        summary="Predict the classes of photos",
        responses=error_responses(*UPLOAD_ERRORS),
        openapi_extra=REQUEST_BODY,
    )
    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=1, le=100, description="How many classes to rank.")] = 5,
    ) -> Predictions:
        """Send photos as the form field `files`, or one photo as the body."""
        async with uploads(request, service.limits) as files:
            found = await service.predict(files, top)
        return Predictions(
            predictions=[_predicted(file.name, prediction) for file, prediction in zip(files, found, strict=True)]
        )


def _add_classes(app: FastAPI, service: Service) -> None:
    @app.post(
        "/classes/{name:path}",
        summary="Enroll a class, or add photos to it",
        responses=error_responses(*UPLOAD_ERRORS),
        openapi_extra=REQUEST_BODY,
        dependencies=[Depends(require_enroll)],
    )
    async def enroll(request: Request, name: NameInPath) -> Enrolled:
        """All photos are added or none, and are on disk before the response. One the class already has is ignored."""
        async with uploads(request, service.limits) as files:
            added, info = await service.enroll(name, files)
        return Enrolled(name=info.name, added=added, photos=info.photos)

    @app.delete(
        "/classes/{name:path}",
        summary="Forget a class: delete the features, thumbnails and hashes of its photos",
        responses=error_responses(401, 403, 422, 429, 503, 507, **{"404": "There is no such class."}),
        dependencies=[Depends(require_enroll)],
    )
    async def forget(name: NameInPath) -> Forgotten:
        return Forgotten(forgotten=await service.forget(name))

    @app.get("/classes", summary="List the classes", responses=error_responses(401, 403, 422, 503))
    async def classes(
        request: Request,
        search: Annotated[str, Query(description="Only names that contain this text.")] = "",
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int | None, Query(ge=1, description="Maximum number of classes; without it, all.")] = None,
    ) -> KnownClasses:
        page, total = await service.classes(search, offset, limit)
        return KnownClasses(
            classes=[_known_class(listed) for listed in page],
            total=total,
            calibrated=service.calibrated,
            may_enroll=may_enroll(request),
        )

    @app.get(
        "/classes/{name:path}/thumbnail",
        summary="Thumbnail of a photo of a class",
        response_class=Response,
        responses={
            200: {"content": {"image/jpeg": {}}, "description": "A JPEG of at most 96 pixels."},
            **error_responses(401, 403, 422, 503, **{"404": "There is no such class, or no such photo of it."}),
        },
    )
    async def thumbnail(
        name: NameInPath, photo: Annotated[int, Query(ge=0, description="Which of its photos, from 0.")] = 0
    ) -> Response:
        return Response(await service.thumbnail(name, photo), media_type="image/jpeg")


def _add_monitoring(app: FastAPI, service: Service) -> None:
    @app.get("/health", summary="Health check", responses=error_responses(503))
    async def health() -> Health:
        return Health(status="ok", version=__version__)

    @app.get("/metrics", summary="Prometheus metrics", response_class=Response, responses=error_responses(401, 403))
    async def metrics() -> Response:
        return Response(service.metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI, token: Token | None) -> None:
    def add(path: str, file: Path) -> None:
        content, media_type = file.read_bytes(), MEDIA_TYPES[file.suffix]

        @app.get(path, include_in_schema=False)
        async def page_file(request: Request) -> Response:
            if token is not None and path == "/" and "token" in request.query_params:
                return _log_in(token, request.query_params["token"])
            return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})

    for path, file in PAGE_FILES.items():
        add(path, file)


def _log_in(token: Token, presented: str) -> Response:
    """Sets the cookie, and leads to the page without the token in its address."""
    if not token.matches(presented.encode()):
        raise unknown_token()
    return Response(status_code=303, headers={"Location": "./", "Set-Cookie": token.set_cookie})


def _add_error_handlers(app: FastAPI) -> None:
    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return error_response(error)

    async def validation_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        message = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
        return error_response(HTTPException(422, message))

    async def data_error(request: Request, error: Exception) -> JSONResponse:
        return error_response(HTTPException(404 if isinstance(error, UnknownClassError) else 422, str(error)))

    async def store_error(request: Request, error: Exception) -> JSONResponse:
        log.warning("%s %s: %s", request.method, ascii(request.url.path), error)
        return error_response(HTTPException(507, str(error)))

    app.add_exception_handler(StoreError, store_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    for kind in (UnknownClassError, ClassNameError, DataError):
        app.add_exception_handler(kind, data_error)


def _predicted(file: str, prediction: Prediction) -> Predicted:
    return Predicted(
        file=file,
        label=prediction.label,
        score=prediction.score,
        probability=prediction.probability,
        unknown_probability=prediction.unknown_probability,
        runner_up=prediction.runner_up,
        margin=prediction.margin,
        ranking=[
            Ranked(label=label, score=score, probability=probability)
            for (label, score), probability in zip_longest(prediction.ranking, prediction.probabilities)
        ],
    )


def _known_class(listed: ListedClass) -> KnownClass:
    info = listed.info
    return KnownClass(
        name=info.name,
        photos=info.photos,
        origin=info.origin,
        added=info.added,
        changed=info.changed,
        sources=list(info.sources),
        thumbnail=f"classes/{quote(info.name, safe='')}/thumbnail" if listed.has_thumbnail else None,
    )
