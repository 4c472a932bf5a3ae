"""A classifier as a model folder or in a database: saved, and loaded again."""

from collections.abc import Hashable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Self

from fscil.classifier.decision import Decision, rule_from
from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.classifier.model_folder import Contents
from fscil.classifier.predictor import PathLike, Predictor
from fscil.classifier.storage import storage_at
from fscil.classifier.storage.contents import gallery_of
from fscil.errors import FscilError, StoreError
from fscil.gallery import Gallery
from fscil.runtime.validation import as_type, invalid
from fscil.training.context import pick_device


class SavedPredictor(Predictor):
    """The part of a `Classifier` that knows where models are kept."""

    def __init__(
        self,
        encoder: PhotoEncoder,
        gallery: Gallery | None = None,
        decision: Decision | None = None,
        made: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(encoder, gallery, decision)
        self.made = dict(made or {})  # how, for the record
        self._saved: tuple[Hashable, Hashable] | None = None  # where it was loaded from or saved to, and its version

    def save(self, path: PathLike, force: bool = False) -> None:
        """Write a model folder, or a model in a database.

        Parameters
        ----------
        path : path or URL
            A new folder, or the model this one was loaded from, if nobody has changed it since. For PostgreSQL the
            address of a database: postgresql://…
        force : bool
            Replace any model that is there.

        Raises
        ------
        StoreError
            If another model or something else is there, the model has changed since, or the disk is full. Then what
            was there is untouched.

        Examples
        --------
        >>> classifier = Classifier.load("birds.fscil")
        >>> classifier.forget("robin")
        >>> classifier.save("fewer_birds.fscil")
        """
        with closing(storage_at(path)) as storage:
            expected = self._saved[1] if self._saved and self._saved[0] == storage.identity else None
            if not force and storage.exists():
                if expected is None:
                    raise StoreError(
                        f"{storage.place} already holds another model. Save with force=True to replace it."
                    )
                if storage.version() != expected:
                    raise StoreError(
                        f"{storage.place}: the model has changed since it was loaded, for instance by an enrollment in "
                        f"another program. Load it again, or save with force=True to lose that change."
                    )
            with self.lock:
                version = storage.create(
                    self.encoder.backbone.state_dict(),
                    self.about(),
                    self.gallery.snapshot(),
                    None if force else expected,
                    self.gallery.rule.state(),
                )
            self._saved = (storage.identity, version)

    @classmethod
    def load(cls, path: PathLike, device: str = "auto") -> Self:
        """Read a model.

        Parameters
        ----------
        path : path or URL
            A model folder, or the address of a database: postgresql://…
            Written by `save`, `fscil fit` or a `StoredClassifier`.
        device : str
            "auto", "cpu", "cuda" or "cuda:N".

        Returns
        -------
        Classifier

        Raises
        ------
        StoreError
            If it is no model, is damaged, or was written by a newer version.

        Examples
        --------
        >>> len(Classifier.load("birds.fscil").classes())
        3
        """
        with closing(storage_at(path)) as storage:
            contents = storage.read()
        found = cls.restore(contents, device, storage.place)
        found._saved = (storage.identity, contents.version)
        return found

    @classmethod
    def restore(cls, contents: Contents, device: str = "auto", source: str = "the model") -> Self:
        """From what a model folder holds. source: what an error calls it."""
        about = as_type(contents.about, _About, source)
        config = EncoderConfig.from_dict(about.network)
        encoder = PhotoEncoder.load(config, contents.weights, pick_device(device), source)
        try:
            gallery, decision = restore_gallery(contents), Decision.from_about(contents.about)
        except FscilError as error:
            raise StoreError(f"{source}: {error}") from error
        if gallery.dim != encoder.dim:
            raise invalid(source, f"features of {gallery.dim} numbers, but the network makes {encoder.dim}")
        return cls(encoder, gallery, decision, about.made)

    def about(self) -> dict[str, Any]:
        """What model.json holds of it: all but weights, gallery and decision rule."""
        decision = self.decision.to_about(self.gallery.rule)
        return {"network": self.encoder.config.to_dict(), **decision, "made": self.made}


@dataclass(frozen=True)
class _About:
    """What model.json says, beside the decision."""

    network: dict[str, Any]
    made: dict[str, Any]


def restore_gallery(contents: Contents) -> Gallery:
    """Under the decision rule of the model."""
    return gallery_of(contents, rule_from(contents.about, contents.decision))
