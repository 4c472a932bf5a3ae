"""The JSON of the review: kept photos, groups of them, what is said about them, negative examples."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from fscil.classifier.inbox import MOST
from fscil.serve.schemas import Name, Probability, Ranked

DIGEST = "0f7c" * 16
PhotoId = Annotated[
    str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the pixels of a photo.", examples=[DIGEST])
]


class PhotoReference(BaseModel):
    id: PhotoId
    file: Annotated[str, Field(description="The client's name of it.", examples=["garden.jpg"])]
    added: Annotated[str, Field(examples=["2026-03-01T09:30:00+00:00"])]
    thumbnail: Annotated[
        str,
        Field(
            description="URL of a small JPEG, relative to the service.", examples=[f"review/photos/{DIGEST}/thumbnail"]
        ),
    ]


class WaitingPhoto(PhotoReference):
    state: Annotated[Literal["known", "maybe", "unknown"], Field(description="By the model as it is now.")]
    label: Annotated[str | None, Field(description="null: unknown", examples=["red panda"])]
    probability: Annotated[Probability, Field(description="Of the nearest class; null: there is none.")] = None
    unknown_probability: Annotated[
        Probability, Field(description="That the photo shows none of the classes.", examples=[0.41])
    ] = None
    ranking: Annotated[list[Ranked], Field(description="The nearest classes, nearest first.")]


class ReviewQueue(BaseModel):
    photos: Annotated[list[WaitingPhoto], Field(description="Least certain answers first.")]
    total: Annotated[int, Field(description="Number of kept photos, regardless of `limit`.", examples=[12])]
    keeping: Annotated[bool, Field(description="Whether further photos are kept: `fscil serve --keep-unknown`.")]
    at_most: Annotated[int, Field(description="Kept photos; beyond that the oldest are dropped.", examples=[500])]


class ReviewGroup(BaseModel):
    photos: Annotated[list[PhotoReference], Field(description="Two or more that look alike, oldest first.")]


class ReviewGroups(BaseModel):
    groups: Annotated[list[ReviewGroup], Field(description="Largest first.")]


class NamedPhotos(BaseModel):
    name: Annotated[str, Field(description="Of a class.", examples=["red panda"])]
    photos: Annotated[list[PhotoId], Field(min_length=1, max_length=MOST)]


class Rejected(BaseModel):
    name: Name
    added: Annotated[int, Field(description="Negative examples that were new.", examples=[1])]
    negatives: Annotated[int, Field(description="Negative examples of the class now.", examples=[3])]


class ForgottenPhotos(BaseModel):
    forgotten: Annotated[int, Field(description="How many photos.", examples=[1])]


class NegativeExample(PhotoReference):
    name: Annotated[str, Field(description="What it does not show.", examples=["red panda"])]


class NegativeExamples(BaseModel):
    negatives: Annotated[list[NegativeExample], Field(description="Class by class, in the order they were added in.")]
