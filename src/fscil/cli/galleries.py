"""The command that moves a model between a folder and a database: copy."""

from typing import Annotated

import typer

from fscil.cli.options import MODEL_HELP, Quiet, say
from fscil.runtime.text import count

commands = typer.Typer()


@commands.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help=MODEL_HELP)],
    target: Annotated[str, typer.Argument(metavar="TO", help="A new folder, or postgresql://… of a database.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the model that is there.")] = False,
    quiet: Quiet = False,
) -> None:
    """Copy a model with its network, its classes and its decision rule: a folder into a database, or the other way.

    It answers there as it did before. A database needs the postgres extra; several servers can share it,
    docs/scaling.md.

    Example: fscil copy birds.fscil postgresql://gallery@db.example.org/birds

    Example: fscil copy postgresql://gallery@db.example.org/birds backup.fscil
    """
    from fscil.classifier.storage import copy_model

    copied = copy_model(source, target, force, quiet)
    classes, photos = count(copied.classes, "class", "classes"), count(copied.photos, "photo")
    say(f"Written: {copied.place} ({classes}, {photos})")
