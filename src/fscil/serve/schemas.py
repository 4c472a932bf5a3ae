"""The JSON responses as types with examples, from which the OpenAPI document is made."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

Name = Annotated[str, Field(examples=["red panda"])]
Score = Annotated[
    float, Field(description="Log-likelihood ratio, or cosine in a model without probabilities.", examples=[83.1])
]
Probability = Annotated[float | None, Field(ge=0, le=1, examples=[0.94])]


class Problem(BaseModel):
    error: Annotated[str, Field(examples=["notes.txt: not a JPEG, PNG, WEBP, BMP or GIF image"])]


class Ranked(BaseModel):
    label: Name
    score: Score
    probability: Annotated[Probability, Field(description="null: the model has no probabilities")] = None


class Predicted(BaseModel):
    file: Annotated[str, Field(examples=["garden.jpg"])]
    state: Annotated[
        Literal["known", "maybe", "unknown"],
        Field(description="maybe: the photo looks like the label, but with too small a probability."),
    ]
    label: Annotated[str | None, Field(description="null: unknown", examples=["red panda"])]
    score: Annotated[Score, Field(description="Of the nearest class.")]
    probability: Annotated[
        Probability, Field(description="Of the nearest class, also where the label is null; null: there is none.")
    ] = None
    unknown_probability: Annotated[
        Probability, Field(description="That the photo shows none of the classes.", examples=[0.03])
    ] = None
    runner_up: Annotated[str | None, Field(examples=["raccoon"])]
    margin: Annotated[float, Field(description="The score minus that of the runner-up.", examples=[41.4])]
    ranking: Annotated[
        list[Ranked],
        Field(
            description="The nearest classes, nearest first.",
            examples=[
                [
                    {"label": "red panda", "score": 83.1, "probability": 0.94},
                    {"label": "raccoon", "score": 41.7, "probability": 0.02},
                ]
            ],
        ),
    ]


class Predictions(BaseModel):
    predictions: Annotated[list[Predicted], Field(description="One per photo, in the order of the request.")]


class EnrollmentWarning(BaseModel):
    kind: Annotated[
        Literal["too_like", "unlike", "duplicate"],
        Field(
            description="too_like: a new class can hardly be distinguished from another. unlike: a photo looks like "
            "none of the others of its class. duplicate: it is nearly the same as another one."
        ),
    ]
    message: Annotated[str, Field(examples=['zoo.jpg: looks like none of the other photos of "red panda".'])]
    file: Annotated[
        str | None,
        Field(description="The photo that it is about; null: the class.", examples=["zoo.jpg"]),
    ] = None
    other_file: Annotated[
        str | None, Field(description="Of a duplicate: the other photo of the request.", examples=[None])
    ] = None
    id: Annotated[
        str | None,
        Field(description="SHA-256 of the pixels of `file`, as names of files may be equal.", examples=["0f7c" * 16]),
    ] = None
    other_id: Annotated[str | None, Field(description="The same of `other_file`.", examples=[None])] = None
    thumbnail: Annotated[
        str | None,
        Field(description="URL of an enrolled photo to compare with, relative to the service.", examples=[None]),
    ] = None


class Doubts(Problem):
    warnings: list[EnrollmentWarning]


class Enrolled(BaseModel):
    name: Name
    added: Annotated[int, Field(description="Photos that were new to the class.", examples=[3])]
    photos: Annotated[int, Field(description="Photos of the class now.", examples=[5])]
    warnings: Annotated[list[EnrollmentWarning], Field(description="Usually none.")]


class Forgotten(BaseModel):
    forgotten: Name


class KnownClass(BaseModel):
    name: Name
    photos: Annotated[int, Field(examples=[5])]
    negatives: Annotated[int, Field(description="Photos that are known not to show it.", examples=[0])]
    origin: Annotated[Literal["base", "enrolled"], Field(description="base: from training")]
    added: Annotated[str, Field(examples=["2026-03-01T09:30:00+00:00"])]
    changed: Annotated[str, Field(examples=["2026-03-02T17:05:00+00:00"])]
    sources: Annotated[list[str], Field(examples=[["garden.jpg", "zoo.jpg"]])]
    thumbnail: Annotated[
        str | None,
        Field(
            description="URL of its thumbnail, relative to the service; null: none.",
            examples=["classes/red%20panda/thumbnail"],
        ),
    ]


class DecisionThresholds(BaseModel):
    known: Annotated[
        float, Field(description="From this probability of the nearest class on it is known, below maybe.")
    ]
    unknown: Annotated[float, Field(description="Above this probability of unknown a photo is unknown.")]


class RequestLimits(BaseModel):
    photos: Annotated[int, Field(description="Of one request.", examples=[32])]
    bytes: Annotated[int, Field(description="Of the body of a request.", examples=[67108864])]


class KnownClasses(BaseModel):
    classes: Annotated[list[KnownClass], Field(description="In the order that was asked for.")]
    total: Annotated[int, Field(description="Number of matching classes, regardless of `limit`.", examples=[12])]
    calibrated: Annotated[
        bool, Field(description="Whether photos can be unknown: the model has probabilities or a threshold.")
    ]
    thresholds: Annotated[
        DecisionThresholds | None, Field(description="In probabilities; null: the model has no probabilities.")
    ]
    may_enroll: Annotated[bool, Field(description="Whether the key of this request allows enrollment and forgetting.")]
    limits: RequestLimits


class Health(BaseModel):
    status: Literal["ok"]
    version: str
