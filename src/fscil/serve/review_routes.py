"""The routes of the review: photos that were not known, and negative examples. All need the right to enroll."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from fscil.classifier.inbox import MOST
from fscil.gallery import class_name
from fscil.serve.openapi import UPLOAD_ERRORS, error_responses, photos_body
from fscil.serve.permissions import require_enroll
from fscil.serve.responses import enrollment_warnings, kept_photo, negative_example, waiting_photo
from fscil.serve.review_schemas import (
    DIGEST,
    ForgottenPhotos,
    NamedPhotos,
    NegativeExamples,
    Rejected,
    ReviewGroup,
    ReviewGroups,
    ReviewQueue,
)
from fscil.serve.schemas import Doubts, Enrolled
from fscil.serve.service import Service
from fscil.serve.uploads import uploads

ENROLL = Depends(require_enroll)
READ_ERRORS = error_responses(401, 403, 404, 422, 503)
WRITE_ERRORS = error_responses(401, 403, 404, 408, 413, 422, 429, 503, 507)
Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="`id` of a photo.", examples=[DIGEST])]
OfClass = Annotated[str, Query(description="What the photo does not show.", examples=["red panda"])]


def add_review(routes: APIRouter, service: Service) -> None:
    _add_reading(routes, service)
    _add_answers(routes, service)
    _add_negatives(routes, service)


def _add_reading(routes: APIRouter, service: Service) -> None:
    @routes.get(
        "/review",
        summary="List the kept photos, least certain answers first",
        responses=READ_ERRORS,
        dependencies=[ENROLL],
    )
    async def review(
        offset: Annotated[int, Query(ge=0, description="How many photos to leave out.")] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST, description="Maximum number of photos.")] = 100,
    ) -> ReviewQueue:
        """Photos that were unknown or maybe when they came, with `fscil serve --keep-unknown`, and what the model
        answers now."""
        found = await asyncio.to_thread(service.review.queue)
        return ReviewQueue(
            photos=[waiting_photo(each) for each in found[offset : offset + limit]],
            total=len(found),
            keeping=service.review.keeping,
            at_most=service.review.at_most,
        )

    @routes.get(
        "/review/groups",
        summary="Groups of kept photos that look alike",
        responses=READ_ERRORS,
        dependencies=[ENROLL],
    )
    async def groups() -> ReviewGroups:
        found = await asyncio.to_thread(service.review.groups)
        return ReviewGroups(groups=[ReviewGroup(photos=[kept_photo(photo) for photo in group]) for group in found])

    @routes.get(
        "/review/photos/{photo}/thumbnail",
        summary="Thumbnail of a kept photo",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}}, "description": "A JPEG of at most 96 pixels."}, **READ_ERRORS},
        dependencies=[ENROLL],
    )
    async def thumbnail(photo: Digest) -> Response:
        (found,) = service.review.photos([photo])
        return Response(found.thumbnail, media_type="image/jpeg")


def _add_answers(routes: APIRouter, service: Service) -> None:
    @routes.post(
        "/review/name",
        summary="Confirm or correct the answer to kept photos: enroll them in a class",
        responses={
            **WRITE_ERRORS,
            409: {"model": Doubts, "description": "With `strict`: there are warnings, and nothing was enrolled."},
        },
        dependencies=[ENROLL],
    )
    async def name(
        said: NamedPhotos,
        strict: Annotated[bool, Query(description="Enroll nothing if there is a warning: 409.")] = False,
    ) -> Enrolled:
        """With the label of the answer this confirms it, with another name of one class or a new one it corrects it.
        The photos are enrolled on disk, then leave the review."""
        added, info, doubts = await service.name_kept(said.name, said.photos, strict)
        return Enrolled(
            name=info.name, added=added, photos=info.photos, warnings=enrollment_warnings(info.name, doubts)
        )

    @routes.post(
        "/review/not",
        summary='Say that kept photos do not show a class ("not this")',
        responses=WRITE_ERRORS,
        dependencies=[ENROLL],
    )
    async def not_this(said: NamedPhotos) -> Rejected:
        """They become negative examples of the class: photos that fit one of them better than the class are no longer
        called so. They stay in the review."""
        name = class_name(said.name)
        added, total = await service.write(lambda: service.review.reject(name, said.photos))
        return Rejected(name=name, added=added, negatives=total)

    @routes.delete(
        "/review/photos/{photo}",
        summary="Forget a kept photo: delete its feature, thumbnail and hash",
        responses=WRITE_ERRORS,
        dependencies=[ENROLL],
    )
    async def forget(photo: Digest) -> ForgottenPhotos:
        service.review.photos([photo])
        return ForgottenPhotos(forgotten=await service.write(lambda: service.review.forget([photo])))

    @routes.delete("/review", summary="Forget all kept photos", responses=WRITE_ERRORS, dependencies=[ENROLL])
    async def forget_all() -> ForgottenPhotos:
        return ForgottenPhotos(forgotten=await service.write(service.review.clear))


def _add_negatives(routes: APIRouter, service: Service) -> None:
    @routes.get(
        "/negatives",
        summary="List the negative examples",
        responses=READ_ERRORS,
        dependencies=[ENROLL],
    )
    async def negatives(
        name: Annotated[str | None, Query(description="Of this class only.", examples=["red panda"])] = None,
    ) -> NegativeExamples:
        found = await asyncio.to_thread(service.review.negatives, name)
        return NegativeExamples(negatives=[negative_example(name, photo) for name, photo in found])

    @routes.post(
        "/negatives",
        summary='Say that photos do not show a class ("not this")',
        responses=error_responses(404, *UPLOAD_ERRORS),
        openapi_extra=photos_body(service.limits),
        dependencies=[ENROLL],
    )
    async def reject(request: Request, name: OfClass) -> Rejected:
        """Send the photos as for `POST /predict`. They become negative examples of the class, on disk before the
        response: photos that fit one of them better than the class are no longer called so."""
        async with uploads(request, service.limits) as files:
            added, total = await service.reject(name, files)
        return Rejected(name=class_name(name), added=added, negatives=total)

    @routes.get(
        "/negatives/{photo}/thumbnail",
        summary="Thumbnail of a negative example",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}}, "description": "A JPEG of at most 96 pixels."}, **READ_ERRORS},
        dependencies=[ENROLL],
    )
    async def thumbnail(photo: Digest, name: OfClass) -> Response:
        found = await asyncio.to_thread(service.review.negative, name, photo)
        return Response(found.thumbnail, media_type="image/jpeg")

    @routes.delete(
        "/negatives/{photo}",
        summary="Forget a negative example",
        responses=WRITE_ERRORS,
        dependencies=[ENROLL],
    )
    async def forget(photo: Digest, name: OfClass) -> ForgottenPhotos:
        await service.write(lambda: service.review.remove_negative(name, photo))
        return ForgottenPhotos(forgotten=1)
