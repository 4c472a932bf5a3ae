"""What can go wrong, as types: the command line prints their message and nothing else."""


class FscilError(Exception):
    """Something the user can mend; the message says what happened, to what, and what to do."""


class ConfigError(FscilError):
    """A recipe or an override that cannot be used."""


class DataError(FscilError):
    """A data set that is missing, incomplete or not what it claims to be."""


class BadImageError(DataError):
    """One file that cannot be decoded."""


class ProtocolError(FscilError):
    """Sessions that cannot be made: overlapping classes, too few images."""


class StoreError(FscilError):
    """A file or run folder that cannot be written or must not be trusted."""


class TrainingError(FscilError):
    """A training run that cannot go on."""


class FscilWarning(UserWarning):
    """Something the user should know of, though the work goes on."""
