"""`CacheInfo`: the place of a compile's cache, and the caller's token."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from penstock import knobs
from penstock.arguments import path_of
from penstock.errors import InputError
from penstock.hal import BYTE_SIZE_OF_CACHE_TOKEN, MAX_NUMBER_OF_CACHE_FILES

if TYPE_CHECKING:
    from pathlib import Path


class CacheInfo:
    """A cache directory, and optionally the caller's 32-byte token instead of the derived one.

    Without a token, the key is the content of the model and everything else that a compile depends
    on. With a token, entries are named by NNAPI's recipe (NNAPI sections 2.2 and 2.3). The
    ingredients are still checked, and another model's entry is a miss named `TokenCollision`.

    *trust_token* omits the model from that check, for models too large to hash at each start. The
    token must then change whenever the model does. Otherwise a compile may fail, or the results may
    be those of the other model.

    *store* is the URL of a shared store, such as `s3://bucket/prefix`: an entry that the directory
    lacks is fetched from there, verified, and kept in the directory (docs/fleet.md).

    Immutable. *directory* is None for files of `from_fds`. Raises `InputError` for a token of
    another length, and for *trust_token* without a token.
    """

    __slots__ = ("data_cache", "model_cache", "place", "store", "token", "trust_token")

    place: str | None
    """The directory's absolute path as text; None for files of `from_fds`."""
    token: bytes | None
    trust_token: bool
    model_cache: tuple[int, ...]
    data_cache: tuple[int, ...]
    store: str
    """The URL of the shared store that entries are fetched from; empty without one."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        token: bytes | None = None,
        *,
        trust_token: bool = False,
        store: str = "",
    ) -> None:
        place = checked_directory(directory)
        self._set(place, _checked_token(token), trust_token, (), (), checked_store(store))
        if trust_token and token is None:
            raise InputError("trust_token needs a token")

    @classmethod
    def from_fds(
        cls, model_cache: Sequence[int] = (), data_cache: Sequence[int] = (), *, token: bytes
    ) -> CacheInfo:
        """A cache in files that the caller opened, read-write, as many as the plan's one device
        needs.

        The compile that receives them reads them, or writes them in place. They belong to the
        caller, who may close them afterwards. No file is named, locked, renamed or evicted, no
        background compile runs, and shapes compiled later are not cached.

        With another number of files than the device needs, nothing is loaded or saved (NNAPI
        section 2.4, `setCachingFromFds`). The same holds for a plan in which several steps cache. A
        read-only descriptor is enough for a load; after a miss the compile is not saved, and the
        receipt says so. Raises `InputError` for a descriptor that is not open, for two of the same
        file, or for too many.
        """
        checked = _checked_token(token)
        if checked is None:
            raise InputError("files given by descriptor need a token")
        files = _checked_descriptors(model_cache), _checked_descriptors(data_cache)
        every = [os.fstat(fd) for fd in (*files[0], *files[1])]
        if len({(status.st_dev, status.st_ino) for status in every}) < len(every):
            raise InputError("two of the cache file descriptors are of one file")
        made = object.__new__(cls)
        made._set(None, checked, False, *files, "")
        return made

    def _set(self, *values: object) -> None:
        names = ("place", "token", "trust_token", "model_cache", "data_cache", "store")
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def directory(self) -> Path | None:
        """The cache directory, absolute; None for files of `from_fds`."""
        from pathlib import Path

        return None if self.place is None else Path(self.place)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"CacheInfo is immutable; {name} cannot be set")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheInfo) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        names = ("data_cache", "directory", "model_cache", "store", "token", "trust_token")
        shown = (f"{name}={getattr(self, name)!r}" for name in names)
        return f"CacheInfo({', '.join(shown)})"

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.place is None:
            raise InputError("cache files given as descriptors cannot be sent to another process")
        trusted, store = self.trust_token, self.store
        given = partial(CacheInfo, self.place, self.token, trust_token=trusted, store=store)
        return given, ()


def checked_directory(directory: object) -> str:
    """*directory* as an absolute path. Raises `InputError` for none, or an unknown home."""
    path = path_of(directory, "a cache directory must be a path")
    if not path:
        raise InputError("a cache directory must be a path, and an empty one names none")
    return knobs.absolute(path)


STORE_SCHEMES: Final = ("file", "gs", "http", "https", "memory", "s3")


def is_store(text: str) -> bool:
    """Whether *text* is the URL of a shared store, and not a path."""
    return text.partition("://")[0] in STORE_SCHEMES and "://" in text


def checked_store(url: object) -> str:
    """*url*, if it is that of a shared store, or empty. Raises `InputError`."""
    if not isinstance(url, str) or (url and not is_store(url)):
        wanted = ", ".join(f"{name}://" for name in STORE_SCHEMES)
        raise InputError(f"a shared store begins with one of {wanted}, not {str(url)[:100]!r}")
    return url


def _checked_descriptors(given: Sequence[int]) -> tuple[int, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise InputError(f"cache files must be lists of descriptors, not {given!r}")
    if len(given) > MAX_NUMBER_OF_CACHE_FILES:
        raise InputError(
            f"at most {MAX_NUMBER_OF_CACHE_FILES} cache files of each kind, not {len(given)}"
        )
    for fd in given:
        try:
            os.fstat(fd)
        except (OSError, TypeError, OverflowError) as error:
            raise InputError(f"cache file descriptor {fd!r} is not open: {error}") from None
    return tuple(given)


def _checked_token(token: object) -> bytes | None:
    if token is None:
        return None
    if not isinstance(token, bytes | bytearray | memoryview):
        raise InputError(f"a cache token is {BYTE_SIZE_OF_CACHE_TOKEN} bytes, not {token!r}")
    data = bytes(token)
    if len(data) != BYTE_SIZE_OF_CACHE_TOKEN:
        raise InputError(
            f"a cache token has {BYTE_SIZE_OF_CACHE_TOKEN} bytes, and {len(data)} were given"
        )
    return data


def default_directory() -> str:
    """The directory of `cache=True`: the knob `cache_dir`, else the platform's for the user."""
    if chosen := knobs.cache_dir():
        return knobs.absolute(chosen)
    return os.path.join(knobs.user_directory("cache"), "compiled")
