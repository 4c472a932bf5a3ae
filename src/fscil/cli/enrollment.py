"""The commands that change the classes of a model: enroll, forget, rename and reject."""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fscil.cli.options import Device, Model, Quiet, photo_files, say
from fscil.errors import ConfigError, DataError, FscilWarning
from fscil.runtime.progress import titled
from fscil.runtime.text import count

if TYPE_CHECKING:
    from fscil.classifier import StoredClassifier
    from fscil.gallery import Photo

commands = typer.Typer()


@commands.command()
def enroll(
    model: Model,
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME PHOTO… | DIR",
            help="A class and its photos, or one folder of photos per class: DIR/CLASS/PHOTO.",
        ),
    ],
    strict: Annotated[
        bool, typer.Option("--strict", help="Learn nothing of a class whose photos are doubtful, instead of warning.")
    ] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Learn a class from one photo or more, or all classes of a folder. No training: it takes seconds.

    More photos of an enrolled class improve it; the same photo twice counts once, and one that another class has moves
    from there to this one. A photo that cannot be read is left out with a warning. Other warnings tell where a new
    class can hardly be distinguished from an old one, where a photo looks like none of the others, and where two are
    nearly the same; with --strict they are errors, and nothing of that class is learned.

    Example: fscil enroll birds.fscil "red panda" a.jpg b.jpg

    Example: fscil enroll birds.fscil photos/new
    """
    from fscil.classifier import StoredClassifier

    photos_of = _photos_by_class(what)
    with StoredClassifier.open(model, device) as stored:
        for number, (name, paths) in enumerate(photos_of.items(), 1):
            with titled(f"[{number}/{len(photos_of)}] {name}: " if len(photos_of) > 1 else f"{name}: "):
                new = _enroll(stored, name, paths, strict, quiet)
            say(f"{name}: {count(new, 'new photo')}, {stored.classifier.gallery.info(name).photos} in all")


def _photos_by_class(what: Sequence[str]) -> dict[str, list[Path]]:
    """Class names and photos, from either form of the command."""
    from fscil.data import photos

    if len(what) == 1:
        folder = Path(what[0]).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"{folder}: give a name and photos, or a folder of class folders.")
        found: dict[str, list[Path]] = {}
        for path, name in photos.labelled(folder, "train"):
            if name is None:
                raise DataError(f"{path} is in no class folder. Enroll it as: fscil enroll MODEL NAME {path}")
            found.setdefault(name, []).append(path)
        return found
    return {what[0]: photo_files(what[1:])}


def _enroll(stored: "StoredClassifier", name: str, paths: Sequence[Path], strict: bool, quiet: bool) -> int:
    """Warns of photos that cannot be read, and leaves them out."""
    from fscil.classifier.encoder import with_progress
    from fscil.gallery import new_class_name

    new_class_name(name)
    found = list(with_progress(stored.classifier.encoder.photos(paths), len(paths), quiet))
    good = [photo for photo in found if not isinstance(photo, DataError)]
    for photo in found:
        if isinstance(photo, DataError):
            if not good:
                raise photo
            warnings.warn(f"{photo}: left out", FscilWarning, stacklevel=2)
    doubts = stored.doubts(name, good)
    for doubt in doubts:
        warnings.warn(doubt.message, FscilWarning, stacklevel=2)
    if strict and doubts:
        raise DataError(f"{name}: nothing learned, because of {count(len(doubts), 'doubt')} (--strict).")
    moved = stored.classifier.gallery.elsewhere(name, (photo.digest for photo in good))
    new = stored.enroll_photos(name, good)
    for other, digests in moved.items():
        gone = "" if other in stored.classifier.gallery else ", which had no other and is gone"
        say(f'{name}: {count(len(digests), "photo")} moved here from "{other}"{gone}')
    return new


@commands.command()
def forget(
    model: Model,
    name: Annotated[str, typer.Argument(metavar="NAME", help="An enrolled class.")],
    photo: Annotated[
        list[str] | None,
        typer.Option(
            "--photo",
            metavar="FILE|DIGEST",
            help="Remove this photo of it alone: its file, or its digest as fscil classes MODEL NAME prints it; may be "
            "repeated.",
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Remove a class and every trace of its photos, from the files too. What is left predicts as before.

    With --photo one photo; with its last photo a class is gone. What fit estimated from a class stays until fscil
    upgrade or fit.

    Example: fscil forget birds.fscil "red panda"

    Example: fscil forget birds.fscil "red panda" --photo panda2.jpg
    """
    from fscil.classifier import StoredClassifier

    with StoredClassifier.open(model, device) as stored:
        if not photo:
            stored.forget(name)
            say(f"{name}: forgotten")
        for digest in [_digest(stored, name, each) for each in photo or ()]:
            stored.remove_photo(name, digest)
        if photo:
            known = stored.classifier.gallery
            left = f"{known.info(name).photos} left" if name in known else "none left, the class is gone"
            say(f"{name}: {count(len(photo), 'photo')} removed, {left}")


def _digest(stored: "StoredClassifier", name: str, photo: str) -> str:
    """Of a photo of a class: by its file, or by the beginning of its digest."""
    from fscil.data import photos

    known = [each.digest for each in stored.classifier.gallery.photos(name)]
    path = Path(photo).expanduser()
    if path.is_file():
        digest = photos.load(path, stored.classifier.encoder.config.resize).digest
        if digest not in known:
            raise DataError(f'{photo}: "{name}" has no such photo. Its photos: fscil classes MODEL "{name}"')
        return digest
    found = [each for each in known if each.startswith(photo.lower())] if photo else []
    if len(found) != 1:
        many = f"{len(found)} photos have" if found else "is no file, and no photo has"
        raise DataError(f'{photo}: {many} a digest that begins so. See them all: fscil classes MODEL "{name}"')
    return found[0]


@commands.command()
def rename(
    model: Model,
    name: Annotated[str, typer.Argument(metavar="NAME", help="An enrolled class.")],
    to: Annotated[str, typer.Argument(metavar="NEW", help="A name that no class has.")],
    device: Device = "auto",
) -> None:
    """Give a class another name. It keeps its photos and predicts as before.

    Example: fscil rename birds.fscil robin "European robin"
    """
    from fscil.classifier import StoredClassifier

    with StoredClassifier.open(model, device) as stored:
        stored.rename(name, to)
    say(f"{name}: now {to}")


@commands.command()
def reject(
    model: Model,
    name: Annotated[str, typer.Argument(metavar="NAME", help="An enrolled class.")],
    images: Annotated[list[Path], typer.Argument(metavar="PHOTO…", help="Photos that do not show it, or folders.")],
    undo: Annotated[bool, typer.Option("--undo", help="Forget that these photos were rejected.")] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Remember that photos do not show a class ("not this"): negative examples.

    A photo that fits such an example better than the class is no longer called the class: it is answered as if the
    class were not enrolled. fscil classes MODEL NAME lists the examples; they go with --undo, with the class, or when
    the photo is enrolled in it.

    Example: fscil reject birds.fscil robin redstart.jpg
    """
    from fscil.classifier import StoredClassifier
    from fscil.classifier.encoder import with_progress

    paths = photo_files(images)
    with StoredClassifier.open(model, device) as stored:
        photos = _readable(with_progress(stored.classifier.encoder.photos(paths), len(paths), quiet))
        if undo:
            for photo in photos:
                stored.remove_negative(name, photo.digest)
            say(f"{name}: {count(len(photos), 'negative example')} removed")
            return
        new = stored.reject_photos(name, photos)
        say(f"{name}: {count(new, 'new negative example')}, {len(stored.classifier.gallery.negatives(name))} in all")


def _readable(photos: "Iterable[Photo | DataError]") -> "list[Photo]":
    """The first that cannot be read raises its error."""
    found = []
    for photo in photos:
        if isinstance(photo, DataError):
            raise photo
        found.append(photo)
    return found
