"""How results are written: files that are replaced atomically, and tensors with a checksum.

A file is written under a temporary name, flushed to the disk, then put in place, so that a crash, a full disk or Ctrl-C
leaves the old one untouched. Tensors are safetensors, everything else is JSON or plain text; nothing is pickled.
"""

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fscil.errors import StoreError

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = 1


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file that replaces path when the block ends, and is removed where it raises."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise cannot_write(path, error) from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; a run folder follows the user's umask.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """Make a rename survive a power failure; not every system can open a folder."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cannot_write(path: Path, error: OSError) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = (
            "no space left on the device. Free some and run the same command again; what was there before is untouched"
        )
    else:
        advice = f"{error.strerror or error}"
    return StoreError(f"{path}: cannot be written: {advice}.")


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode(errors="backslashreplace"))  # a class's folder may have a name that is not Unicode


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: cannot be read as JSON ({error}).") from error


def append_json_line(path: Path, content: Mapping[str, Any]) -> None:
    """One line of a JSONL file; a line torn by a crash is skipped when it is read."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")
    except OSError as error:
        raise cannot_write(path, error) from error


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def digest_of_file(path: Path, algorithm: str = "sha256") -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _digest(tensors: Mapping[str, "Tensor"], header: Mapping[str, str]) -> str:
    """Over the description and every name, shape, type and byte, so that any flipped bit is detected."""
    import torch

    found = hashlib.sha256(json.dumps([header.get("schema"), header.get("about")]).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        found.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype};".encode())
        found.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def pack_tensors(tensors: Mapping[str, "Tensor"], about: Mapping[str, Any] | None = None) -> bytes:
    """Tensors and a JSON-able description as the content of one safetensors file with a checksum."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"schema": str(SCHEMA), "about": json.dumps(about or {})}
    content: bytes = save(plain, metadata={**header, "sha256": _digest(plain, header)})
    return content


def save_tensors(path: Path, tensors: Mapping[str, "Tensor"], about: Mapping[str, Any] | None = None) -> None:
    write_bytes(path, pack_tensors(tensors, about))


def load_tensors(path: Path, sha256: str | None = None) -> tuple[dict[str, "Tensor"], dict[str, Any]]:
    """What save_tensors wrote; rejects a torn, changed or newer file, and one of another sha256."""
    from safetensors import SafetensorError, safe_open

    try:
        if sha256 and digest_of_file(path) != sha256:
            raise _wrong_checksum(path)
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file.") from None
    except (SafetensorError, OSError, RuntimeError) as error:  # the last by torch, where the file is removed meanwhile
        raise StoreError(f"{path}: not a whole safetensors file ({error}).") from error
    schema = header.get("schema", "")
    if schema.isdecimal() and int(schema) > SCHEMA:
        raise StoreError(f"{path}: written by a newer fscil (schema {schema}). Upgrade fscil to read it.")
    if not sha256 and header.get("sha256") != _digest(tensors, header):
        raise _wrong_checksum(path)
    about: dict[str, Any] = json.loads(header.get("about", "{}"))
    return tensors, about


def _wrong_checksum(path: Path) -> StoreError:
    return StoreError(f"{path}: its checksum is wrong: the file was damaged or changed. Restore it from a copy.")
