"""The open files of one entry, lent to a driver."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from penstock.cache.store import Store
from penstock.closing import Closing
from penstock.hal import CacheHandle


class OpenFiles(Closing):
    """An entry's *model* and *data* cache files, open for reading and writing, and its *lock* file, opened
    for the driver alone: a `PrepareConfig`'s `model_cache`, `data_cache` and `lock`. In a directory that can only be
    read the files are open for reading, and *lock* is None: nothing can be written later.

    Close it, or use it in a `with` block, when the driver's call has returned; what the driver duplicated
    stays open. Closing twice is harmless.
    """

    def __init__(
        self,
        store: Store,
        model: Sequence[CacheHandle],
        data: Sequence[CacheHandle],
        lock: CacheHandle | None,
        *,
        held: int | None = None,
        temporaries: tuple[str, ...] = (),
    ) -> None:
        self.model, self.data, self.lock = tuple(model), tuple(data), lock
        self.temporaries = temporaries
        """The names of files that are not published yet, in the order of the handles."""
        self._store, self._held, self._open = store, held, True

    @property
    def handles(self) -> tuple[CacheHandle, ...]:
        """The cache files, model files first."""
        return (*self.model, *self.data)

    def sizes(self) -> list[int]:
        """The bytes in each file now. Raises `OSError`."""
        return [self._store.files.status(handle.fd).size for handle in self.handles]

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        with ExitStack() as stack:
            if self._held is not None:
                stack.callback(self._store.locks.release, self._held)
            for handle in (*self.handles, *filter(None, [self.lock])):
                stack.callback(self._store.close, handle.fd)
