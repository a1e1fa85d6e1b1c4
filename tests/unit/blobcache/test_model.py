"""The cache against a plain model of it: a list in order of use, and sums."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.blobcache import POLICIES, BlobCache, Capacity, Limits, Policy, Select

LIMITS = Limits(key=4, value=9, total=24)
keys = st.binary(max_size=5)
values = st.binary(max_size=10)


class Accounting(RuleBasedStateMachine):
    """With LRU the model says exactly what stays; with RANDOM, how much, and that it is nothing
    else.
    """

    cache: BlobCache
    policy: Policy
    entries: dict[bytes, bytes]

    @initialize(policy=st.sampled_from(POLICIES), seed=st.integers(0, 99))
    def start(self, policy: Policy, seed: int) -> None:
        self.cache, self.policy, self.entries = BlobCache(LIMITS, policy, seed=seed), policy, {}

    def size(self) -> int:
        return sum(len(k) + len(v) for k, v in self.entries.items())

    @rule(key=keys, value=values)
    def set(self, key: bytes, value: bytes) -> None:
        before = dict(self.cache.items())
        stored = self.cache.set(key, value)
        if not LIMITS.admit(len(key), len(value)):
            assert not stored
            assert dict(self.cache.items()) == before
        elif self.policy.select is Select.LRU:
            assert stored == self.set_lru(key, value)
        else:
            self.check_random(before, key, value, stored=stored)

    def set_lru(self, key: bytes, value: bytes) -> bool:
        while True:
            after = self.size() - len(self.entries.get(key, b"")) + len(value)
            after += 0 if key in self.entries else len(key)
            if after <= LIMITS.total:
                self.entries.pop(key, None)
                self.entries[key] = value
                return True
            half, growth = LIMITS.total // 2, after - self.size()
            target = {
                Capacity.HALVE: half,
                Capacity.FIT: LIMITS.total - growth,
                Capacity.FIT_HALVE: min(half, LIMITS.total - growth),
            }[self.policy.capacity]
            if self.policy.capacity is Capacity.HALVE and self.size() <= half:
                return False
            while self.size() > target:
                del self.entries[next(iter(self.entries))]

    def check_random(
        self, before: dict[bytes, bytes], key: bytes, value: bytes, *, stored: bool
    ) -> None:
        now = dict(self.cache.items())
        rest = {k: v for k, v in now.items() if k != key}
        assert rest.items() <= before.items()
        assert now.get(key) in ({value} if stored else {before.get(key), None})
        assert stored or self.policy.capacity is Capacity.HALVE
        change = len(value) - len(before[key]) if key in before else len(key) + len(value)
        if self.size() + change <= LIMITS.total:
            assert stored
            assert rest == {k: v for k, v in before.items() if k != key}
        elif self.policy.capacity is not Capacity.FIT and key not in before:
            assert sum(len(k) + len(v) for k, v in rest.items()) <= LIMITS.total // 2
        self.entries = now

    @rule(key=keys)
    def get(self, key: bytes) -> None:
        assert self.cache.get(key) == self.entries.get(key)
        if key in self.entries:
            self.entries[key] = self.entries.pop(key)

    @rule(key=keys, room=st.integers(0, 10))
    def get_into(self, key: bytes, room: int) -> None:
        out, value = bytearray(b"\xee" * room), self.entries.get(key, b"")
        assert self.cache.get_into(key, out) == len(value)
        if key in self.entries and len(value) <= room:
            assert out == value + b"\xee" * (room - len(value))
            self.entries[key] = self.entries.pop(key)
        else:
            assert out == b"\xee" * room

    @rule(key=keys, works=st.booleans())
    def get_allocated(self, key: bytes, works: bool) -> None:
        size, found = self.cache.get_allocated(key, lambda n: bytearray(n) if works else None)
        assert size == len(self.entries.get(key, b""))
        if works and key in self.entries:
            assert found == bytearray(self.entries[key])
            self.entries[key] = self.entries.pop(key)
        else:
            assert found is None

    @rule(key=keys)
    def delete(self, key: bytes) -> None:
        assert self.cache.delete(key) == (self.entries.pop(key, None) is not None)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.entries.clear()

    @rule()
    def flatten(self) -> None:
        self.cache.unflatten(self.cache.flatten())

    @invariant()
    def the_same(self) -> None:
        if hasattr(self, "cache"):
            assert self.cache.items() == list(self.entries.items())
            assert self.cache.keys() == list(self.entries)
            assert self.cache.total == self.size() <= LIMITS.total
            assert len(self.cache) == len(self.entries)


TestAccounting = Accounting.TestCase
