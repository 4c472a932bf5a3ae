"""What can go wrong, as types: the command line prints their message and nothing else."""


class FscilError(Exception):
    """Something the user can fix; the message says what happened, to what, and what to do."""


class ConfigError(FscilError):
    """A recipe or an override that cannot be used."""


class DataError(FscilError):
    """A data set that is missing, incomplete or not what it claims to be."""


class BadImageError(DataError):
    """One file that cannot be decoded."""


class UnsupportedImageError(BadImageError):
    """A file in no format that is read here."""


class HugeImageError(BadImageError):
    """An image with more pixels than are decoded."""


class ProtocolError(FscilError):
    """Sessions that cannot be made: overlapping classes, too few images."""


class StoreError(FscilError):
    """A file or run folder that cannot be written or must not be trusted."""


class UnavailableError(StoreError):
    """A database that cannot be reached for now."""


class ClassNameError(FscilError):
    """A name no class can have: empty, too long, or with control characters."""


class UnknownClassError(FscilError):
    """A class that is not in the gallery."""


class TrainingError(FscilError):
    """A training run that cannot continue."""


class OtherProcessError(FscilError):
    """Another process of the same job failed, and says so itself."""


class ExportError(FscilError):
    """A model that cannot be exported, or whose export does not give the same answers."""


class FscilWarning(UserWarning):
    """Something the user should know; the work continues."""
