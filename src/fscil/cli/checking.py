"""The commands that measure a model and set how it decides: calibrate, upgrade and check."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fscil.cli.options import Device, Model, Quiet, UnknownPrior, say
from fscil.cli.output import check_figures, describe_thresholds, print_check, print_checked_photos
from fscil.errors import ConfigError
from fscil.runtime.text import count

if TYPE_CHECKING:
    from fscil.classifier import StoredClassifier

commands = typer.Typer()


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
    known_at: Annotated[
        float | None,
        typer.Option("--known-at", help="Probability from which a class is known; below, the answer is maybe (0.5)."),
    ] = None,
    unknown_at: Annotated[
        float | None,
        typer.Option("--unknown-at", help='Probability of "unknown" above which a photo is called unknown (0.5).'),
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Remove the threshold.")] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Set when a photo is known, maybe or unknown: by probabilities, or by a rate measured on photos of other things.

    A photo is unknown where that has a probability above --unknown-at, given --unknown-prior; otherwise known where its
    nearest class has --known-at or more, and maybe where it has less. All three are stored with the model and need no
    photos. With DIR or --false-accept, unknown is instead what has a score below a threshold that is measured; --off
    removes it. A model that decides by cosine needs such a threshold to call anything unknown.

    Photos of DIR that are in no class folder, or in one named like no enrolled class, are unknown. Those in folders
    named like an enrolled class measure how often a known one is rejected. Without DIR each class is left out in turn,
    which is far off with fewer than about 20 classes.

    Example: fscil calibrate birds.fscil photos/no_birds --false-accept 0.05

    Example: fscil calibrate birds.fscil --known-at 0.8 --unknown-prior 0.3
    """
    from fscil.classifier import StoredClassifier

    measured = (folder, false_accept, score) != (None, None, None)
    if off and measured:
        raise ConfigError("--off removes the threshold: leave out DIR, --false-accept and --score.")
    if unknown_at is not None and measured:
        raise ConfigError(
            "--unknown-at sets the threshold: leave it out, or leave out DIR, --false-accept and --score."
        )
    with StoredClassifier.open(model, device) as stored:
        if off:
            stored.uncalibrate()
            say("no threshold")
            _say_thresholds(stored)
        if unknown_prior is not None:
            stored.set_unknown_prior(unknown_prior)
            say(f"unknown photos: {unknown_prior:g} of all, before they are seen")
        if known_at is not None or unknown_at is not None:
            stored.set_thresholds(known_at, unknown_at)
            say(describe_thresholds(stored.classifier.thresholds))
        if off or ((unknown_prior, known_at, unknown_at) != (None, None, None) and not measured):
            return
        found = stored.calibrate(folder, 0.05 if false_accept is None else false_accept, score, quiet)
        _say_thresholds(stored)
    say(
        f"{found.score} of at least {found.threshold:.4f}: accepts at most {found.false_accept:.1%} of "
        f"{count(found.unknowns, 'unknown photo')}"
    )
    if found.false_reject is not None:
        say(f"rejects {found.false_reject:.1%} of {count(found.knowns, 'photo')} of enrolled classes")
        if found.false_reject > 0.5:
            say(f"That is most of them. To remove this threshold: fscil calibrate {model} --off")


def _say_thresholds(stored: "StoredClassifier") -> None:
    """In the unit of what predictions show, if they show probabilities."""
    if stored.classifier.decision.probability:
        say(describe_thresholds(stored.classifier.thresholds))


@commands.command()
def upgrade(model: Model, device: Device = "auto", quiet: Quiet = False) -> None:
    """Estimate how photos of one class differ, from those of the model, and decide by that from now on.

    For models of earlier versions, which decide by cosine, and for any model after many classes were enrolled. Needs
    two classes with two photos each; about 20 give good probabilities. A threshold of fscil calibrate is removed.

    Example: fscil upgrade birds.fscil
    """
    from fscil.classifier import StoredClassifier

    with StoredClassifier.open(model, device) as stored:
        before = stored.classifier.calibration
        for line in stored.upgrade(quiet).summary:
            say(line)
    if before:
        say(f"the threshold for {before.score} is removed: set one anew with fscil calibrate, if you need one")


@commands.command()
def check(
    model: Model,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR|CSV", help="Photos in class folders, DIR/CLASS/PHOTO, or a list: path,label.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="All figures as one JSON object.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="A table with a line per photo.")] = False,
    mistakes: Annotated[
        Path | None,
        typer.Option("--mistakes", metavar="OUT", help="Copy the photos that are wrong to OUT/CLASS/ANSWER."),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Measure the model on labelled photos: accuracy in all and per class, and which classes are confused.

    Use photos that it has not been given before; it says how many it has learned. Photos of classes that are not
    enrolled should be called unknown.

    Example: fscil check birds.fscil photos/held_out

    Example: fscil check birds.fscil held_out.csv --csv --mistakes wrong > answers.csv
    """
    from fscil.classifier import Classifier
    from fscil.cli.sorting import folder_name, put

    if as_json and as_csv:
        raise ConfigError("--json or --csv, not both.")
    found = Classifier.load(model, device).check(folder, quiet)
    if as_json:
        print(json.dumps(check_figures(found)))
    elif as_csv:
        print_checked_photos(found, sys.stdout)
    else:
        print_check(found)
    if mistakes is not None:
        for each in found.mistakes:
            answer = folder_name(each.answer.label or "not known")
            put(each.path, mistakes.expanduser() / folder_name(each.true) / answer)
