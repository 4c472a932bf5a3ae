"""A classifier as a model folder: saved, and loaded again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from fscil.classifier.decision import Decision, rule_from
from fscil.classifier.encoder import EncoderConfig, PhotoEncoder
from fscil.classifier.model_folder import Contents, ModelFolder, Version
from fscil.classifier.predictor import PathLike, Predictor
from fscil.errors import StoreError
from fscil.gallery import Gallery
from fscil.training.context import pick_device


class SavedPredictor(Predictor):
    """The part of a `Classifier` that knows model folders."""

    def __init__(
        self,
        encoder: PhotoEncoder,
        gallery: Gallery | None = None,
        decision: Decision | None = None,
        made: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(encoder, gallery, decision)
        self.made = dict(made or {})  # how, for the record
        self._saved: tuple[Path, Version] | None = None  # the folder it was loaded from or saved to

    def save(self, path: PathLike, force: bool = False) -> None:
        """Write a model folder.

        Parameters
        ----------
        path : path
            A new folder, or the model this one was loaded from, if nobody has changed it since.
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
        folder = ModelFolder(Path(path).expanduser())
        place = folder.path.resolve()
        expected = self._saved[1] if self._saved and self._saved[0] == place else None
        if folder.exists() and not force and expected is None:
            raise StoreError(f"{path} already holds another model. Save with force=True to replace it.")
        if folder.exists() and not force and folder.version() != expected:
            raise StoreError(
                f"{path}: the model has changed since it was loaded, for instance by an enrollment in another program. "
                f"Load it again, or save with force=True to lose that change."
            )
        with self.lock:
            version = folder.create(
                self.encoder.backbone.state_dict(),
                self.about(),
                self.gallery.snapshot(),
                None if force else expected,
                self.gallery.rule.state(),
            )
        self._saved = (place, version)

    @classmethod
    def load(cls, path: PathLike, device: str = "auto") -> Self:
        """Read a model folder.

        Parameters
        ----------
        path : path
            Written by `save`, `fscil fit` or a `StoredClassifier`.
        device : str
            "auto", "cpu", "cuda" or "cuda:N".

        Returns
        -------
        Classifier

        Raises
        ------
        StoreError
            If it is no model folder, is damaged, or was written by a newer version.

        Examples
        --------
        >>> len(Classifier.load("birds.fscil").classes())
        3
        """
        folder = ModelFolder(Path(path).expanduser())
        contents = folder.read()
        found = cls.restore(contents, device, str(path))
        found._saved = (folder.path.resolve(), contents.version)
        return found

    @classmethod
    def restore(cls, contents: Contents, device: str = "auto", source: str = "the model") -> Self:
        """From what a model folder holds. source: what an error calls it."""
        about = contents.about
        config = EncoderConfig.from_dict(about["network"])
        encoder = PhotoEncoder.load(config, contents.weights, pick_device(device), source)
        return cls(encoder, restore_gallery(contents), Decision.from_about(about), about["made"])

    def about(self) -> dict[str, Any]:
        """What model.json holds of it: all but weights, gallery and decision rule."""
        decision = self.decision.to_about(self.gallery.rule)
        return {"network": self.encoder.config.to_dict(), **decision, "made": self.made}


def restore_gallery(contents: Contents) -> Gallery:
    """The snapshot and what was enrolled since."""
    gallery = Gallery.from_snapshot(contents.snapshot, rule_from(contents.about, contents.decision))
    for record in contents.records:
        gallery.apply(record)
    return gallery
