"""Sealed cache files: seal, verify, and load only verified contents.

A driver makes one `Seal` and calls `save` after it compiled, and `load` to prepare a model from the
cache. A driver that compiles later keeps the writer of `Seal.late_writer`. The file format is in
docs/cache-format.md; the attacks that seals prevent are in docs/threat-model.md.
"""

from typing import TYPE_CHECKING

from penstock.facade import lazily
from penstock.sealed.entry import CacheConfig, EntryFiles, LoadedEntry, SaveReport, read_header
from penstock.sealed.files import SYSTEM_FILES, FileStatus, FileSystem, Handle, open_cache_file
from penstock.sealed.header import HEADER_BYTES, Header, Kind
from penstock.sealed.keys import FileKeyStore, KeyStore, MemoryKeyStore
from penstock.sealed.payload import LEAF_BYTES, merkle_root, private_payload
from penstock.sealed.places import registry_path, state_directory
from penstock.sealed.registry import FileRecord, Owner, Registry, RegistryState, Row
from penstock.sealed.seal import Seal

if TYPE_CHECKING:
    from penstock.sealed.file_registry import FileRegistry
    from penstock.sealed.late import LateWriter

__all__ = [
    "HEADER_BYTES",
    "LEAF_BYTES",
    "SYSTEM_FILES",
    "CacheConfig",
    "EntryFiles",
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
    "merkle_root",
    "open_cache_file",
    "private_payload",
    "read_header",
    "registry_path",
    "state_directory",
]

__getattr__ = lazily(__name__, {"late": "LateWriter", "file_registry": "FileRegistry"})
