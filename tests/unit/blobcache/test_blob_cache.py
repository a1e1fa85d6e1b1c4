"""Every scenario of NNAPI's BlobCache tests, over the six policies; docstrings have their upstream
names.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from penstock.blobcache import POLICIES, BlobCache, Capacity, Limits, MalformedBlobs, Policy, Select
from penstock.errors import InputError

LIMITS = Limits(key=6, value=8, total=13)
FULL = LIMITS.total // 2  # entries of one byte of key and one of value
UNTOUCHED = 0xEE

every_policy = pytest.mark.parametrize(
    "policy", POLICIES, ids=lambda p: f"{p.select.name}-{p.capacity.name}"
)


def only(**wanted: object) -> pytest.MarkDecorator:
    chosen = [p for p in POLICIES if all(getattr(p, k) is v for k, v in wanted.items())]
    return pytest.mark.parametrize(
        "policy", chosen, ids=lambda p: f"{p.select.name}-{p.capacity.name}"
    )


def buffer(size: int) -> bytearray:
    return bytearray([UNTOUCHED] * size)


def cache_of(policy: Policy, limits: Limits = LIMITS) -> BlobCache:
    return BlobCache(limits, policy, seed=7)


def filled(policy: Policy, value: bytes | None = b"x") -> BlobCache:
    """A cache full of 1-byte keys; None stores each key as its own value."""
    cache = cache_of(policy)
    for i in range(FULL):
        assert cache.set(bytes([i]), bytes([i]) if value is None else value)
    return cache


def cached(cache: BlobCache) -> list[int]:
    return [i for i in range(FULL + 1) if cache.get_into(bytes([i]), None)]


@every_policy
class TestBlobCache:
    def test_cache_single_value_succeeds(self, policy: Policy) -> None:
        """CacheSingleValueSucceeds"""
        cache, out = cache_of(policy), buffer(4)
        assert cache.set(b"abcd", b"efgh")
        assert cache.get_into(b"abcd", out) == 4
        assert out == b"efgh"

    def test_cache_two_values_succeeds(self, policy: Policy) -> None:
        """CacheTwoValuesSucceeds"""
        cache, out = cache_of(policy), buffer(2)
        cache.set(b"ab", b"cd")
        cache.set(b"ef", b"gh")
        assert cache.get_into(b"ab", out) == 2
        assert out == b"cd"
        assert cache.get_into(b"ef", out) == 2
        assert out == b"gh"

    def test_cache_two_values_malloc_succeeds(self, policy: Policy) -> None:
        """CacheTwoValuesMallocSucceeds"""
        cache = cache_of(policy)
        cache.set(b"ab", b"cd")
        cache.set(b"ef", b"gh")
        assert cache.get_allocated(b"ab", bytearray) == (2, bytearray(b"cd"))
        assert cache.get_allocated(b"ef", bytearray) == (2, bytearray(b"gh"))

    def test_get_only_writes_inside_bounds(self, policy: Policy) -> None:
        """GetOnlyWritesInsideBounds"""
        cache, out = cache_of(policy), buffer(6)
        cache.set(b"abcd", b"efgh")
        assert cache.get_into(b"abcd", memoryview(out)[1:5]) == 4
        assert out == b"\xeeefgh\xee"

    def test_get_only_writes_if_buffer_is_large_enough(self, policy: Policy) -> None:
        """GetOnlyWritesIfBufferIsLargeEnough"""
        cache, out = cache_of(policy), buffer(3)
        cache.set(b"abcd", b"efgh")
        assert cache.get_into(b"abcd", out) == 4
        assert out == buffer(3)

    def test_get_with_failed_allocator(self, policy: Policy) -> None:
        """GetWithFailedAllocator"""
        cache = cache_of(policy)
        cache.set(b"abcd", b"efgh")
        asked: list[int] = []
        assert cache.get_allocated(b"abcd", asked.append) == (4, None)
        assert asked == [4]

    def test_get_doesnt_access_null_buffer(self, policy: Policy) -> None:
        """GetDoesntAccessNullBuffer"""
        cache = cache_of(policy)
        cache.set(b"abcd", b"efgh")
        assert cache.get_into(b"abcd", None) == 4

    def test_multiple_sets_cache_latest_value(self, policy: Policy) -> None:
        """MultipleSetsCacheLatestValue"""
        cache, out = cache_of(policy), buffer(4)
        cache.set(b"abcd", b"efgh")
        cache.set(b"abcd", b"ijkl")
        assert cache.get_into(b"abcd", out) == 4
        assert out == b"ijkl"
        assert (len(cache), cache.total) == (1, 8)

    def test_second_set_keeps_first_value_if_too_large(self, policy: Policy) -> None:
        """SecondSetKeepsFirstValueIfTooLarge"""
        cache, out = cache_of(policy), buffer(4)
        cache.set(b"abcd", b"efgh")
        assert not cache.set(b"abcd", bytes(LIMITS.value + 1))
        assert cache.get_into(b"abcd", out) == 4
        assert out == b"efgh"

    def test_doesnt_cache_if_key_is_too_big(self, policy: Policy) -> None:
        """DoesntCacheIfKeyIsTooBig"""
        cache, out = cache_of(policy), buffer(4)
        key = b"a" * (LIMITS.key + 1)
        assert not cache.set(key, b"bbbb")
        assert cache.get_into(key, out) == 0
        assert out == buffer(4)
        asked: list[int] = []
        assert cache.get_allocated(key, asked.append) == (0, None)
        assert asked == []

    def test_doesnt_cache_if_value_is_too_big(self, policy: Policy) -> None:
        """DoesntCacheIfValueIsTooBig"""
        cache, out = cache_of(policy), buffer(LIMITS.value + 1)
        assert not cache.set(b"abcd", b"b" * (LIMITS.value + 1))
        assert cache.get_into(b"abcd", out) == 0
        assert out == buffer(LIMITS.value + 1)

    def test_doesnt_cache_if_key_value_pair_is_too_big(self, policy: Policy) -> None:
        """DoesntCacheIfKeyValuePairIsTooBig"""
        cache, key = cache_of(policy), b"a" * LIMITS.key
        assert LIMITS.key < LIMITS.total < LIMITS.key + LIMITS.value
        assert not cache.set(key, b"b" * (LIMITS.total - LIMITS.key + 1))
        assert cache.get_into(key, None) == 0

    def test_cache_max_key_size_succeeds(self, policy: Policy) -> None:
        """CacheMaxKeySizeSucceeds"""
        cache, out, key = cache_of(policy), buffer(4), b"a" * LIMITS.key
        assert cache.set(key, b"wxyz")
        assert cache.get_into(key, out) == 4
        assert out == b"wxyz"

    def test_cache_max_value_size_succeeds(self, policy: Policy) -> None:
        """CacheMaxValueSizeSucceeds"""
        cache, out = cache_of(policy), buffer(LIMITS.value)
        assert cache.set(b"abcd", b"b" * LIMITS.value)
        assert cache.get_into(b"abcd", out) == LIMITS.value
        assert out == b"b" * LIMITS.value

    def test_cache_max_key_value_pair_size_succeeds(self, policy: Policy) -> None:
        """CacheMaxKeyValuePairSizeSucceeds"""
        cache, key = cache_of(policy), b"a" * LIMITS.key
        assert cache.set(key, b"b" * (LIMITS.total - LIMITS.key))
        assert cache.get_into(key, None) == LIMITS.total - LIMITS.key
        assert cache.total == LIMITS.total

    def test_cache_min_key_and_value_size_succeeds(self, policy: Policy) -> None:
        """CacheMinKeyAndValueSizeSucceeds"""
        cache, out = cache_of(policy), buffer(1)
        assert cache.set(b"x", b"y")
        assert cache.get_into(b"x", out) == 1
        assert out == b"y"

    def test_cache_size_doesnt_exceed_total_limit(self, policy: Policy) -> None:
        """CacheSizeDoesntExceedTotalLimit"""
        cache = cache_of(policy)
        for i in range(256):
            cache.set(bytes([i]), b"x")
        assert sum(cache.get_into(bytes([i]), None) for i in range(256)) <= FULL

    def test_failed_get_with_allocator(self, policy: Policy) -> None:
        """FailedGetWithAllocator"""
        asked: list[int] = []
        assert cache_of(policy).get_allocated(b"a", asked.append) == (0, None)
        assert asked == []

    def test_exceeding_total_limit_fits_big_entry(self, policy: Policy) -> None:
        """ExceedingTotalLimitFitsBigEntry"""
        cache = filled(policy)
        size = min(LIMITS.total * 3 // 4 - 1, LIMITS.value)
        assert size + 1 > LIMITS.total // 2
        stored = cache.set(bytes([FULL]), bytes([UNTOUCHED]) * size)
        if policy.capacity is Capacity.HALVE:  # cleaned, and still no room
            assert not stored
            assert (len(cached(cache)), cache.total) == (FULL // 2, FULL // 2 * 2)
        else:
            free = LIMITS.total - 2 * FULL
            evicted = -(-(size + 1 - free) // 2)
            assert stored
            assert FULL in cached(cache)
            assert (len(cached(cache)), cache.total) == (
                FULL - evicted + 1,
                2 * (FULL - evicted) + size + 1,
            )


@pytest.mark.parametrize(
    "policy",
    [p for p in POLICIES if p.capacity is not Capacity.FIT],
    ids=lambda p: f"{p.select.name}-{p.capacity.name}",
)
def test_exceeding_total_limit_halves_cache_size(policy: Policy) -> None:
    """ExceedingTotalLimitHalvesCacheSize"""
    cache = filled(policy)
    assert cache.set(bytes([FULL]), b"x")
    found = cached(cache)
    assert len(found) == FULL // 2 + 1
    if policy.select is Select.LRU:
        assert found == list(range(FULL // 2, FULL + 1))


@only(capacity=Capacity.FIT)
def test_exceeding_total_limit_just_fits_small_entry(policy: Policy) -> None:
    """ExceedingTotalLimitJustFitsSmallEntry"""
    cache = filled(policy)
    assert cache.set(bytes([FULL]), b"x")
    assert len(cached(cache)) == FULL


@only(select=Select.LRU)
@pytest.mark.parametrize("seed", range(5))
def test_exceeding_total_limit_removes_lru_entries(policy: Policy, seed: int) -> None:
    """ExceedingTotalLimitRemovesLRUEntries"""
    cache, order = filled(policy), list(range(FULL))
    random.Random(seed).shuffle(order)
    for i in order:
        assert cache.get_into(bytes([i]), buffer(1)) == 1
    for i in range(FULL):  # asking for the size alone is no use
        cache.get_into(bytes([i]), None)
    assert cache.set(bytes([FULL]), b"x")
    found = [i in cached(cache) for i in order]
    assert FULL in cached(cache)
    assert found == sorted(found)
    assert found.count(True) == (FULL - 1 if policy.capacity is Capacity.FIT else FULL // 2)


@every_policy
class TestFlatten:
    def test_flatten_one_value(self, policy: Policy) -> None:
        """FlattenOneValue"""
        cache, other = cache_of(policy), cache_of(policy)
        cache.set(b"abcd", b"efgh")
        assert other.unflatten(cache.flatten())
        assert other.get(b"abcd") == b"efgh"

    def test_flatten_full_cache(self, policy: Policy) -> None:
        """FlattenFullCache"""
        cache, other = filled(policy, None), cache_of(policy)
        assert other.unflatten(cache.flatten())
        assert [other.get(bytes([i])) for i in range(FULL)] == [bytes([i]) for i in range(FULL)]
        assert other.total == cache.total

    def test_flatten_doesnt_change_cache(self, policy: Policy) -> None:
        """FlattenDoesntChangeCache"""
        cache = filled(policy, None)
        before = cache.items()
        assert len(cache.flatten()) == cache.flattened_size()
        assert cache.items() == before

    def test_flatten_catches_buffer_too_small(self, policy: Policy) -> None:
        """FlattenCatchesBufferTooSmall"""
        cache = filled(policy)
        size = cache.flattened_size()
        for too_small in range(size):
            out = buffer(too_small)
            with pytest.raises(InputError, match="a buffer of"):
                cache.flatten_into(out)
            assert out == buffer(too_small)
        out = buffer(size + 3)
        assert cache.flatten_into(out) == size
        assert out == cache.flatten() + buffer(3)

    def test_unflatten_catches_bad_magic(self, policy: Policy) -> None:
        """UnflattenCatchesBadMagic"""
        flat, other = bytearray(filled(policy).flatten()), filled(policy)
        flat[1] ^= 0xFF
        with pytest.raises(MalformedBlobs, match="magic"):
            other.unflatten(flat)
        assert (len(other), other.total) == (0, 0)

    @pytest.mark.parametrize("byte", [5, 10], ids=["cache", "device"])
    def test_unflatten_catches_bad_blob_cache_version(self, policy: Policy, byte: int) -> None:
        """UnflattenCatchesBadBlobCacheVersion, UnflattenCatchesBadBlobCacheDeviceVersion"""
        flat, other = bytearray(filled(policy).flatten()), filled(policy)
        flat[byte] ^= 0xFF
        assert not other.unflatten(flat)
        assert (len(other), other.total) == (0, 0)

    def test_unflatten_catches_buffer_too_small(self, policy: Policy) -> None:
        """UnflattenCatchesBufferTooSmall"""
        flat, other = filled(policy).flatten(), cache_of(policy)
        for size in range(len(flat)):
            other.set(b"a", b"b")
            with pytest.raises(MalformedBlobs):
                other.unflatten(flat[:size])
            assert (len(other), other.total) == (0, 0)


def test_any_contiguous_buffer_is_filled() -> None:
    cache = BlobCache()
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert cache.set(b"array", numbers.data)
    out = np.zeros((2, 3), np.float32)
    assert cache.get_into(b"array", out.data) == 24
    np.testing.assert_array_equal(out, numbers)
    assert cache.get_into(b"array", np.zeros(0, np.float32).data) == 24


def test_too_small_a_buffer_of_the_allocator_is_refused() -> None:
    cache = BlobCache()
    cache.set(b"a", b"four")
    with pytest.raises(InputError, match="too small a buffer for 4 bytes"):
        cache.get_allocated(b"a", lambda size: bytearray(size - 1))


@pytest.mark.parametrize("limit", ["key", "value", "total"])
def test_a_limit_below_one_byte_is_refused(limit: str) -> None:
    with pytest.raises(InputError, match=f"the limit {limit} must be 1 byte or more, not 0"):
        Limits(**{limit: 0})


def test_numbers_and_text_are_no_blobs() -> None:
    cache = BlobCache()
    for wrong in (5, "text", None):
        with pytest.raises(TypeError):
            cache.set(wrong, b"x")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            cache.set(b"x", wrong)  # type: ignore[arg-type]
    assert len(cache) == 0


def test_a_seed_repeats_what_is_evicted() -> None:
    def survivors(seed: int) -> list[bytes]:
        cache = BlobCache(LIMITS, Policy(Select.RANDOM, Capacity.FIT), seed=seed)
        for i in range(100):
            cache.set(bytes([i]), b"x")
        return cache.keys()

    assert survivors(1) == survivors(1)
    assert len({tuple(survivors(seed)) for seed in range(10)}) > 1


def test_cache_keeps_its_value_when_the_caller_changes_the_array() -> None:
    cache, key, value = BlobCache(), bytearray(b"key"), bytearray(b"value")
    cache.set(key, value)
    key[:], value[:] = b"KEY", b"VALUE"
    assert cache.items() == [(b"key", b"value")]
