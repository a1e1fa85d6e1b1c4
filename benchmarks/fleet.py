"""What a fleet costs its store: python -m benchmarks.fleet [--entries N ...] [--machines N].

Real client code reads and writes a store in memory that counts requests and bytes. For each number
of entries of one publisher: what a machine without history asks for its first entry, what it asks
for the next one and after another publication, and what a publication asks. Then, for each number,
what many machines ask that start without history: for an entry that is published, and for one that
is not. `--starts` measures the starts alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from penstock.errors import NoEntry
from penstock.remotecache import roles
from penstock.remotecache.explaining import described
from penstock.remotecache.fetching import Remote
from penstock.remotecache.stores import Named, ObjectStore, Stored
from tests.support_stores import Fleet, parcel

if __name__ == "__main__" and __package__ is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

INGREDIENTS = {
    "structure": "a" * 64,
    "constants": "b" * 64,
    "step": "c" * 64,
    "partition": "0-61 of 62",
    "device": "llvm",
    "version": "1 (schema 10, linux)",
    "cpu_features": "x86-64-v3",
    "preference": "fast_single_answer",
    "num_threads": "any",
}


class Counted:
    """*store*, with the number of its requests and the bytes that it sent.

    *largest* has the name and bytes of the largest object of metadata that was read.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.url, self._store = store.url, store
        self.counts: Counter[str] = Counter()
        self.largest = ("", 0)

    def get(self, name: str, most: int) -> Stored | None:
        found = self._store.get(name, most)
        size = 0 if found is None else len(found.content)
        self.counts["reads"] += 1
        self.counts["bytes read"] += size
        if name.startswith(f"{roles.METADATA}/"):
            self.counts["of them metadata"] += size
            if size > self.largest[1]:
                self.largest = name, size
        return found

    def listed(self, prefix: str, most: int) -> list[Named]:
        self.counts["lists"] += 1
        return self._store.listed(prefix, most)

    def unfinished(self, most: int) -> list[Named]:
        return self._store.unfinished(most)

    def create(self, name: str, content: bytes) -> str | None:
        return self._written(content, self._store.create(name, content))

    def update(self, name: str, content: bytes, etag: str) -> str | None:
        return self._written(content, self._store.update(name, content, etag))

    def delete(self, name: str) -> None:
        self.counts["writes"] += 1
        self._store.delete(name)

    def _written(self, content: bytes, etag: str | None) -> str | None:
        self.counts["writes"] += 1
        self.counts["bytes written"] += len(content)
        return etag

    def taken(self) -> str:
        """What was asked since the last call."""
        counts, self.counts = self.counts, Counter()
        return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def measure(entries: int, place: Path) -> None:
    fleet = Fleet(place)
    counted = Counted(fleet.store)
    words = described(INGREDIENTS)
    tokens = [os.urandom(32) for _ in range(entries)]
    content = parcel("x" * 1000).pack()
    fleet.publisher().publish(dict.fromkeys(tokens, content), dict.fromkeys(tokens, words))
    machine = Remote(counted, fleet.root, str(place / "history"))
    print(f"{entries:,} entries of {len(content):,} bytes, of one publisher")
    for what, token in (("first entry", tokens[0]), ("next entry", tokens[-1])):
        began = time.process_time()
        machine.look_up(token)
        spent = (time.process_time() - began) * 1e3
        print(f"  {what}: {counted.taken()}; {spent:.0f} ms of processor time")
    fleet.publish(os.urandom(32))
    machine.look_up(tokens[1])
    print(f"  after another publication: {counted.taken()}")
    from penstock.remotecache.publishing import Publisher

    remote = Remote(counted, fleet.root, str(place / "publisher"))
    publisher = Publisher(remote, fleet.keys["ci"])
    publisher.publish({os.urandom(32): content})
    print(f"  first publication of a process: {counted.taken()}")
    publisher.publish({os.urandom(32): content})
    print(f"  next publication: {counted.taken()}")


def start_together(machines: int, entries: int, place: Path) -> None:
    """Look-ups by machines without history, one after the other: of an entry of 1 MB that is
    published, then of one that is not. Raises if one of them ends otherwise.
    """
    fleet = Fleet(place)
    counted = Counted(fleet.store)
    tokens = [os.urandom(32) for _ in range(entries)]
    content = parcel("x" * 1_000_000).pack()
    fleet.publisher().publish({tokens[0]: content}, {tokens[0]: described(INGREDIENTS)})
    small = parcel().pack()
    words = dict.fromkeys(tokens[1:], described(INGREDIENTS))
    fleet.publisher().publish(dict.fromkeys(tokens[1:], small), words)
    print(f"{machines:,} machines, an entry of {len(content):,} bytes among {entries:,}")
    for what, token in (("published", tokens[0]), ("not published", os.urandom(32))):
        counted.taken()
        began, found = time.process_time(), 0
        for _ in range(machines):
            history = place / "history"
            with suppress(NoEntry):
                found += len(Remote(counted, fleet.root, str(history)).look_up(token).parcel.data)
            shutil.rmtree(history)
        spent = (time.process_time() - began) / machines * 1e3
        if found != (machines if what == "published" else 0):
            raise RuntimeError(f"{found} of {machines} machines found the entry")
        print(f"  {what}: {counted.taken()}; {spent:.0f} ms of processor time each", flush=True)
    print("  largest object of metadata: {}, {:,} bytes".format(*counted.largest), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--entries", type=int, nargs="*", default=[10, 1000, 10_000])
    parser.add_argument("--starts", action="store_true", help="measure no single machine")
    given = parser.parse_args()
    for entries in () if given.starts else given.entries:
        with tempfile.TemporaryDirectory() as place:
            measure(entries, Path(place))
    for entries in given.entries:
        with tempfile.TemporaryDirectory() as place:
            start_together(given.machines, entries, Path(place))


if __name__ == "__main__":
    main()
