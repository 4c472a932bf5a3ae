"""fscil fit: from a folder of photos, a finished run or the pretrained network to a model folder."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fscil.cli.options import Device, Quiet, Settings, say
from fscil.errors import ConfigError, StoreError
from fscil.runtime.text import count

if TYPE_CHECKING:
    from fscil.classifier import Classifier

commands = typer.Typer()


@commands.command()
def fit(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="Model folder to write.")],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR|CSV", help="Photos in class folders, DIR/CLASS/PHOTO, or a list: path,label."),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Use the network of a finished fscil train run.")
    ] = None,
    shots: Annotated[
        int | None, typer.Option(min=1, help="With --from: photos of a class, those nearest to its mean (5).")
    ] = None,
    finetune: Annotated[
        bool,
        typer.Option("--finetune", help="Train the network; it is used only if it does better on held-out photos."),
    ] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Be done with all of it by then; 0: no training.")
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Train a small network from random weights, not the pretrained one.")
    ] = False,
    unknown_prior: Annotated[
        float | None,
        typer.Option(help="How probable it is, before a photo is seen, that it shows none of the classes (0.3)."),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(metavar="NAME", help="The pretrained network; fscil backbones lists them.")
    ] = None,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Do not hold out photos to measure the model; saves some of the time.")
    ] = False,
    set_: Settings = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the model that is there.")] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Make a model of your photos. No training: every photo passes the pretrained network once.

    From your own classes it estimates how photos of one class differ, which gives names and probabilities, also of
    "unknown". In the end every photo is held out once and named by a model of the others: accuracy, what is confused,
    what "unknown" costs, and whether that will do. --finetune trains the network on the classes with at least 5 photos,
    but for a fifth of their photos, and uses the result only if it does better on those; first it prints how long that
    takes. --minutes is for all of it: training is planned to fit, and where it takes longer it is stopped in time,
    keeping the best so far. Ctrl-C stops training, the same command continues it. --set changes the recipe "folder".
    With --minutes 0, DIR may be left out: a model without classes.

    Example: fscil fit photos/birds -o birds.fscil

    Example: fscil fit photos/birds -o birds.fscil --finetune --minutes 20

    Example: fscil fit photos/birds -o birds.fscil --backbone efficientnet_lite2

    Example: fscil fit -o empty.fscil --minutes 0

    Example: fscil fit --from runs/cub200 -o birds.fscil
    """
    from fscil.classifier import Classifier

    _check_out(out, force)
    work = out.resolve().with_name(f"{out.resolve().name}.training")
    if run:
        if from_scratch or finetune or set_ or backbone or minutes is not None or unknown_prior is not None:
            raise ConfigError(
                "--from takes a network that is trained already: leave out --finetune, --minutes, --from-scratch, "
                "--unknown-prior, --backbone, --set."
            )
        classifier = Classifier.from_run(run, folder, shots or 5, device, quiet)
    elif shots is not None:
        raise ConfigError("--shots goes with --from: all photos of a folder are used.")
    elif folder:
        asked = {
            "finetune": finetune,
            "minutes": minutes,
            "from_scratch": from_scratch,
            "unknown_prior": unknown_prior,
            "backbone": backbone,
            "check": not no_check,
        }
        classifier = _from_folder(folder, asked, set_ or [], device, quiet, work)
    elif minutes == 0 and not from_scratch:
        classifier = Classifier.pretrained(device, backbone)
        say("no classes yet: photos will be compared by cosine, until fscil upgrade after some classes are enrolled")
    else:
        raise ConfigError(
            "nothing to fit: give a folder of class folders, or --from RUN, or --minutes 0 for no class at all."
        )
    classifier.save(out, force=force)
    if not run and (work / "run.json").is_file():
        shutil.rmtree(work, ignore_errors=True)
    say(f"Written: {out} ({count(len(classifier.gallery), 'class', 'classes')})")
    say(f"Next: fscil enroll {out} NAME PHOTO…, fscil predict {out} PHOTO…, fscil serve {out}")


def _check_out(out: Path, force: bool) -> None:
    """Before any work is done."""
    from fscil.classifier.model_folder import ModelFolder

    model = ModelFolder(out)
    if model.exists():
        if not force:
            raise StoreError(f"{out} already holds a model. Choose another -o, or replace it with --force.")
    elif out.exists() and (not out.is_dir() or model.foreign_file()):
        raise StoreError(f"{out} exists and is neither a model nor an empty folder. Choose another -o.")


def _from_folder(
    folder: Path, asked: Mapping[str, Any], settings: Sequence[str], device: str, quiet: bool, work: Path
) -> "Classifier":
    """asked: the other arguments of Classifier.fit."""
    from fscil.classifier import Classifier

    try:
        return Classifier.fit(folder, **asked, settings=settings, device=device, quiet=quiet, say=say, work=work)
    except KeyboardInterrupt:
        if (work / "run.json").is_file():
            say("\nStopped; nothing is lost. The same command continues where it stopped.")
        raise
