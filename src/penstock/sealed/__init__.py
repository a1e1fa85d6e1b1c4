"""Cache files that tell whether they are what was saved: seal, verify, load only what was verified.

A driver makes one `Seal` and calls `save` where it compiled and `load` where it is asked for a
cached model; one that compiles later keeps what `Seal.late_writer` gives it. What the files look
like is in docs/cache-format.md, what this stops and what not in docs/threat-model.md.
"""

from typing import TYPE_CHECKING, Any

from penstock.sealed.entry import LoadedEntry, SaveReport, read_header
from penstock.sealed.files import (
    SYSTEM_FILES,
    FileStatus,
    FileSystem,
    Handle,
    SystemFiles,
    open_cache_file,
)
from penstock.sealed.header import HEADER_BYTES, Header, Kind
from penstock.sealed.keys import FileKeyStore, KeyStore, MemoryKeyStore
from penstock.sealed.payload import LEAF_BYTES, merkle_root
from penstock.sealed.places import registry_path, state_directory
from penstock.sealed.registry import FileRecord, Owner, Registry, RegistryState, Row
from penstock.sealed.seal import Seal

if TYPE_CHECKING:
    from penstock.sealed.file_registry import FileRegistry
    from penstock.sealed.late import CacheConfig, LateWriter

__all__ = [
    "HEADER_BYTES",
    "LEAF_BYTES",
    "SYSTEM_FILES",
    "CacheConfig",
    "FileKeyStore",
    "FileRecord",
    "FileRegistry",
    "FileStatus",
    "FileSystem",
    "Handle",
    "Header",
    "KeyStore",
    "Kind",
    "LateWriter",
    "LoadedEntry",
    "MemoryKeyStore",
    "Owner",
    "Registry",
    "RegistryState",
    "Row",
    "SaveReport",
    "Seal",
    "SystemFiles",
    "merkle_root",
    "open_cache_file",
    "read_header",
    "registry_path",
    "state_directory",
]


_LATER = {
    "CacheConfig": "penstock.sealed.late",
    "FileRegistry": "penstock.sealed.file_registry",
    "LateWriter": "penstock.sealed.late",
}


def __getattr__(name: str) -> Any:
    """What costs time to import, when it is first asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATER[name]), name)
