"""The command that shows and deletes what fscil serve --keep-unknown has kept."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fscil.cli.options import Device, Model, say
from fscil.cli.output import how_sure, table, verdict
from fscil.errors import ConfigError, DataError
from fscil.runtime.text import count

if TYPE_CHECKING:
    from fscil.classifier.inbox import Inbox

commands = typer.Typer()


@commands.command()
def review(
    model: Model,
    forget: Annotated[
        list[str] | None,
        typer.Option("--forget", metavar="DIGEST", help="Delete the photo whose digest begins so; may be repeated."),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Delete all kept photos.")] = False,
    device: Device = "auto",
) -> None:
    """List the photos that fscil serve --keep-unknown has kept in MODEL/review, least certain answers first.

    Per photo: its digest, the group of those that look alike, when it came, its file name, and what the model answers
    now. To name them, use the page of the service. Deleting removes features, thumbnails and hashes from the disk, and
    needs a model that nobody serves.

    Example: fscil review birds.fscil

    Example: fscil review birds.fscil --clear
    """
    from fscil.classifier import Classifier
    from fscil.classifier.inbox import MOST, Inbox
    from fscil.classifier.review import review_groups, review_queue
    from fscil.classifier.storage import is_database, storage_at
    from fscil.runtime import locks

    if is_database(model):
        raise ConfigError("A gallery in a database keeps no photos for review.")
    folder = Path(model).expanduser()
    with closing(storage_at(model)) as storage:
        contents = storage.read()
    if clear or forget:
        with locks.writing(folder):
            inbox = Inbox(folder, contents.network, MOST)
            if clear:
                say(f"{count(inbox.clear(), 'kept photo')} deleted")
            else:
                say(f"{count(inbox.remove(_digests(inbox, forget or [])), 'kept photo')} deleted, {len(inbox)} left")
        return
    photos = Inbox(folder, contents.network, MOST).photos()
    if not photos:
        say("No photo is kept. To keep those that a service does not know: fscil serve MODEL --keep-unknown")
        return
    classifier = Classifier.restore(contents, device, str(folder))
    groups = review_groups(classifier, photos)
    group = {photo.digest: number for number, each in enumerate(groups, 1) for photo in each}
    rows = [
        [
            photo.digest[:12],
            group.get(photo.digest, ""),
            photo.added[:10],
            photo.source,
            verdict(answer),
            how_sure(answer),
        ]
        for photo, answer in review_queue(classifier, photos)
    ]
    table(["digest", "group", "added", "from", "answer", ""], rows)
    say(f"{count(len(photos), 'kept photo')}, {count(len(groups), 'group')} that look alike")


def _digests(inbox: "Inbox", beginnings: list[str]) -> list[str]:
    found = []
    for beginning in beginnings:
        matching = [
            photo.digest for photo in inbox.photos() if beginning and photo.digest.startswith(beginning.lower())
        ]
        if len(matching) != 1:
            many = f"{len(matching)} kept photos have" if matching else "no kept photo has"
            raise DataError(f"{beginning}: {many} a digest that begins so. See them all: fscil review MODEL")
        found += matching
    return found
