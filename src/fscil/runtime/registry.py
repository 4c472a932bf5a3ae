"""Objects by name that other packages can add to: methods, data sets, backbones and losses.

What comes with fscil is listed in the code. Installed packages add to it by an entry point in the registry's group, and
a single file by `register`, once `load_plugin` has imported it:

    [project.entry-points."fscil.methods"]      # in the other package's pyproject.toml
    mine = "my_package:MyMethod"
"""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Generic, TypeVar, cast, overload

from fscil.errors import ConfigError, FscilError
from fscil.runtime.text import did_you_mean

T = TypeVar("T")
D = TypeVar("D")


class Registry(Mapping[str, T], Generic[T]):
    """Objects by name. Values of `builtin` may be "module:attribute", which is imported on first use."""

    def __init__(self, kind: str, group: str, builtin: Mapping[str, T | str], error: type[FscilError] = ConfigError):
        """kind: in messages, such as "method". group: of the entry points, such as "fscil.methods"."""
        self.kind, self.group, self._error = kind, group, error
        self._known: dict[str, T | str] = dict(builtin)

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator that adds what it decorates under this name; a name that is taken is an error."""

        def add(value: T) -> T:
            if name in self:
                raise self._error(f'{self.kind} "{name}" exists already. Choose another name.')
            self._known[name] = value
            return value

        return add

    def unregister(self, name: str) -> None:
        """Undo `register`."""
        del self._known[name]

    def __getitem__(self, name: str) -> T:
        """The object of this name; an unknown name is an error that lists what is installed."""
        if name not in self._known:
            point = self._installed.get(name)
            if point is None:
                hint = did_you_mean(name.lower().replace("-", "_"), self, cutoff=0.4)
                raise self._error(f'no {self.kind} named "{name}".{hint} Installed: {", ".join(self)}.')
            try:
                self._known[name] = point.load()
            except Exception as error:  # it runs code of another package
                package = point.dist.name if point.dist else point.value
                raise self._error(f'{self.kind} "{name}" of the package {package} cannot be loaded: {error}') from error
        found = self._known[name]
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            found = self._known[name] = getattr(import_module(module), attribute)
        return cast(T, found)

    @overload
    def get(self, name: str, default: None = None, /) -> T | None: ...
    @overload
    def get(self, name: str, default: T, /) -> T: ...
    @overload
    def get(self, name: str, default: D, /) -> T | D: ...
    def get(self, name: str, default: object = None, /) -> object:
        """What the name stands for, or the default where it is not installed."""
        if name not in self:
            return default
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self._installed

    def __iter__(self) -> Iterator[str]:
        yield from self._known
        yield from (name for name in self._installed if name not in self._known)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def load_plugin(path: Path) -> None:
    """Import a file that registers something: `METHODS.register("mine")`. A file is imported once."""
    where = path.expanduser().resolve()
    name = f"fscil_plugin_{where.stem}_{hashlib.sha256(os.fsencode(where)).hexdigest()[:8]}"
    if name in sys.modules:
        return
    specification = importlib.util.spec_from_file_location(name, where)
    if not where.is_file() or specification is None or specification.loader is None:
        raise ConfigError(f"--plugin {path}: no such Python file.")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # before it runs, so that its classes can be found by their module
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"--plugin {path}: cannot be imported ({type(error).__name__}: {error}).") from error
