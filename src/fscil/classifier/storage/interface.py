"""What a classifier needs of the place its model is kept in."""

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias

from torch import Tensor

from fscil.classifier.model_folder import Contents
from fscil.errors import StoreError

Record: TypeAlias = Mapping[str, Any]  # one change of a gallery, as `apply_record` reads it
Version: TypeAlias = Hashable  # two are equal if and only if nothing has changed in between
Network: TypeAlias = str  # tells one network from another


class Changes(NamedTuple):
    """What others have done to a gallery, and the version after that."""

    records: list[Record]
    version: Version


class Described(NamedTuple):
    """A new description of a model."""

    about: Mapping[str, Any]
    decision: Mapping[str, Tensor] | None = None  # what the decision rule consists of; None: as it was


class Storage(Protocol):
    """A model in a folder or in a database. What a method has written survives a crash as soon as it returns."""

    @property
    def place(self) -> str:
        """For messages; without a password."""
        ...

    @property
    def identity(self) -> Hashable:
        """Equal for two names of the same place."""
        ...

    def exists(self) -> bool:
        """Whether there is a model."""
        ...

    def create(
        self,
        weights: Mapping[str, Tensor],
        about: Mapping[str, Any],
        snapshot: Mapping[str, Tensor],
        expected: Version | None = None,
        decision: Mapping[str, Tensor] | None = None,
    ) -> Version:
        """Write a new model, or replace one; with `expected`, only if it is still at that version.

        snapshot: as `Gallery.snapshot` makes it. decision: what the decision rule consists of; nothing for the cosine
        rule.
        """
        ...

    def read(self) -> Contents:
        """Everything, checked."""
        ...

    def version(self) -> Version:
        """Cheap."""
        ...

    def changes_since(self, version: Version) -> Changes | None:
        """What has happened since a version that was read here; None if it cannot be told: then `read` everything."""
        ...

    def write(self, record: Record, network: Network) -> None:
        """Change the gallery, if the model still has this network. A class that is not there: UnknownClassError."""
        ...

    def describe(self, change: Callable[[Contents], Described], network: Network) -> None:
        """Replace description and decision rule by what `change` makes of the latest contents. Other writers wait."""
        ...

    def serving(self) -> AbstractContextManager[None]:
        """Until the block ends, this process serves the model; a StoreError if it cannot."""
        ...

    def following(self, refresh: Callable[[], object]) -> AbstractContextManager[None]:
        """Until the block ends, `refresh` is called soon after another process has changed the model."""
        ...

    def outdated(self) -> StoreError | None:
        """Why what was read may be older than can be answered for; None if it is not."""
        ...

    def close(self) -> None: ...
