"""The protocol's system shared memory: tensors in files of `/dev/shm` instead of in messages.

A client that shrinks a region while the server reads a mapping of it ends the server. So a region
is mapped only if it is a memfd sealed against that, or if the operator trusts the clients. Any
other region is read and written by system calls, a copy each, which the receipt counts.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import stat
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct

from penstock.errors import PenstockError
from penstock.ir import DType, NDArray
from penstock.memory import MemoryPool
from penstock.serve import datatypes
from penstock.serve.errors import Forbidden, InvalidRequest, RequestTooLarge

DIRECTORY: Final = Path("/dev/shm")  # noqa: S108  # where shm_open keeps its files on Linux
KEY: Final = re.compile(r"/?([A-Za-z0-9_.+-]{1,200})")
DESCRIPTOR: Final = re.compile(r"/proc/([1-9][0-9]{0,9})/fd/([0-9]{1,7})")
MEMFD: Final = re.compile(r"/memfd:([A-Za-z0-9_.+-]{1,200})(?: \(deleted\))?")
"""What Linux says that the descriptor of a memfd is."""

NAME: Final = re.compile(r"[^/\x00-\x1f]{1,200}")
NOT_HERE: Final = "this system has no POSIX shared memory"
MOST: Final = 256
"""Regions that may be registered."""


class Region(Struct, frozen=True):
    """A registered region: *byte_size* bytes from *offset* of the file *key*."""

    name: str
    key: str
    offset: int
    byte_size: int


class Place(Struct, frozen=True):
    """Where a tensor lies: *byte_size* bytes from *offset* of a region."""

    region: str
    byte_size: int
    offset: int = 0


class Regions:
    """The regions of a server, by name. Thread-safe.

    A key must begin with *prefix*; None turns the extension off. With *trusted* clients every
    region is mapped.
    """

    def __init__(self, prefix: str | None = None, *, trusted: bool = False) -> None:
        self._prefix, self._trusted = prefix, trusted
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}

    def register(self, name: str, key: object, offset: object, byte_size: object) -> None:
        """Opens the file *key*, or the memfd of a process that `/proc/PID/fd/NUMBER` names.

        Raises `Forbidden` if the server does not allow it, and `InvalidRequest` if there is no such
        file, it is too small, or the name is in use.
        """
        if self._prefix is None:
            raise Forbidden("shared memory is off; the option --shared-memory allows it")
        given = key if isinstance(key, str) else ""
        found, foreign = KEY.fullmatch(given), DESCRIPTOR.fullmatch(given)
        is_file = found is not None and found[1] not in {".", ".."}
        if not (is_file or foreign) or NAME.fullmatch(name) is None:
            raise InvalidRequest(f"region {name[:80]!r}: {str(key)[:80]!r} is no key, or no name")
        size = _whole(byte_size, "byte_size")
        region = Region(name, given, _whole(offset, "offset"), size)
        if found is not None:
            if not found[1].startswith(self._prefix):
                raise Forbidden(f"keys of shared memory must begin with {self._prefix!r} here")
            descriptor = _opened(DIRECTORY / found[1], region)
        else:
            descriptor = _opened_memfd(Path(given), region, self._prefix)
        opened = _Open(descriptor, region, trusted=self._trusted)
        try:
            with self._lock:
                if name in self._open:
                    raise InvalidRequest(f"region {name!r} is registered already")
                if len(self._open) >= MOST:
                    raise RequestTooLarge(f"{MOST} regions are registered already")
                self._open[name] = opened
        except BaseException:
            opened.close()
            raise

    def unregister(self, name: str = "") -> None:
        """Closes the region *name*, or all of them; does nothing for an unknown name."""
        with self._lock:
            names = [name] if name else [*self._open]
            closed = [self._open.pop(each) for each in names if each in self._open]
        for each in closed:
            each.close()

    def status(self, name: str = "") -> list[Region]:
        """The region *name*, or all of them. Raises `InvalidRequest`."""
        with self._lock:
            if name and name not in self._open:
                raise _unknown(name)
            return [each.region for each in self._open.values() if name in {"", each.region.name}]

    def load(
        self, place: Place, dtype: DType, shape: tuple[int, ...], where: str
    ) -> tuple[NDArray, int]:
        """The tensor at *place*, and the number of bytes copied. Raises `InvalidRequest`."""
        view = self.target(place, dtype, shape)
        if view is not None:
            return view, 0
        data = self._at(place).read(place)
        return datatypes.from_bytes(data, dtype, shape, where), len(data)

    def target(self, place: Place, dtype: DType, shape: tuple[int, ...]) -> NDArray | None:
        """An array over *place*, of which it may be longer; None if it is not mapped, not aligned,
        too small, or of strings. Raises `InvalidRequest`.
        """
        pool = self._at(place).pool
        if pool is None or dtype in {DType.STRING, DType.BOOL}:
            return None
        size = math.prod(shape) * dtype.numpy.itemsize
        if size > place.byte_size:
            return None
        try:
            array = pool.view(dtype.numpy, shape, place.offset)
        except PenstockError as error:
            raise InvalidRequest(f"region {place.region!r}: {error}") from error
        return array if array.flags.aligned else None

    def store(self, place: Place, array: NDArray) -> int:
        """Writes *array* at *place*, unless it lies there; returns the number of bytes copied.

        Raises `InvalidRequest`.
        """
        dtype = datatypes.dtype_of_array(array)
        view = self.target(place, dtype, array.shape)
        if view is not None:
            if view.ctypes.data == array.ctypes.data:
                return 0
            np.copyto(view, array)
            return array.nbytes
        data = datatypes.to_bytes(array)
        if len(data) > place.byte_size:
            raise InvalidRequest(
                f"region {place.region!r}: the output has {len(data)} bytes, its place "
                f"{place.byte_size}"
            )
        self._at(place).write(place, data)
        return len(data)

    def _at(self, place: Place) -> _Open:
        with self._lock:
            found = self._open.get(place.region)
        if found is None:
            raise _unknown(place.region)
        if place.offset + place.byte_size > found.region.byte_size:
            raise InvalidRequest(
                f"region {place.region!r} has {found.region.byte_size} bytes; {place.byte_size} "
                f"from {place.offset} lie beyond them"
            )
        return found


class OutputPlaces(Struct, frozen=True):
    """Where a request wants its outputs, by name."""

    regions: Regions
    places: Mapping[str, Place]

    def target(self, name: str, dtype: DType, shape: tuple[int, ...] | None) -> NDArray | None:
        """An array in which the run may compute the output; None if it must be stored after it."""
        place = self.places.get(name)
        if place is None or shape is None:
            return None
        return self.regions.target(place, dtype, shape)


class _Open:
    """An open region, mapped as a *pool* if it may be. Closes *descriptor*, also if that fails.

    The lock keeps the descriptor from being closed, and given to another file, while it is used.
    """

    def __init__(self, descriptor: int, region: Region, *, trusted: bool) -> None:
        self.region = region
        self._lock = threading.Lock()
        self._descriptor = descriptor
        self.pool: MemoryPool | None = None
        if trusted or _is_sealed(self._descriptor):
            try:
                size = region.byte_size
                self.pool = MemoryPool.from_file(self._descriptor, region.offset, size)
            except PenstockError as error:
                self.close()
                raise InvalidRequest(f"region {region.name!r}: {error}") from error

    def read(self, place: Place) -> bytes:
        with self._lock:
            data: bytes = self._call(_pread, place.byte_size, place)
        if len(data) != place.byte_size:
            raise InvalidRequest(f"region {place.region!r} has become smaller")
        return data

    def write(self, place: Place, data: bytes) -> None:
        with self._lock:
            end = self.region.offset + place.offset + len(data)
            # A write beyond the end would make the file larger.
            if self._descriptor >= 0 and end > os.fstat(self._descriptor).st_size:
                raise InvalidRequest(f"region {place.region!r} has become smaller")
            self._call(_pwrite, data, place)

    def close(self) -> None:
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
        if self.pool is not None:
            self.pool.close()
        if descriptor >= 0:
            os.close(descriptor)

    def _call(self, call: Any, argument: Any, place: Place) -> Any:
        if self._descriptor < 0:
            raise _unknown(place.region)
        try:
            return call(self._descriptor, argument, self.region.offset + place.offset)
        except OSError as error:
            raise InvalidRequest(f"region {place.region!r}: {error.strerror}") from error


def place_in(parameters: Mapping[str, Any], limit: int, where: str) -> Place | None:
    """The place that *parameters* of a tensor name; None if they name none.

    Raises `InvalidRequest`, and `RequestTooLarge` for more than *limit* bytes.
    """
    region = parameters.get("shared_memory_region")
    if region is None:
        return None
    if not isinstance(region, str):
        raise InvalidRequest(f"{where}: shared_memory_region must be a name")
    size = _whole(parameters.get("shared_memory_byte_size"), f"{where}: shared_memory_byte_size")
    offset = _whole(parameters.get("shared_memory_offset", 0), f"{where}: shared_memory_offset")
    datatypes.check_size(size, limit, where)
    return Place(region, size, offset)


def _opened(path: Path, region: Region) -> int:
    """A descriptor of the file, which is regular and large enough. Raises `InvalidRequest`."""
    if sys.platform == "win32":
        raise InvalidRequest(NOT_HERE)
    return _checked(_open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, region), region)


def _opened_memfd(path: Path, region: Region, prefix: str) -> int:
    """A descriptor of the memfd that *path* in `/proc` names; its name begins with *prefix*.

    Raises `Forbidden` for anything else, and opens nothing else for reading or writing: a process
    of the same user may have any file at that descriptor.
    """
    if sys.platform != "linux":
        raise InvalidRequest(NOT_HERE)
    named = _open(path, os.O_PATH, region)
    try:
        own = Path(f"/proc/self/fd/{named}")
        found = MEMFD.fullmatch(str(own.readlink()))
        is_regular = stat.S_ISREG(os.fstat(named).st_mode)
        if found is None or not is_regular or not found[1].startswith(prefix):
            raise Forbidden(f"descriptors must be memfds whose names begin with {prefix!r} here")
        return _checked(_open(own, os.O_RDWR, region), region)
    finally:
        os.close(named)


def _open(path: Path, flags: int, region: Region) -> int:
    if sys.platform == "win32":
        raise InvalidRequest(NOT_HERE)
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidRequest(
            f"region {region.name!r}: {region.key!r} cannot be opened: {error.strerror}"
        ) from error


def _checked(descriptor: int, region: Region) -> int:
    """*descriptor*, if it is of a regular and large enough file. Raises `InvalidRequest`."""
    found = os.fstat(descriptor)
    end = region.offset + region.byte_size
    if not stat.S_ISREG(found.st_mode) or end > found.st_size:
        os.close(descriptor)
        raise InvalidRequest(
            f"region {region.name!r}: {region.key!r} is no file of at least {end} bytes"
        )
    return descriptor


def _pread(descriptor: int, count: int, offset: int) -> bytes:
    if sys.platform == "win32":
        raise InvalidRequest(NOT_HERE)
    return os.pread(descriptor, count, offset)


def _pwrite(descriptor: int, data: bytes, offset: int) -> int:
    if sys.platform == "win32":
        raise InvalidRequest(NOT_HERE)
    return os.pwrite(descriptor, data, offset)


def _is_sealed(descriptor: int) -> bool:
    """Whether nobody can make the file smaller, and its pages cannot be missing.

    A page of a huge-page file may be missing when it is first used, which ends the process. Files
    of `/dev/shm` cannot be sealed.
    """
    if sys.platform != "linux" or os.fstat(descriptor).st_blksize > mmap.PAGESIZE:
        return False
    import fcntl

    try:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:  # only files in memory have seals
        return False


def _whole(value: object, what: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise InvalidRequest(f"{what} must be a whole number, not {value!r}")
    return value


def _unknown(name: str) -> InvalidRequest:
    return InvalidRequest(f"no region is named {name!r}")
