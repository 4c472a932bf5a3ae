"""Where a model is kept: a folder, or a PostgreSQL database that several servers share. One interface, two storages."""

from fscil.classifier.storage.copying import copy_model
from fscil.classifier.storage.interface import Changes, Network, Record, Storage
from fscil.classifier.storage.opening import is_database, storage_at

__all__ = ["Changes", "Network", "Record", "Storage", "copy_model", "is_database", "storage_at"]
