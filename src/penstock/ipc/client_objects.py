"""One client's objects of a device, by number."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from penstock.errors import GeneralFailure, InvalidArgument, ResourceExhaustedPersistent
from penstock.hal.prepared import report_of
from penstock.ipc import forms, wire
from penstock.ipc.quotas import Lease

Kind: TypeAlias = Literal[
    "prepared model", "burst", "reusable execution", "buffer", "ring", "lent pool"
]

logger: Final = logging.getLogger(__name__)

MAX_OBJECTS: Final = 1 << 16
"""Most objects of one client at a time, including those that are still being closed."""


class ClientObject(NamedTuple):
    """One object: the *lease* closed with it, its *token*, the *tokens* that its runs use."""

    kind: Kind
    value: Any
    lease: Lease | None = None
    token: int = 0
    tokens: tuple[int, ...] = ()
    loops: bool = False

    def close(self) -> None:
        try:
            self.value.close()
        finally:
            if self.lease is not None:
                self.lease.close()


class ClientObjects:
    """The objects of one client, which can use no others. Thread-safe."""

    def __init__(self) -> None:
        self._objects: dict[forms.ObjectId, ClientObject] = {}
        self._numbers = itertools.count(1)
        self._tokens: set[int] = set()
        self._used: Counter[int] = Counter()
        # Buffers to close once no run uses them, and objects that are being closed.
        self._late: dict[int, ClientObject] = {}
        self._closing = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._objects)

    def keep(self, made: ClientObject) -> wire.Made:
        """The number of *made* from now on. `ResourceExhaustedPersistent` beyond `MAX_OBJECTS`."""
        if made.value is None:
            raise GeneralFailure(f"the driver succeeded, and there is no {made.kind}")
        with self._lock:
            if len(self._objects) + len(self._late) + self._closing < MAX_OBJECTS:
                number = next(self._numbers)
                self._objects[number] = made
                if made.token:
                    self._tokens.add(made.token)
                return wire.Made(number, report_of(made.value))
        made.close()
        raise ResourceExhaustedPersistent(f"a client may have {MAX_OBJECTS} objects at a time")

    def get(self, number: forms.ObjectId, *kinds: Kind) -> ClientObject:
        """The object of that number. Raises `InvalidArgument` if it is of none of *kinds*."""
        found = self._objects.get(number)
        if found is None or found.kind not in kinds:
            raise InvalidArgument(f"object {number} is no {' or '.join(kinds)} of this client")
        return found

    def find(self, number: forms.ObjectId, *kinds: Kind) -> Any:
        """The device's own object of that number. Raises as `get`."""
        return self.get(number, *kinds).value

    @contextmanager
    def using(self, tokens: Sequence[int]) -> Iterator[None]:
        """Keeps the buffers of *tokens*, which must be this client's, open during the block.

        Otherwise a driver could give the token of a closed buffer to another client.
        """
        if not tokens:
            yield
            return
        with self._lock:
            for token in tokens:
                if token not in self._tokens:
                    raise InvalidArgument(f"{token} is no token of a buffer of this client")
            self._used.update(tokens)
        try:
            yield
        finally:
            with self._lock:
                self._used.subtract(tokens)
                free = [t for t in set(tokens) if t in self._late and not self._used[t]]
                unused = [self._late.pop(t) for t in free]
            for each in unused:
                each.close()

    def take(self, number: forms.ObjectId) -> ClientObject | None:
        """Removes an object from the client. None if it does not exist or is closed later."""
        with self._lock:
            found = self._objects.pop(number, None)
            if found is not None and found.token:
                self._tokens.discard(found.token)
                if self._used[found.token]:
                    self._late[found.token] = found
                    return None
        return found

    def detach(self, number: forms.ObjectId) -> Callable[[], None] | None:
        """As `take`, but returns a function that closes the object, which may be slow."""
        found = self.take(number)
        if found is None:
            return None
        with self._lock:
            self._closing += 1

        def close() -> None:
            _close_logged(found, "an object that a client dropped could not be closed")
            with self._lock:
                self._closing -= 1

        return close

    def close(self) -> None:
        """Closes every object: rings first, then the newest; a buffer in use when its run ends."""
        with self._lock:
            objects, self._objects = list(self._objects.values()), {}
            self._tokens.clear()
            self._late.update({o.token: o for o in objects if self._used[o.token]})
            unused = [o for o in objects if not self._used[o.token]]
        # The runs of rings use the other objects.
        unused.sort(key=lambda o: o.kind == "ring")
        for each in reversed(unused):
            _close_logged(each, "an object of a client that left could not be closed")


def _close_logged(found: ClientObject, message: str) -> None:
    """Closes it; an object that cannot be closed must not keep others open."""
    try:
        found.close()
    except (Exception, SystemExit):
        logger.exception(message)
