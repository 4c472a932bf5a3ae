"""Rate and number of steps of methods that train in sessions: their own, unless the settings say otherwise."""

from collections.abc import Mapping
from typing import ClassVar

from fscil.methods.base import Method


class SessionSettings(Method):
    """The settings `incremental.lr` and `incremental.steps` replace the class attributes where they are given."""

    trains_in_sessions = True
    session_lr: ClassVar[float] = 0.1
    session_lr_of_data: ClassVar[Mapping[str, float]] = {}  # where it differs: {data.name: rate}
    session_steps: ClassVar[int] = 100

    @property
    def lr(self) -> float:
        given = self.config.incremental.lr
        return self.session_lr_of_data.get(self.config.data.name, self.session_lr) if given is None else given

    @property
    def steps(self) -> int:
        given = self.config.incremental.steps
        return self.session_steps if given is None else given
