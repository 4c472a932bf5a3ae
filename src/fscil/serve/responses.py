"""What the service found, as the types of its JSON responses."""

from collections.abc import Sequence
from itertools import zip_longest
from urllib.parse import quote

from fscil.classifier import Prediction
from fscil.classifier.review import Waiting
from fscil.gallery import Photo
from fscil.serve.review_schemas import NegativeExample, PhotoReference, WaitingPhoto
from fscil.serve.schemas import EnrollmentWarning, KnownClass, Predicted, Ranked
from fscil.serve.service import Doubtful, ListedClass


def predicted(file: str, prediction: Prediction) -> Predicted:
    return Predicted(
        file=file,
        state=prediction.state,
        label=prediction.label,
        score=prediction.score,
        probability=prediction.probability,
        unknown_probability=prediction.unknown_probability,
        runner_up=prediction.runner_up,
        margin=prediction.margin,
        ranking=_ranking(prediction),
    )


def _ranking(prediction: Prediction) -> list[Ranked]:
    pairs = zip_longest(prediction.ranking, prediction.probabilities)
    return [Ranked(label=label, score=score, probability=probability) for (label, score), probability in pairs]


def enrollment_warnings(name: str, doubts: Sequence[Doubtful]) -> list[EnrollmentWarning]:
    def thumbnail(doubtful: Doubtful) -> str | None:
        if doubtful.doubt.kind == "too_like" and doubtful.doubt.other:
            return _thumbnail(doubtful.doubt.other)
        return None if doubtful.other_photo is None else f"{_thumbnail(name)}?photo={doubtful.other_photo}"

    return [
        EnrollmentWarning(
            kind=each.doubt.kind,
            message=str(each.doubt),
            file=each.file,
            other_file=each.other_file,
            id=each.doubt.photo,
            other_id=None if each.other_file is None else each.doubt.other,
            thumbnail=thumbnail(each),
        )
        for each in doubts
    ]


def known_class(listed: ListedClass) -> KnownClass:
    info = listed.info
    return KnownClass(
        name=info.name,
        photos=info.photos,
        negatives=listed.negatives,
        origin=info.origin,
        added=info.added,
        changed=info.changed,
        sources=list(info.sources),
        thumbnail=_thumbnail(info.name) if listed.has_thumbnail else None,
    )


def kept_photo(photo: Photo) -> PhotoReference:
    url = f"review/photos/{photo.digest}/thumbnail"
    return PhotoReference(id=photo.digest, file=photo.source, added=photo.added, thumbnail=url)


def waiting_photo(waiting: Waiting) -> WaitingPhoto:
    answer = waiting.answer
    return WaitingPhoto(
        **kept_photo(waiting.photo).model_dump(),
        state=answer.state,
        label=answer.label,
        probability=answer.probability,
        unknown_probability=answer.unknown_probability,
        ranking=_ranking(answer),
    )


def negative_example(name: str, photo: Photo) -> NegativeExample:
    url = f"negatives/{photo.digest}/thumbnail?name={quote(name, safe='')}"
    return NegativeExample(id=photo.digest, file=photo.source, added=photo.added, thumbnail=url, name=name)


def _thumbnail(name: str) -> str:
    """Its URL, relative to the service."""
    return f"classes/{quote(name, safe='')}/thumbnail"
