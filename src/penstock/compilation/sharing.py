"""The shared store in a cache miss: fetch the entry, or compile it for others too.

Whatever the store does, the step is compiled in the end, and the receipt says what the store did.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock import errors, knobs
from penstock.cache.ingredients import derived_token
from penstock.cache.lease import Lease
from penstock.cache.store import LEASE_SHARE, LOCK_SHARE, seconds_left
from penstock.closing import Closing
from penstock.compilation.calls import token_while_waiting
from penstock.compilation.entry import Entry, Obtained
from penstock.compilation.store_check import mark_asked, refuse_revoked
from penstock.logs import Log
from penstock.sealed.locks import sleep

if TYPE_CHECKING:
    from penstock.remotecache.fetching import Fetched, Remote
    from penstock.remotecache.leases import BuildLease
    from penstock.remotecache.stores import ObjectStore

log = Log(__name__)

SILENT_SECONDS: Final = 30.0
"""For so long this process does not ask a store again that gave no answer in time. A plan of many
steps then waits once.
"""

MOST_SILENT_SECONDS: Final = 3600.0
"""The longest time for which an overloaded store is left alone, if it asks for more."""

PUBLISHING_SHARE: Final = 4.0
"""Publishing may take this many times as long as a look-up: it writes and reads some objects."""


_silent_until: Final[dict[str, float]] = {}

_first_asked: Final[dict[str, float]] = {}
"""When this process first asks a store: after a random pause, which all steps wait for."""


class Sharing(Closing):
    """What the store at `entry.store` does for one step, under the local *lease* of its entry.

    *words* is for the receipt. `close` gives up what is held in the store.
    """

    def __init__(self, entry: Entry, lease: Lease) -> None:
        self.words = ""
        self._entry, self._lease = entry, lease
        self._remote: Remote | None = None
        self._held: BuildLease | None = None
        self._closed = False
        self._lock = threading.Lock()

    def fetch(self) -> Obtained | None:
        """The step with the entry from the store; None if it has to be compiled here.

        Takes at most the knob `store_seconds`, and `store_wait_seconds` if another machine compiles
        it, or a share of the time to the deadline. Raises `Cancelled`.
        """
        entry = self._entry
        try:
            with entry.recorder.time("cache", f"shared store for step {entry.step.index}"):
                return self._fetch()
        except (errors.CacheError, errors.InputError) as error:
            self._note(str(error))
            return None

    def publish(self, made: Obtained) -> Obtained:
        """*made* with what the store did in its outcome, after publishing it if that is possible.

        Takes at most four times the knob `store_seconds`.
        """
        remote = self._remote
        if remote is not None and knobs.store_key() and made.outcome.saved:
            entry = self._entry
            try:
                with entry.recorder.time("cache", f"publish step {entry.step.index}"):
                    self._publish(remote)
            except (errors.CacheError, errors.InputError) as error:
                if isinstance(error, errors.StoreUnavailable):
                    self._leave_alone(error.retry_after)
                self._note(f"{self.words}; not published: {error}")
            else:
                self._note(f"{self.words}; published")
        return self.noted(made)

    def noted(self, made: Obtained) -> Obtained:
        return replace(made, outcome=replace(made.outcome, shared=self.words))

    def close(self) -> None:
        with self._lock:
            self._closed, held, self._held = True, self._held, None
        if held is not None:
            held.close()

    def _fetch(self) -> Obtained | None:
        from penstock.remotecache import fetching, sealing
        from penstock.remotecache.stores import open_store

        entry = self._entry
        if reason := sealing.why_not_shared(dict(entry.key.ingredients)):
            self._note(f"off: {reason}")
            return None
        seconds = seconds_left(entry.config.deadline_ns, knobs.store_seconds(), LOCK_SHARE)
        root = fetching.trusted_root(knobs.store_root())
        if (left := _silent_until.get(entry.store, 0.0) - time.monotonic()) > 0:
            raise errors.StoreUnavailable(
                "the store gave no answer in time or asked for a pause, and is asked again in "
                f"{left:.0f} s"
            )
        self._pause()
        store = open_store(entry.store, seconds)
        self._remote = remote = fetching.Remote(store, root)
        token = derived_token(entry.key.ingredients)
        found = self._look_up(remote, token, seconds)
        if found is None and self._wait(store, token):
            found = self._look_up(remote, token, seconds)
        return None if found is None else self._load(remote, found)

    def _look_up(self, remote: Remote, token: bytes, seconds: float) -> Fetched | None:
        """The entry that a trusted publisher lists; None if none does."""
        from penstock.remotecache import fetching

        entry = self._entry

        def ask() -> Fetched:
            try:
                return remote.look_up(token)
            finally:
                refuse_revoked(remote, entry.directory.store)

        found: Fetched | None = None
        began = time.monotonic()
        try:
            found = fetching.within(seconds, ask, token_while_waiting(entry.config.cancel))
        except errors.NoEntry as error:
            self._note(str(error))
        except errors.StoreUnavailable as error:
            # An error that comes at once costs the next step nothing.
            silent = SILENT_SECONDS if time.monotonic() - began >= seconds else 0.0
            self._leave_alone(max(silent, error.retry_after))
            raise
        mark_asked(entry.store, time.time())
        return found

    def _leave_alone(self, seconds: float) -> None:
        """Keeps this process from asking the store for *seconds*, and no longer than an hour."""
        until = time.monotonic() + min(seconds, MOST_SILENT_SECONDS)
        # Meanwhile the store may have asked another step for a longer pause.
        until = max(until, _silent_until.get(self._entry.store, 0.0))
        _silent_until[self._entry.store] = until

    def _pause(self) -> None:
        """Waits a random time before the first question of this process. Raises `Cancelled`."""
        config, longest = self._entry.config, knobs.store_jitter_seconds()
        now = time.monotonic()
        begin = _first_asked.setdefault(
            self._entry.store,
            now + random.uniform(0, longest),  # noqa: S311  # a pause
        )
        cancel = token_while_waiting(config.cancel)

        def stops() -> bool:
            if cancel is not None:
                cancel.check()
            return False

        sleep(seconds_left(config.deadline_ns, begin - now, LOCK_SHARE), stops)

    def _load(self, remote: Remote, fetched: Fetched) -> Obtained | None:
        from penstock.remotecache import sealing

        entry = self._entry
        fetched.parcel.check(
            entry.key.binding, entry.device.name, entry.device.version, entry.needed
        )
        record = entry.record(fetched.parcel.compile_ns)
        sealing.seal_locally(remote, fetched, record, entry.directory.store, self._lease)
        loaded = entry.load()
        if isinstance(loaded, Obtained):
            self._note(f"fetched from {entry.store}, published by {fetched.listed.publisher}")
            return self.noted(loaded)
        self._note(f"fetched from {entry.store}, but not loaded: {loaded}")
        return None

    def _wait(self, store: ObjectStore, token: bytes) -> bool:
        """Waits for another machine's compile, or takes the lease; whether to look again."""
        from penstock.remotecache.fetching import within
        from penstock.remotecache.leases import Waiting

        entry = self._entry
        deadline_ns = entry.config.deadline_ns
        cancel = token_while_waiting(entry.config.cancel)
        seconds = seconds_left(deadline_ns, knobs.store_wait_seconds(), LEASE_SHARE)
        waiting = Waiting(store, token)
        builds = bool(knobs.store_key())

        def wait() -> bool:
            until = time.monotonic() + seconds
            while True:
                if builds and (lease := waiting.take()) is not None:
                    self._hold(lease)
                    # Another machine may have published it since the first look.
                    return True
                if not waiting.until_free(max(0.0, until - time.monotonic()), cancel):
                    raise errors.NotYetWritten(
                        f"another machine was still compiling it after a wait of {seconds:.3g} s"
                    )
                if not builds:
                    return waiting.begun

        return within(seconds + knobs.store_seconds(), wait, cancel)

    def _hold(self, lease: BuildLease) -> None:
        """Keeps *lease* until `close`, which may have been called already: nobody waited longer."""
        with self._lock:
            if not self._closed:
                self._held = lease
                return
        lease.close()

    def _publish(self, remote: Remote) -> None:
        from penstock.remotecache import sealing
        from penstock.remotecache.explaining import described
        from penstock.remotecache.fetching import within
        from penstock.remotecache.publishing import Publisher
        from penstock.remotecache.roles import read_key

        entry = self._entry
        record = entry.directory.record(entry.key.token) or entry.record()
        signer = read_key(knobs.store_key())

        def work() -> list[bytes]:
            content = sealing.parcel_of(entry.directory, record).pack()
            token = derived_token(entry.key.ingredients)
            words = {token: described(entry.key.ingredients)}
            return Publisher(remote, signer).publish({token: content}, words)

        within(PUBLISHING_SHARE * knobs.store_seconds(), work, entry.config.cancel)

    def _note(self, words: str) -> None:
        self.words = words
        log.info(
            "step %d on %s: shared store: %s",
            self._entry.step.index,
            self._entry.device.name,
            words,
        )
