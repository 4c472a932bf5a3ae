"""How results are written and read: files that are replaced atomically, and tensors and JSON with a checksum.

A file is written under a temporary name, flushed to the disk, then put in place, so that a crash, a full disk or Ctrl-C
leaves the old one untouched. Tensors are safetensors, everything else is JSON or plain text; nothing is pickled.
Files are read by `fscil.runtime.regular_files`, because a folder may come from anybody.
"""

import errno
import glob
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fscil.errors import FscilWarning, StoreError
from fscil.runtime.regular_files import claim, open_regular, read_regular, remove_stale

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = 1
MAX_TEXT_BYTES = 2**28  # of a JSON file
CHECKSUM, KIND = "checksum", "sha256:"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file that replaces path when the block ends, and is removed where it raises."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(path.parent, f".{glob.escape(path.name)}.*.part")
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise cannot_write(path, error) from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            claim(handle)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.utime(temporary)  # once closed it is no longer claimed, but new
        # mkstemp makes files private; a run folder follows the user's umask.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
        flush_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
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


def read_json(path: Path, follow_links: bool = True) -> Any:
    try:
        return json.loads(read_regular(path, MAX_TEXT_BYTES, follow_links), parse_constant=_refuse)
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path}: cannot be read as JSON ({error}).") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number in JSON")


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same with a checksum, which `without_checksum` checks and removes."""
    return {**content, CHECKSUM: KIND + _checksum(content)}


def without_checksum(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """None where the checksum is wrong. What was written without one is returned as it is.

    The word sha256 is in the value, so that damage to the key is not taken for an old file.
    """
    plain = {key: value for key, value in content.items() if key != CHECKSUM}
    has_one = CHECKSUM in content or any(isinstance(value, str) and value.startswith(KIND) for value in plain.values())
    return None if has_one and content.get(CHECKSUM) != KIND + _checksum(plain) else plain


def _checksum(content: Mapping[str, Any]) -> str:
    """16 hexadecimal digits: against damage, not against forgery."""
    plain = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def write_checked_json(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON object with a checksum."""
    write_json(path, with_checksum(content))


def read_checked_json(path: Path) -> dict[str, Any]:
    """What write_checked_json wrote. Raises a StoreError if the file was changed since."""
    content = read_json(path, follow_links=False)
    plain = without_checksum(content) if isinstance(content, dict) else None
    if plain is None:
        raise wrong_checksum(path)
    return plain


def append_json_line(path: Path, content: Mapping[str, Any]) -> None:
    """One line of a JSONL file, with a checksum; a line torn by a crash is skipped when it is read."""
    line = json.dumps(with_checksum(content)) + "\n"
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with open_regular(path, None, follow_links=False, flags=flags) as file:
            file.write(line.encode())
    except OSError as error:
        raise cannot_write(path, error) from error


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines that are whole; an FscilWarning says how many others there are, apart from a torn last one."""
    try:
        content = read_regular(path, MAX_TEXT_BYTES, follow_links=False)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror or error}).") from error
    *lines, torn = content.decode("utf-8", "replace").split("\n")
    found = [_json_line(line) for line in (*lines, torn)]
    if damaged := found[:-1].count(None):
        text = f"{path}: {damaged} of {len(lines)} lines are damaged and are left out."
        warnings.warn(text, FscilWarning, stacklevel=3)
    return [line for line in found if line is not None]


def _json_line(line: str) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return without_checksum(content) if isinstance(content, dict) else None


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
    return b"".join(_packed(tensors, about))


def save_tensors(path: Path, tensors: Mapping[str, "Tensor"], about: Mapping[str, Any] | None = None) -> None:
    with replacing(path) as file:
        for part in _packed(tensors, about):
            file.write(part)


def _packed(tensors: Mapping[str, "Tensor"], about: Mapping[str, Any] | None) -> tuple[bytes, memoryview]:
    """Header and data of a safetensors file: the same bytes for the same tensors, every time."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"schema": str(SCHEMA), "about": json.dumps(about or {})}
    content: bytes = save(plain, metadata={**header, "sha256": _digest(plain, header)})
    length = int.from_bytes(content[:8], "little")
    found = json.loads(content[8 : 8 + length])
    found["__metadata__"] = dict(sorted(found["__metadata__"].items()))  # safetensors writes them in a random order
    text = json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text, memoryview(content)[8 + length :]


def unpack_tensors(content: bytes, sha256: str, source: str) -> dict[str, "Tensor"]:
    """The tensors that pack_tensors packed, if the content has this sha256. source: what an error calls it."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    if hashlib.sha256(content).hexdigest() != sha256:
        raise StoreError(f"{source}: its checksum is wrong. Restore it from a backup.")
    try:
        tensors: dict[str, Tensor] = load(content)
    except SafetensorError as error:
        raise StoreError(f"{source}: not in the safetensors format ({error}).") from error
    return tensors


def load_tensors(path: Path, sha256: str | None = None) -> tuple[dict[str, "Tensor"], dict[str, Any]]:
    """What save_tensors wrote; rejects a torn, changed or newer file, and one of another sha256."""
    from safetensors import SafetensorError, safe_open

    try:
        open_regular(path, None).close()
        if sha256 and digest_of_file(path) != sha256:
            raise wrong_checksum(path)
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file.") from None
    except (SafetensorError, OSError, RuntimeError) as error:  # the last by torch, where the file is removed meanwhile
        raise StoreError(f"{path}: not a whole safetensors file ({error}).") from error
    schema = header.get("schema", "")[:10]
    if schema.isdecimal() and int(schema) > SCHEMA:
        raise StoreError(f"{path}: written by a newer fscil (schema {schema}). Upgrade fscil to read it.")
    if not sha256 and header.get("sha256") != _digest(tensors, header):
        raise wrong_checksum(path)
    return tensors, _about(path, header.get("about", "{}"))


def _about(path: Path, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: its description cannot be read as JSON ({error}).") from error
    if not isinstance(found, dict):
        raise StoreError(f"{path}: its description is no JSON object. Restore it from a copy.")
    return found


def wrong_checksum(path: Path) -> StoreError:
    return StoreError(f"{path}: its checksum is wrong: the file was damaged or changed. Restore it from a copy.")
