"""The routes: what can be asked over HTTP, and how it is described."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from fscil import __version__
from fscil.errors import ClassNameError, DataError, UnknownClassError
from fscil.gallery import ClassInfo
from fscil.serve.auth import Guard
from fscil.serve.keys import Keys
from fscil.serve.middleware import Gate, problem
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
from fscil.serve.service import Service
from fscil.serve.uploads import uploads

PAGE = Path(__file__).parent / "page"
PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
OPEN_PATHS = frozenset({*PAGE_FILES, "/health", "/openapi.json"})
ABOUT = """Names what a photo shows, or says that it is unknown; learns a new class from one to five photos.

Where the service was started with a key file, send a key as `Authorization: Bearer KEY` or `X-API-Key: KEY`. A read key
may predict and list, an enroll key may also enroll and forget. Every refusal is JSON: `{"error": "…"}`."""

PHOTOS = {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
FORM = {"multipart/form-data": {"schema": {"type": "object", "required": ["files"], "properties": {"files": PHOTOS}}}}
ONE_PHOTO = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in ("image/jpeg", "image/png")}
REFUSALS = {
    401: "A key is needed, or this one is not known.",
    403: "The key may not do this, or the request comes from another site.",
    408: "The photos stopped coming.",
    413: "Too many bytes, photos or pixels.",
    415: "Not a photo in a format that is read here.",
    422: "A photo that is damaged, none at all, or a name or number that cannot be.",
    429: "Too many requests at once; try again after Retry-After seconds.",
    503: "Too many photos are waiting, or the service is shutting down; try again after Retry-After seconds.",
}


def refusals(*statuses: int, **others: str) -> dict[int | str, dict[str, Any]]:
    texts = {**{str(status): REFUSALS[status] for status in statuses}, **others}
    return {status: {"model": Problem, "description": text} for status, text in texts.items()}


UPLOADING = (401, 403, 408, 413, 415, 422, 429, 503)


def may_enroll(request: Request) -> bool:
    return bool(request.state.right == "enroll")


def must_enroll(request: Request) -> None:
    if not may_enroll(request):
        raise HTTPException(403, "This key may read, but not enroll or forget.")


def decoded_name(name: str) -> str:
    """A class name as it stood in the address; whether a class can be called so is for the gallery to say."""
    if "\N{REPLACEMENT CHARACTER}" in name:
        raise HTTPException(422, "The name in the address is not percent-encoded UTF-8.")
    return name


NameInPath = Annotated[str, Depends(decoded_name)]


def make_app(service: Service, keys: Keys | None, closing: Callable[[], bool]) -> FastAPI:
    """The application; `closing` tells whether it has been asked to stop."""
    app = FastAPI(
        title="fscil",
        version=__version__,
        description=ABOUT,
        docs_url=None,  # FastAPI's own pages load their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[
            Depends(HTTPBearer(auto_error=False)),
            Depends(APIKeyHeader(name="X-API-Key", auto_error=False)),
        ],
    )
    app.add_middleware(
        Gate,
        guard=Guard(keys, OPEN_PATHS),
        limits=service.limits,
        slots=service.requests,
        telemetry=service.telemetry,
        closing=closing,
    )
    _explain_errors(app)
    _add_page(app)
    _add_watching(app, service)
    _add_classes(app, service)

    @app.post(
        "/predict",
        summary="What a photo shows",
        responses=refusals(*UPLOADING),
        openapi_extra={"requestBody": {"required": True, "content": {**FORM, **ONE_PHOTO}}},
    )
    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=1, le=100, description="How many classes to rank.")] = 5,
    ) -> Predictions:
        """Send photos as the form field `files`, or one photo as the body."""
        async with uploads(request, service.limits) as files:
            found = await service.predict(files, top)
        return Predictions(
            predictions=[
                Predicted(
                    file=file.name,
                    label=each.label,
                    score=each.score,
                    runner_up=each.runner_up,
                    margin=each.margin,
                    ranking=[Ranked(label=label, score=score) for label, score in each.ranking],
                )
                for file, each in zip(files, found, strict=True)
            ]
        )

    return app


def _add_classes(app: FastAPI, service: Service) -> None:
    @app.post(
        "/classes/{name:path}",
        summary="Enroll: learn a class, or learn it better",
        responses=refusals(*UPLOADING),
        openapi_extra={"requestBody": {"required": True, "content": {**FORM, **ONE_PHOTO}}},
        dependencies=[Depends(must_enroll)],
    )
    async def enroll(request: Request, name: NameInPath) -> Enrolled:
        """All photos or none. When the answer comes, they are on disk. A photo the class has already counts once."""
        async with uploads(request, service.limits) as files:
            added, info = await service.enroll(name, files)
        return Enrolled(name=info.name, added=added, photos=info.photos)

    @app.delete(
        "/classes/{name:path}",
        summary="Forget a class and every trace of its photos",
        responses=refusals(401, 403, 422, 429, 503, **{"404": "There is no such class."}),
        dependencies=[Depends(must_enroll)],
    )
    async def forget(name: NameInPath) -> Forgotten:
        return Forgotten(forgotten=await service.forget(name))

    @app.get("/classes", summary="What it knows", responses=refusals(401, 403, 422, 503))
    async def classes(
        request: Request,
        search: Annotated[str, Query(description="Only names that contain this.")] = "",
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int | None, Query(ge=1, description="At most so many; all without it.")] = None,
    ) -> KnownClasses:
        page, total = await service.classes(search, offset, limit)
        return KnownClasses(
            classes=[_known(info, pictured) for info, pictured in page],
            total=total,
            calibrated=service.calibrated,
            may_enroll=may_enroll(request),
        )

    @app.get(
        "/classes/{name:path}/thumbnail",
        summary="A small picture of a class",
        response_class=Response,
        responses={
            200: {"content": {"image/jpeg": {}}, "description": "A JPEG of at most 96 pixels."},
            **refusals(401, 403, 422, 503, **{"404": "There is no such class, or no such photo of it."}),
        },
    )
    async def thumbnail(
        name: NameInPath, photo: Annotated[int, Query(ge=0, description="Which of its photos, from 0.")] = 0
    ) -> Response:
        return Response(await service.thumbnail(name, photo), media_type="image/jpeg")


def _add_watching(app: FastAPI, service: Service) -> None:
    @app.get("/health", summary="A sign of life", responses=refusals(503))
    async def health() -> Health:
        return Health(status="ok", version=__version__)

    @app.get("/metrics", summary="Figures for Prometheus", response_class=Response, responses=refusals(401, 403))
    async def metrics() -> Response:
        return Response(service.telemetry.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    def add(path: str, file: str, kind: str) -> None:
        content = (PAGE / file).read_bytes()
        headers = {"Cache-Control": "no-cache"}

        @app.get(path, include_in_schema=False)
        async def page_file() -> Response:
            return Response(content, media_type=kind, headers=headers)

    for path, (file, kind) in PAGE_FILES.items():
        add(path, file, kind)


def _explain_errors(app: FastAPI) -> None:
    async def refused(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return problem(error.status_code, str(error.detail), dict(error.headers) if error.headers else None)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return problem(422, "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors()))

    async def impossible(request: Request, error: Exception) -> JSONResponse:
        return problem(404 if isinstance(error, UnknownClassError) else 422, str(error))

    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    for kind in (UnknownClassError, ClassNameError, DataError):
        app.add_exception_handler(kind, impossible)


def _known(info: ClassInfo, pictured: bool) -> KnownClass:
    return KnownClass(
        name=info.name,
        photos=info.photos,
        origin=info.origin,
        added=info.added,
        changed=info.changed,
        sources=list(info.sources),
        thumbnail=f"classes/{quote(info.name, safe='')}/thumbnail" if pictured else None,
    )
