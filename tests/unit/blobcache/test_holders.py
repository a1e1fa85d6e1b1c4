"""Several holders of one file, each with keys of its own: nobody's entries are lost, nobody's come
back.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from penstock.blobcache import Capacity, PersistentBlobCache, Policy, Select
from tests.support_blobcache import Disk, ManualClock

PATH = Path("blobs").absolute()
holders = st.integers(0, 2)
names = st.sampled_from([b"a", b"b", b"c"])


class Holders(RuleBasedStateMachine):
    """Each holder sees its own changes at once, and another's when that one and then it has
    saved.
    """

    def __init__(self) -> None:
        super().__init__()
        self.disk, self.clock = Disk(), ManualClock()
        self.own: list[dict[bytes, bytes]] = [{}, {}, {}]
        self.saved: list[dict[bytes, bytes]] = [{}, {}, {}]
        self.caches = [self.new() for _ in self.own]

    def new(self) -> PersistentBlobCache:
        cache = PersistentBlobCache(PATH, files=self.disk, clock=self.clock)
        cache.initialize(policy=Policy(Select.LRU, Capacity.FIT))
        return cache

    def key(self, holder: int, name: bytes) -> bytes:
        return b"%d%s" % (holder, name)

    @rule(holder=holders, name=names, value=st.binary(min_size=1, max_size=3))
    def set(self, holder: int, name: bytes, value: bytes) -> None:
        assert self.caches[holder].set(self.key(holder, name), value)
        self.own[holder][self.key(holder, name)] = value

    @rule(holder=holders, name=names)
    def delete(self, holder: int, name: bytes) -> None:
        key = self.key(holder, name)
        assert self.caches[holder].delete(key) == (self.own[holder].pop(key, None) is not None)

    @rule(holder=holders, of=holders, name=names)
    def get(self, holder: int, of: int, name: bytes) -> None:
        found = self.caches[holder].get(self.key(of, name))
        if holder == of:
            assert found == self.own[of].get(self.key(of, name))

    @rule(holder=holders, ends=st.booleans())
    def save(self, holder: int, ends: bool) -> None:
        cache = self.caches[holder]
        assert cache.terminate() if ends else cache.save()
        if ends:
            cache.initialize(policy=Policy(Select.LRU, Capacity.FIT))
        self.saved[holder] = dict(self.own[holder])
        self.check()

    @rule()
    def wait(self) -> None:
        self.clock.advance(4)
        self.saved = [dict(own) for own in self.own]
        self.check()

    def check(self) -> None:
        found = dict(self.new().items())
        assert found == {k: v for saved in self.saved for k, v in saved.items()}


TestHolders = Holders.TestCase
