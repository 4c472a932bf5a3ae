"""The commands for people with photos: from a folder of them to a model that learns, answers and serves."""

import shutil
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fscil.cli.options import Device, Quiet, Settings, say
from fscil.cli.output import count, csv_lines, json_lines, table, text_lines
from fscil.errors import ConfigError, DataError, FscilWarning, StoreError

if TYPE_CHECKING:
    from fscil.classifier import Check, StoredClassifier

commands = typer.Typer()

Model = Annotated[Path, typer.Argument(help="A model folder, made by fscil fit.")]


@commands.command()
def fit(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="Model folder to write.")],
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="One folder of photos per class: DIR/CLASS/PHOTO.")
    ] = None,
    run: Annotated[Path | None, typer.Option("--from", help="Make the model of a finished fscil train run.")] = None,
    shots: Annotated[int, typer.Option(min=1, help="Photos that make up a trained class: those nearest its mean.")] = 5,
    minutes: Annotated[float | None, typer.Option(min=0, help="Train no longer than this; 0: not at all.")] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Train a small network from nothing, not the pretrained one.")
    ] = False,
    set_: Settings = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the model that is there.")] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Make a model: fine-tune the pretrained network on your photos. Says first how long that takes.

    Classes with fewer than 5 photos are not trained on but enrolled afterwards. Ctrl-C stops it; the same command goes
    on. With --minutes 0 the pretrained network is used as it is, and DIR is not needed.

    Example: fscil fit photos/birds -o birds.fscil --minutes 20
    """
    from fscil.classifier import Classifier

    _refuse_existing(out, force)
    work = out.resolve().with_name(f"{out.resolve().name}.training")
    if run:
        if from_scratch or set_ or minutes is not None:
            raise ConfigError(
                "--from takes a network that is trained already: leave out --minutes, --from-scratch, --set."
            )
        made = Classifier.from_run(run, folder, shots, device, quiet)
    elif folder is None:
        if minutes != 0 or from_scratch:
            raise ConfigError(
                "fit what? Give a folder of class folders, or --from RUN, or --minutes 0 for no training."
            )
        made = Classifier.pretrained(device)
    else:
        try:
            made = Classifier.fit(
                folder,
                shots=shots,
                minutes=minutes,
                from_scratch=from_scratch,
                settings=set_ or [],
                device=device,
                quiet=quiet,
                say=say,
                work=work,
            )
        except KeyboardInterrupt:
            if (work / "run.json").is_file():
                say("\nStopped; nothing is lost. The same command goes on where it stopped.")
            raise
    made.save(out, force=force)
    if not run and (work / "run.json").is_file():
        shutil.rmtree(work, ignore_errors=True)
    say(f"Written: {out} ({count(len(made.gallery), 'class', 'classes')})")
    say(f"Next: fscil enroll {out} NAME PHOTO…, fscil predict {out} PHOTO…, fscil serve {out}")


def _refuse_existing(out: Path, force: bool) -> None:
    """Before any work is done for it."""
    from fscil.classifier.model_folder import ModelFolder

    model = ModelFolder(out)
    if model.exists():
        if not force:
            raise StoreError(f"{out} already holds a model. Choose another -o, or replace it with --force.")
    elif out.exists() and (not out.is_dir() or model.stranger()):
        raise StoreError(f"{out} exists and is neither a model nor an empty folder. Choose another -o.")


@commands.command()
def enroll(
    model: Model,
    what: Annotated[
        list[str], typer.Argument(metavar="NAME PHOTO… | DIR", help="A class and its photos, or a folder.")
    ],
    device: Device = "auto",
) -> None:
    """Teach a class from one photo or more, or all classes of a folder of class folders. Takes moments, no training.

    More photos of a class that is known refine it; the same photo twice counts once.

    Example: fscil enroll birds.fscil "red panda" a.jpg b.jpg

    Example: fscil enroll birds.fscil photos/new
    """
    from fscil.classifier import StoredClassifier

    wanted = _wanted(what)
    with StoredClassifier.open(model, device) as stored:
        for name, paths in wanted.items():
            learned = _enroll(stored, name, paths)
            say(f"{name}: {count(learned, 'new photo')}, {stored.classifier.gallery.info(name).photos} in all")


def _wanted(what: Sequence[str]) -> dict[str, list[Path]]:
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
    return {what[0]: _expanded(what[1:])}


def _expanded(paths: Iterable[str | Path]) -> list[Path]:
    """Folders replaced by the photos in them."""
    from fscil.data import photos

    found: list[Path] = []
    for path in (Path(path).expanduser() for path in paths):
        inside = photos.files(path) if path.is_dir() else [path]
        if not inside:
            raise DataError(f"{path}: no photo in this folder.")
        found += inside
    return found


def _enroll(stored: "StoredClassifier", name: str, paths: Sequence[Path]) -> int:
    """Photos that cannot be read are spoken of and left out."""
    from fscil.gallery import class_name

    class_name(name)
    found = list(stored.classifier.encoder.photos(paths))
    good = [photo for photo in found if not isinstance(photo, DataError)]
    for photo in found:
        if isinstance(photo, DataError):
            if not good:
                raise photo
            warnings.warn(f"{photo}: left out", FscilWarning, stacklevel=2)
    return stored.enroll_prepared(name, good)


@commands.command()
def forget(model: Model, name: Annotated[str, typer.Argument(help="The class.")], device: Device = "auto") -> None:
    """Remove a class and every trace of its photos.

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
    top: Annotated[int, typer.Option(min=1, help="Name this many classes, nearest first.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="A table with a header.")] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Say what photos show, one line each as it is found; "unknown" needs fscil calibrate first.

    A photo that cannot be read gets a line that says so, and the exit code is then 1.

    Example: fscil predict birds.fscil x.jpg holiday/ --top 3

    Example: fscil predict birds.fscil holiday/ --csv > holiday.csv
    """
    from fscil.classifier import Classifier
    from fscil.runtime.progress import ProgressBar

    if as_json and as_csv:
        raise ConfigError("--json or --csv, not both.")
    paths = _expanded(images)
    out = sys.stdout  # as it is now: while the bar is shown, what is printed goes where the bar is
    write = (json_lines if as_json else csv_lines if as_csv else text_lines)(out, top)
    failed = 0
    with ProgressBar("photos", len(paths), quiet=quiet or out.isatty()) as bar:
        for path, answer in zip(paths, Classifier.load(model, device).stream(paths, top), strict=True):
            failed += isinstance(answer, DataError)
            write(path, answer)
            out.flush()
            bar.advance()
    if failed:
        raise typer.Exit(1)


@commands.command()
def classes(model: Model) -> None:
    """List the classes: how many photos each has, when they came and from where.

    Example: fscil classes birds.fscil
    """
    from fscil.classifier.model import gallery_of
    from fscil.classifier.model_folder import ModelFolder
    from fscil.runtime.text import first_few

    known = gallery_of(ModelFolder(model).read()).classes()
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
    false_accept: Annotated[float, typer.Option(help="Share of unknown photos that may pass for a class.")] = 0.05,
    score: Annotated[str | None, typer.Option(help="How to score (see the docs); the default does well.")] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Find out when to answer "unknown". Until then nothing is.

    All photos of a flat DIR count as unknown. In class folders, those of classes that are not enrolled do, and the
    enrolled ones tell how often a known class is turned away. Without DIR each class is left out in turn, which needs
    some 20 classes.

    Example: fscil calibrate birds.fscil photos/no_birds --false-accept 0.05
    """
    from fscil.classifier import StoredClassifier

    with StoredClassifier.open(model, device) as stored:
        found = stored.calibrate(folder, false_accept, score, quiet)
    say(
        f"{found.score} of at least {found.threshold:.4f}: accepts at most {found.false_accept:.1%} of "
        f"{count(found.unknowns, 'unknown photo')}"
    )
    if found.false_reject is not None:
        say(f"turns away {found.false_reject:.1%} of {count(found.knowns, 'photo')} of enrolled classes")


@commands.command()
def check(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Photos in class folders: DIR/CLASS/PHOTO.")],
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure how well the model does on photos it has not seen: accuracy, per class, and what is confused.

    Example: fscil check birds.fscil photos/held_out
    """
    from fscil.classifier import Classifier

    _print_check(Classifier.load(model, device).check(folder, quiet))


def _print_check(found: "Check") -> None:
    for what in found.skipped:
        warnings.warn(f"{what}: left out", FscilWarning, stacklevel=2)
    groups = (("class", found.classes, "correct"), ("not enrolled", found.strangers, "unknown, as they should be"))
    for title, group, right in groups:
        if group:
            table(
                [title, "photos", right, "unknown"],
                [
                    [each.name, each.photos, f"{each.accuracy:.1%}", f"{each.unknown / each.photos:.1%}"]
                    for each in group
                ],
            )
    if found.confused:
        table(["most confused", "taken for", "photos"], found.confused[:10])
    if found.accuracy is not None:
        say(f"accuracy {found.accuracy:.1%}, unknown {found.unknown:.1%}, of {count(found.photos, 'photo')}")
    if found.rejected is not None:
        strange = sum(each.photos for each in found.strangers)
        say(f"unknown {found.rejected:.1%} of {count(strange, 'photo')} of classes that are not enrolled")


@commands.command()
def export(
    model: Model,
    onnx: Annotated[Path, typer.Option("--onnx", metavar="FILE", help="Write the network as ONNX to FILE.")],
    compare: Annotated[
        Path | None, typer.Option("--compare", metavar="DIR", help="Photos to compare on; else drawn characters.")
    ] = None,
) -> None:
    """Write the network as ONNX and the classes beside it, after comparing their answers with the model's.

    Example: fscil export birds.fscil --onnx birds.onnx
    """
    from fscil.classifier import Classifier
    from fscil.export import export_onnx

    parity = export_onnx(Classifier.load(model, "cpu"), onnx, _expanded([compare]) if compare else None)
    say(
        f"Written: {onnx} and {onnx}.gallery.npz. On {count(parity.images, 'image')} the features differ by at most "
        f"{parity.max_cosine_difference:.1e} in cosine, and the nearest class is the same."
    )


@commands.command()
def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to listen on; others than this machine need --key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8000,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="File with the keys to let in.")] = None,
    device: Device = "auto",
) -> None:
    """Put the model behind a page in the browser and an HTTP service, until Ctrl-C.

    Example: fscil serve birds.fscil --port 8000
    """
    from fscil.serve import run

    run(model, host=host, port=port, key_file=key, device=device)
