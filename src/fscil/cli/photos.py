"""The commands for a model folder: enroll, forget, predict, classes, calibrate, upgrade, check, export and serve."""

import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fscil.cli.options import Device, Quiet, say
from fscil.cli.output import csv_lines, json_lines, print_check, table, text_lines
from fscil.errors import ConfigError, DataError, FscilWarning
from fscil.runtime.text import count, first_few

if TYPE_CHECKING:
    from fscil.classifier import StoredClassifier

commands = typer.Typer()

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder, made by fscil fit.")]
UnknownPrior = Annotated[
    float | None, typer.Option(help="How probable it is, before a photo is seen, that it shows none of the classes.")
]


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
    device: Device = "auto",
) -> None:
    """Learn a class from one photo or more, or all classes of a folder. No training: it takes seconds.

    More photos of an enrolled class improve it; the same photo twice counts once. A photo that cannot be read is left
    out with a warning. Another warning tells where a new class can hardly be distinguished from an old one, or a photo
    looks like none of the others.

    Example: fscil enroll birds.fscil "red panda" a.jpg b.jpg

    Example: fscil enroll birds.fscil photos/new
    """
    from fscil.classifier import StoredClassifier

    photos_of = _photos_by_class(what)
    with StoredClassifier.open(model, device) as stored:
        for name, paths in photos_of.items():
            new = _enroll(stored, name, paths)
            say(f"{name}: {count(new, 'new photo')}, {stored.classifier.gallery.info(name).photos} in all")


def _photos_by_class(what: Sequence[str]) -> dict[str, list[Path]]:
    """Class names and photos, from either form of the command."""
    from fscil.data import photos

    if len(what) == 1:
        folder = Path(what[0]).expanduser()
        if not folder.is_dir():
            raise DataError(f"{folder}: give a name and photos, or a folder of class folders.")
        found: dict[str, list[Path]] = {}
        for path, name in photos.labelled(folder, "train"):
            if name is None:
                raise DataError(f"{path} is in no class folder. Enroll it as: fscil enroll MODEL NAME {path}")
            found.setdefault(name, []).append(path)
        return found
    return {what[0]: _photo_files(what[1:])}


def _photo_files(paths: Iterable[str | Path]) -> list[Path]:
    """Files, each folder being replaced by the photos in it."""
    from fscil.data import photos

    found: list[Path] = []
    for path in (Path(path).expanduser() for path in paths):
        inside = photos.files(path) if path.is_dir() else [path]
        if not inside:
            raise DataError(f"{path}: no photo in this folder.")
        found += inside
    return found


def _enroll(stored: "StoredClassifier", name: str, paths: Sequence[Path]) -> int:
    """Warns of photos that cannot be read, and leaves them out."""
    from fscil.gallery import class_name

    class_name(name)
    found = list(stored.classifier.encoder.photos(paths))
    good = [photo for photo in found if not isinstance(photo, DataError)]
    for photo in found:
        if isinstance(photo, DataError):
            if not good:
                raise photo
            warnings.warn(f"{photo}: left out", FscilWarning, stacklevel=2)
    for message in stored.doubts(name, good):
        warnings.warn(message, FscilWarning, stacklevel=2)
    return stored.enroll_photos(name, good)


@commands.command()
def forget(
    model: Model,
    name: Annotated[str, typer.Argument(metavar="NAME", help="An enrolled class.")],
    device: Device = "auto",
) -> None:
    """Remove a class and every trace of its photos, from the files too. What is left predicts as before.

    Example: fscil forget birds.fscil "red panda"
    """
    from fscil.classifier import StoredClassifier

    with StoredClassifier.open(model, device) as stored:
        stored.forget(name)
    say(f"{name}: forgotten")


@commands.command()
def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(metavar="PHOTO…", help="Photos, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="Also print this many of the nearest classes.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="A table with a header.")] = False,
    unknown_prior: UnknownPrior = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Predict what photos show, one line per photo: the class, its probability, and the runner-up.

    A photo is called unknown where that has a probability above 1/2, or by the threshold that fscil calibrate has set.
    A model without probabilities prints its score, a cosine. A photo that cannot be read gets a line with the error,
    and the exit code is then 1.

    Example: fscil predict birds.fscil x.jpg holiday/ --top 3

    Example: fscil predict birds.fscil holiday/ --csv > holiday.csv
    """
    from fscil.classifier import Classifier
    from fscil.runtime.progress import ProgressBar

    if as_json and as_csv:
        raise ConfigError("--json or --csv, not both.")
    paths = _photo_files(images)
    out = sys.stdout  # as it is now: while a progress bar is shown, sys.stdout is redirected to it
    write = (json_lines if as_json else csv_lines if as_csv else text_lines)(out, top)
    failed = 0
    answers = Classifier.load(model, device).stream(paths, top, unknown_prior)
    with ProgressBar("photos", len(paths), quiet=quiet or out.isatty()) as bar:
        for path, answer in zip(paths, answers, strict=True):
            failed += isinstance(answer, DataError)
            write(path, answer)
            out.flush()
            bar.advance()
    if failed:
        raise typer.Exit(1)


@commands.command()
def classes(model: Model) -> None:
    """List the enrolled classes: number of photos, origin (base: trained on), when they were added and from where.

    Example: fscil classes birds.fscil
    """
    from fscil.classifier.model_folder import ModelFolder
    from fscil.classifier.saving import restore_gallery

    known = restore_gallery(ModelFolder(model).read()).classes()
    table(
        ["class", "photos", "origin", "first", "last", "from"],
        [[c.name, c.photos, c.origin, c.added[:10], c.changed[:10], first_few(c.sources, 1)] for c in known],
    )
    say(count(len(known), "class", "classes"))


@commands.command()
def calibrate(
    model: Model,
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Photos of things that are not enrolled.")
    ] = None,
    false_accept: Annotated[
        float | None, typer.Option(help="Share of unknown photos that may be taken for a class (0.05).")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="Of a model that decides by cosine: cosine, margin, ratio, neighbours, contrast (the default), "
            "softmax or energy."
        ),
    ] = None,
    unknown_prior: UnknownPrior = None,
    off: Annotated[bool, typer.Option("--off", help="Remove the threshold.")] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Set the score below which a photo is called unknown, or how probable unknown photos are.

    Without a threshold a photo is unknown where that has a probability above 1/2, given --unknown-prior, which is
    stored with the model; --unknown-prior alone sets no threshold. A model that decides by cosine needs a threshold to
    call anything unknown. --off removes it.

    Photos of DIR that are in no class folder, or in one named like no enrolled class, are unknown. Those in folders
    named like an enrolled class measure how often a known one is rejected. Without DIR each class is left out in turn,
    which needs about 20 classes or more.

    Example: fscil calibrate birds.fscil photos/no_birds --false-accept 0.05

    Example: fscil calibrate birds.fscil --unknown-prior 0.3
    """
    from fscil.classifier import StoredClassifier

    measured = (folder, false_accept, score) != (None, None, None)
    if off and measured:
        raise ConfigError("--off removes the threshold: leave out DIR, --false-accept and --score.")
    with StoredClassifier.open(model, device) as stored:
        if off:
            stored.uncalibrate()
            say("no threshold")
        if unknown_prior is not None:
            stored.set_unknown_prior(unknown_prior)
            say(f"unknown photos: {unknown_prior:g} of all, before they are seen")
        if off or (unknown_prior is not None and not measured):
            return
        found = stored.calibrate(folder, 0.05 if false_accept is None else false_accept, score, quiet)
    say(
        f"{found.score} of at least {found.threshold:.4f}: accepts at most {found.false_accept:.1%} of "
        f"{count(found.unknowns, 'unknown photo')}"
    )
    if found.false_reject is not None:
        say(f"rejects {found.false_reject:.1%} of {count(found.knowns, 'photo')} of enrolled classes")


@commands.command()
def upgrade(model: Model, device: Device = "auto") -> None:
    """Estimate how photos of one class differ, from those of the model, and decide by that from now on.

    For models of earlier versions, which decide by cosine, and for any model after many classes were enrolled. Needs
    two classes with two photos each; about 20 give good probabilities. A threshold of fscil calibrate is removed.

    Example: fscil upgrade birds.fscil
    """
    from fscil.classifier import StoredClassifier

    with StoredClassifier.open(model, device) as stored:
        before = stored.classifier.calibration
        for line in stored.upgrade().summary:
            say(line)
    if before:
        say(f"the threshold for {before.score} is removed: set one anew with fscil calibrate, if you need one")


@commands.command()
def check(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Photos in class folders: DIR/CLASS/PHOTO.")],
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure the model on labelled photos: accuracy in all and per class, and which classes are confused.

    Use photos that it has not been given before. Photos of classes that are not enrolled should be called unknown.

    Example: fscil check birds.fscil photos/held_out
    """
    from fscil.classifier import Classifier

    print_check(Classifier.load(model, device).check(folder, quiet))


@commands.command()
def export(
    model: Model,
    onnx: Annotated[Path, typer.Option("--onnx", metavar="FILE", help="Write the network as ONNX to FILE.")],
    compare: Annotated[
        Path | None, typer.Option("--compare", metavar="DIR", help="Photos to compare on; by default drawn characters.")
    ] = None,
) -> None:
    """Write the network as ONNX, and the classes to FILE.gallery.npz, for programs without torch.

    Before anything is written, both must predict as the model does. docs/deploy.md has a program that uses them. Needs
    the export extra.

    Example: fscil export birds.fscil --onnx birds.onnx
    """
    from fscil.classifier import Classifier
    from fscil.export import export_onnx

    parity = export_onnx(Classifier.load(model, "cpu"), onnx, _photo_files([compare]) if compare else None)
    say(
        f"Written: {onnx} and {onnx}.gallery.npz. On {count(parity.images, 'image')} the features differ by at most "
        f"{parity.max_cosine_difference:.1e} in cosine, and the nearest class is the same."
    )


@commands.command()
def serve(
    model: Model,
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that other machines can reach needs --key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8000,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="File of access keys, see docs/serve.md.")
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Without --key: let every program on this machine use the service.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Serve the model over HTTP, with a page for the browser, until Ctrl-C. Needs the serve extra.

    Open the address that it prints: the token in it logs the browser in. While it runs, other programs cannot change
    the model.

    Example: fscil serve birds.fscil --port 8000
    """
    from fscil.serve import run

    run(model, host=host, port=port, key_file=key, device=device, token=not no_token)
