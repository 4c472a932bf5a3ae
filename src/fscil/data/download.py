"""Download a data set from its official address: resumable, verified by checksum, put in place atomically."""

import http.client
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fscil import __version__
from fscil.data import DATASETS, cifar100, cub200, load, mini_imagenet
from fscil.errors import DataError, StoreError
from fscil.runtime.files import digest_of_file
from fscil.runtime.progress import ProgressBar

CHUNK = 1 << 18  # bytes read at a time
TIMEOUT = 60.0  # seconds to connect, and between two reads
AGAIN = "Run the same command again to continue where it stopped."


@dataclass(frozen=True)
class Source:
    """An archive, and the checksum its makers published."""

    url: str
    md5: str


SOURCES = {
    "cifar100": Source(f"https://www.cs.toronto.edu/~kriz/{cifar100.ARCHIVE}", cifar100.MD5[cifar100.ARCHIVE]),
    "cub200": Source(
        "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz", "97eceeb196236b17998738112f37df78"
    ),
}
NOT_DOWNLOADABLE = {
    "folder": "folder: holds your own images, there is nothing to download.",
    "glyphs": "glyphs: comes with fscil, there is nothing to download.",
    "mini_imagenet": f"mini_imagenet: cannot be downloaded. {mini_imagenet.ORIGIN}",
}


def download(name: str, root: str | Path, quiet: bool = False) -> None:
    """Download what root lacks of this data set; nothing is done where it is complete."""
    DATASETS[name]  # an unknown name is an error
    if name not in SOURCES:
        unknown = f"{name}: no address to download it from is known. Put its files into {root} yourself."
        raise DataError(NOT_DOWNLOADABLE.get(name, unknown))
    source, root = SOURCES[name], Path(root).expanduser()
    if _complete(name, root):
        return
    home = root if name == "cifar100" or _is_cub(root) else root / cub200.FOLDER
    archive = (home if name == "cifar100" else home.parent) / source.url.rpartition("/")[2]
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        if not archive.is_file() or digest_of_file(archive, "md5") != source.md5:
            _fetch(name, source, archive, quiet)
        if name == "cub200":
            _unpack(archive, home, quiet)
            archive.unlink()
    except OSError as error:
        raise StoreError(
            f"{name}: {error.filename or archive} cannot be written ({error.strerror}). {AGAIN}"
        ) from error


def _complete(name: str, root: Path) -> bool:
    try:
        load(name, root)
    except DataError:
        return False
    return True


def _is_cub(root: Path) -> bool:
    return root.name == cub200.FOLDER or (root / "images.txt").is_file()


def _fetch(name: str, source: Source, archive: Path, quiet: bool) -> None:
    """The archive, verified; what has arrived is kept in a .part file until it is complete."""
    part = archive.with_name(f"{archive.name}.part")
    done = part.stat().st_size if part.exists() else 0
    with _network(f"{name}: {source.url}", archive):
        response = _request(source.url, done)
    if response is not None:
        with response:
            _receive(name, response, part, done, archive, quiet)
    found = digest_of_file(part, "md5")
    if found != source.md5:
        part.unlink()
        raise DataError(
            f"{name}: what {source.url} sent has the checksum {found}, published is {source.md5}. It was deleted. "
            "Run the same command again to start from the beginning."
        )
    part.replace(archive)


@contextmanager
def _network(what: str, archive: Path) -> Iterator[None]:
    """Around network calls only, so that a full disk is not reported as a network error."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        advice = f"{AGAIN} Or put {archive.name} into {archive.parent} yourself."
        raise DataError(f"{what}: {str(error) or type(error).__name__}. {advice}") from error


def _request(url: str, start: int) -> http.client.HTTPResponse | None:
    """The response with the bytes from start on; None if there are no more."""
    headers = {"User-Agent": f"fscil/{__version__}"} | ({"Range": f"bytes={start}-"} if start else {})
    request = urllib.request.Request(url, headers=headers)
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return None
        raise
    return response


def _receive(name: str, response: http.client.HTTPResponse, part: Path, done: int, archive: Path, quiet: bool) -> None:
    resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
    done = done if resumed else 0  # a server without range requests starts from the beginning
    length = response.headers.get("Content-Length")
    total = done + int(length) if length else 0
    with part.open("ab" if resumed else "wb") as file, ProgressBar(f"{name}: bytes", total, done, quiet) as bar:
        while True:
            with _network(name, archive):
                chunk = response.read(CHUNK)
            if not chunk:
                break
            file.write(chunk)
            done += len(chunk)
            bar.advance(len(chunk))
    if done < total:  # a connection that is cut looks like the end
        raise DataError(f"{name}: the connection ended after {done} of {total} bytes. {AGAIN}")


def _unpack(archive: Path, home: Path, quiet: bool) -> None:
    """Unpack beside home, then rename to it; where home exists, its files are replaced one by one."""
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=f".{cub200.FOLDER}.") as beside:
        try:
            _extract(archive, Path(beside), quiet)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise DataError(
                f"{archive}: cannot be unpacked ({error}). Delete it and run the same command again."
            ) from error
        new = Path(beside) / cub200.FOLDER
        if not home.exists():
            new.rename(home)
            return
        for file in [path for path in new.rglob("*") if path.is_file()]:
            place = home / file.relative_to(new)
            place.parent.mkdir(parents=True, exist_ok=True)
            file.replace(place)


def _extract(archive: Path, folder: Path, quiet: bool) -> None:
    total = archive.stat().st_size
    with (
        archive.open("rb") as raw,
        ProgressBar("unpacking", total, quiet=quiet) as bar,
        tarfile.open(fileobj=raw) as tar,
    ):
        seen = 0
        for member in tar:
            tar.extract(member, folder, filter="data")
            bar.advance(raw.tell() - seen)
            seen = raw.tell()
