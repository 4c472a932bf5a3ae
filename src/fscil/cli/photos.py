"""The commands that use a model as it is: predict, classes, export and serve."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fscil.cli.options import Device, Model, Quiet, UnknownPrior, photo_files, say
from fscil.cli.output import csv_lines, json_lines, table, text_lines
from fscil.errors import ConfigError, DataError
from fscil.runtime.progress import ProgressBar
from fscil.runtime.text import count, first_few, printable

if TYPE_CHECKING:
    from fscil.classifier import Classifier

commands = typer.Typer()


@commands.command()
def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(metavar="PHOTO…", help="Photos, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="Also print this many of the nearest classes.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="A table with a header.")] = False,
    out_file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write the table to FILE, when it is complete; after an interruption the same command goes on.",
        ),
    ] = None,
    sort_into: Annotated[
        Path | None,
        typer.Option(
            "--sort-into",
            metavar="DIR",
            help="Copy the photos to DIR/CLASS, DIR/maybe/CLASS and DIR/unknown; those that were, are skipped.",
        ),
    ] = None,
    link: Annotated[bool, typer.Option("--link", help="With --sort-into: symbolic links instead of copies.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on with photos that come into the folders, until Ctrl-C.")
    ] = False,
    unknown_prior: UnknownPrior = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Predict what photos show, one line per photo: the class, its probability, and the runner-up.

    A photo is known, maybe ("it looks like this class") or unknown, by the thresholds of the model, which fscil
    calibrate sets; by default unknown where that has a probability above 1/2, and maybe where the class has less than
    1/2. A model without probabilities prints its score, a cosine. A photo that cannot be read gets a line with the
    error, and the exit code is then 1.

    Example: fscil predict birds.fscil x.jpg holiday/ --top 3

    Example: fscil predict birds.fscil holiday/ --csv -o holiday.csv

    Example: fscil predict birds.fscil camera/ --sort-into sorted --watch
    """
    from fscil.classifier import Classifier
    from fscil.cli.sorting import Sorter, arriving

    if as_json and as_csv:
        raise ConfigError("--json or --csv, not both.")
    if link and sort_into is None:
        raise ConfigError("--link goes with --sort-into DIR.")
    if out_file:
        if as_json or sort_into or watch:
            raise ConfigError("--out FILE is a CSV table of all photos: leave out --json, --sort-into and --watch.")
        _predict_to_file(model, images, out_file.expanduser(), top, unknown_prior, device, quiet)
        return
    if as_csv:
        _require_no_table(images)
    sorter = Sorter(sort_into.expanduser(), link) if sort_into else None
    out = sys.stdout  # as it is now: while a progress bar is shown, sys.stdout is redirected to it
    write = (json_lines if as_json else csv_lines if as_csv else text_lines)(out, top)
    every = [] if watch else photo_files(images)  # before the model: a mistake in a path is told at once
    loaded = Classifier.load(model, device)
    _hint_at_no_classes(loaded, model)

    def todo(paths: Sequence[Path]) -> list[Path]:
        return sorter.todo(paths) if sorter else list(paths)

    def predict_all(paths: Sequence[Path], quiet: bool) -> bool:
        """Whether all could be read."""
        good = True
        with ProgressBar("photos", len(paths), quiet=quiet or out.isatty()) as bar:
            for path, answer in zip(paths, loaded.stream(paths, top, unknown_prior), strict=True):
                write(path, answer)
                out.flush()
                if isinstance(answer, DataError):
                    good = False
                elif sorter:
                    sorter.add(path, answer)
                bar.advance()
        return good

    if watch:
        folders = [path.expanduser() for path in images]
        if files := [str(path) for path in folders if path.is_file()]:
            raise ConfigError(f"--watch is for folders: {first_few(files)} is a file. Give its folder, or no --watch.")
        say_to_people(f"watching {first_few([str(path) for path in folders])}: Ctrl-C to stop")
        for batch in arriving(lambda: todo(_photos_in(folders))):
            predict_all(batch, quiet=True)
    paths = todo(every)
    if len(paths) < len(every):
        say_to_people(f"{count(len(every) - len(paths), 'photo')} sorted before: skipped")
    with resumable() if sorter else nullcontext():
        good = predict_all(paths, quiet)
    if not good:
        raise typer.Exit(1)


def _hint_at_no_classes(loaded: "Classifier", model: str) -> None:
    if not len(loaded.gallery):
        say_to_people(f"{model} has no class yet, so every photo is unknown. First: fscil enroll {model} NAME PHOTO…")


def _predict_to_file(
    model: str, images: Sequence[Path], path: Path, top: int, unknown_prior: float | None, device: str, quiet: bool
) -> None:
    """The table of all photos, of which those that were answered before an interruption are not predicted again."""
    from fscil.classifier import Classifier
    from fscil.classifier.encoder import BATCH
    from fscil.classifier.fingerprint import fingerprint
    from fscil.cli.prediction_table import PredictionTable

    every = photo_files(images)
    loaded = Classifier.load(model, device)
    _hint_at_no_classes(loaded, model)
    table = PredictionTable(path, top, {"model": fingerprint(loaded), "unknown_prior": unknown_prior})
    paths = table.todo(every)
    if len(paths) < len(every):
        say_to_people(f"{count(len(every) - len(paths), 'photo')} answered before: not predicted again")
    if table.outdated:
        say_to_people(f"{path}: begun with another model or other options, so these answers are made anew")
    answers = zip(paths, loaded.stream(paths, top, unknown_prior), strict=True)
    with resumable(), ProgressBar("photos", len(paths), quiet=quiet) as bar:
        while batch := list(islice(answers, BATCH)):
            table.add(batch)
            bar.advance(len(batch))
    found = table.write(every)
    say(f"Written: {path} ({', '.join(f'{number} {state}' for state, number in found.items() if number)})")
    if found["cannot be read"]:
        raise typer.Exit(1)


@contextmanager
def resumable() -> Iterator[None]:
    """Says after Ctrl-C that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        say_to_people("\nStopped; the same command continues where it stopped.")
        raise


def _require_no_table(images: Sequence[Path]) -> None:
    for path in images:
        if path.suffix.lower() == ".csv":
            raise ConfigError(f"{path} is no photo. To write the table to a file: --csv -o {path}")


def say_to_people(text: str) -> None:
    """Beside what is printed for programs."""
    print(printable(text), file=sys.stderr, flush=True)


def _photos_in(folders: Sequence[Path]) -> list[Path]:
    """Of folders that may be empty, or not there yet."""
    from fscil.data import photos

    # Without warning: the folders are read again and again.
    return [photo for path in folders for photo in (photos.files(path, warn=False) if path.is_dir() else [path])]


@commands.command()
def classes(
    model: Model,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="List the photos of this class.")] = None,
) -> None:
    """List the enrolled classes: number of photos, origin (base: fitted to), when they were added and from where.

    With NAME its photos: the first digits of each one's digest, when it was added, and from where; then its negative
    examples (fscil reject).

    Example: fscil classes birds.fscil

    Example: fscil classes birds.fscil "red panda"
    """
    from fscil.classifier.saving import restore_gallery
    from fscil.classifier.storage import storage_at

    with closing(storage_at(model)) as storage:
        gallery = restore_gallery(storage.read())
    if name is not None:
        photos, negatives = gallery.photos(name), gallery.negatives(name)
        said = [""] * len(photos) + ["not this"] * len(negatives)
        rows = [[each.digest[:12], each.added[:10], each.source] for each in (*photos, *negatives)]
        if negatives:
            table(["digest", "added", "from", ""], [[*row, word] for row, word in zip(rows, said, strict=True)])
            say(f"{count(len(photos), 'photo')}, {count(len(negatives), 'negative example')}")
        else:
            table(["digest", "added", "from"], rows)
            say(count(len(photos), "photo"))
        return
    known = gallery.classes()
    table(
        ["class", "photos", "origin", "first", "last", "from"],
        [[c.name, c.photos, c.origin, c.added[:10], c.changed[:10], first_few(c.sources, 1)] for c in known],
    )
    say(count(len(known), "class", "classes"))


@commands.command()
def export(
    model: Model,
    onnx: Annotated[Path, typer.Option("--onnx", "-o", metavar="FILE", help="Write the network as ONNX to FILE.")],
    compare: Annotated[
        Path | None, typer.Option("--compare", metavar="DIR", help="Photos to compare on; by default drawn characters.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write the network as ONNX, and the classes to FILE.gallery.npz, for programs without torch.

    Before anything is written, both must predict as the model does. docs/deploy.md has a program that uses them. Needs
    the export extra.

    Example: fscil export birds.fscil --onnx birds.onnx
    """
    from fscil.classifier import Classifier
    from fscil.export import export_onnx

    parity = export_onnx(Classifier.load(model, "cpu"), onnx, photo_files([compare]) if compare else None, quiet)
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
    keep_unknown: Annotated[
        bool,
        typer.Option(
            "--keep-unknown",
            help="Keep photos that were unknown or maybe for review on the page: features, thumbnails, hashes and file "
            "names, in MODEL/review. Off by default.",
        ),
    ] = False,
    keep_at_most: Annotated[
        int, typer.Option(min=1, max=2000, help="With --keep-unknown: so many photos; then the oldest are dropped.")
    ] = 500,
    device: Device = "auto",
) -> None:
    """Serve the model over HTTP, with a page for the browser, until Ctrl-C. Needs the serve extra.

    Open the address that it prints: the token in it logs the browser in. While it runs, other programs cannot change
    the model folder. A gallery in PostgreSQL can be served by any number of servers at once, docs/scaling.md.

    With --keep-unknown photos that it did not know wait on the page, those that look alike in groups: name them,
    confirm, or say "not this". What is kept is deleted there, or by: fscil review MODEL --clear

    Example: fscil serve birds.fscil --port 8000

    Example: fscil serve birds.fscil --keep-unknown

    Example: fscil serve postgresql://gallery@db.example.org/birds --host 0.0.0.0 --key keys.txt
    """
    from fscil.serve import run

    keep = keep_at_most if keep_unknown else None
    run(model, host=host, port=port, key_file=key, device=device, token=not no_token, keep_unknown=keep)
