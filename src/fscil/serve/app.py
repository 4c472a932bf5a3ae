"""The routes of the HTTP API and the page."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from fscil import __version__
from fscil.errors import ClassNameError, DataError, StoreError, UnavailableError, UnknownClassError
from fscil.serve.auth import Authenticator, unknown_token
from fscil.serve.keys import Keys
from fscil.serve.limits import RETRY_AFTER
from fscil.serve.middleware import ServiceMiddleware, error_response, log
from fscil.serve.openapi import (
    DESCRIPTION,
    UPLOAD_ERRORS,
    class_name_in_path,
    error_responses,
    key_or_token,
    photos_body,
)
from fscil.serve.permissions import may_enroll, require_enroll
from fscil.serve.responses import enrollment_warnings, known_class, predicted
from fscil.serve.review_routes import add_review
from fscil.serve.schemas import (
    DecisionThresholds,
    Doubts,
    Enrolled,
    Forgotten,
    Health,
    KnownClasses,
    Predictions,
    RequestLimits,
)
from fscil.serve.service import DoubtfulError, Order, Service
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
PAGE_FILES["/docs"] = PAGE_FILES.pop("/docs.html")
PUBLIC_PATHS = frozenset({*PAGE_FILES, "/health", "/openapi.json"})


def decoded_name(name: Annotated[str, class_name_in_path()]) -> str:
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
    _add_health(app)
    routes = APIRouter(dependencies=key_or_token())
    _add_metrics(routes, service)
    _add_classes(routes, service)
    _add_predict(routes, service)
    add_review(routes, service)
    app.include_router(routes)
    return app


def _add_predict(routes: APIRouter, service: Service) -> None:
    @routes.post(
        "/predict",
        summary="Predict the classes of photos",
        responses=error_responses(*UPLOAD_ERRORS),
        openapi_extra=photos_body(service.limits),
    )
    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=1, le=100, description="How many classes to rank.")] = 5,
        keep: Annotated[
            bool, Query(description="false: keep none of them for review, also with `fscil serve --keep-unknown`.")
        ] = True,
    ) -> Predictions:
        """Send photos as the form field `files`, or one photo as the body."""
        async with uploads(request, service.limits) as files:
            found = await service.predict(files, top, keep)
        return Predictions(
            predictions=[predicted(file.name, prediction) for file, prediction in zip(files, found, strict=True)]
        )


def _add_classes(routes: APIRouter, service: Service) -> None:
    @routes.post(
        "/classes/{name:text}",
        summary="Enroll a class, or add photos to it",
        responses={
            **error_responses(*UPLOAD_ERRORS),
            409: {"model": Doubts, "description": "With `strict`: there are warnings, and nothing was enrolled."},
        },
        openapi_extra=photos_body(service.limits),
        dependencies=[Depends(require_enroll)],
    )
    async def enroll(
        request: Request,
        name: NameInPath,
        strict: Annotated[bool, Query(description="Enroll nothing if there is a warning: 409.")] = False,
    ) -> Enrolled:
        """All photos are added or none, and are on disk before the response. One the class already has is ignored, one
        that another class has is moved."""
        async with uploads(request, service.limits) as files:
            added, info, doubts = await service.enroll(name, files, strict)
        return Enrolled(
            name=info.name, added=added, photos=info.photos, warnings=enrollment_warnings(info.name, doubts)
        )

    @routes.delete(
        "/classes/{name:text}",
        summary="Forget a class: delete the features, thumbnails and hashes of its photos",
        responses=error_responses(401, 403, 404, 422, 429, 503, 507),
        dependencies=[Depends(require_enroll)],
    )
    async def forget(name: NameInPath) -> Forgotten:
        return Forgotten(forgotten=await service.forget(name))

    @routes.get("/classes", summary="List the classes", responses=error_responses(401, 403, 422, 503))
    async def classes(
        request: Request,
        search: Annotated[str, Query(description="Only names that contain this text.")] = "",
        order: Annotated[Order, Query(description="changed: last changed first; name: A to Z.")] = "changed",
        offset: Annotated[int, Query(ge=0, description="How many classes to leave out.")] = 0,
        limit: Annotated[int | None, Query(ge=1, description="Maximum number of classes; without it, all.")] = None,
    ) -> KnownClasses:
        page, total = await service.classes(search, offset, limit, order)
        return KnownClasses(
            classes=[known_class(listed) for listed in page],
            total=total,
            calibrated=service.calibrated,
            thresholds=DecisionThresholds(**asdict(service.thresholds)) if service.thresholds else None,
            may_enroll=may_enroll(request),
            limits=RequestLimits(photos=service.limits.max_photos_per_request, bytes=service.limits.max_request_bytes),
        )

    @routes.get(
        "/classes/{name:text}/thumbnail",
        summary="Thumbnail of a photo of a class",
        response_class=Response,
        responses={
            200: {"content": {"image/jpeg": {}}, "description": "A JPEG of at most 96 pixels."},
            **error_responses(401, 403, 404, 422, 503),
        },
    )
    async def thumbnail(
        name: NameInPath, photo: Annotated[int, Query(ge=0, description="Which of its photos, from 0.")] = 0
    ) -> Response:
        return Response(await service.thumbnail(name, photo), media_type="image/jpeg")


def _add_health(app: FastAPI) -> None:
    @app.get("/health", summary="Health check", responses=error_responses(403, 503))
    async def health() -> Health:
        return Health(status="ok", version=__version__)


def _add_metrics(routes: APIRouter, service: Service) -> None:
    @routes.get("/metrics", summary="Prometheus metrics", response_class=Response, responses=error_responses(401, 403))
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
        if isinstance(error, UnavailableError):
            return error_response(HTTPException(503, str(error), RETRY_AFTER))
        return error_response(HTTPException(507, str(error)))

    async def doubtful(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, DoubtfulError)
        content = Doubts(error=f"Nothing was learned: {error}", warnings=enrollment_warnings(error.name, error.doubts))
        return JSONResponse(content.model_dump(), 409)

    app.add_exception_handler(DoubtfulError, doubtful)
    app.add_exception_handler(StoreError, store_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    for kind in (UnknownClassError, ClassNameError, DataError):
        app.add_exception_handler(kind, data_error)
