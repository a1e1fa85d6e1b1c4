"""The flattened layout, byte for byte, and what is not it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st

from penstock.blobcache import POLICIES, BlobCache, Limits, MalformedBlobs, Policy, Select, Version
from penstock.blobcache.flat import (
    flatten,
    flattened_size,
    largest_file,
    largest_flattened,
    unflatten,
    unwrap,
    wrap,
)
from penstock.errors import CacheError, InputError

VERSION = Version(device=9, build="b1")
ENTRIES = [(b"key", b"value"), (b"k", b"12345678901234567")]
entries_of_any_size = st.dictionaries(st.binary(min_size=1), st.binary(min_size=1))
versions = st.builds(Version, st.integers(0, 2**32 - 1), st.text(max_size=20))


def test_the_bytes_are_these() -> None:
    expected = b"".join([
        struct.pack("<IIIIQi", 0x5F426224, 3, 9, 0, 2, 2), b"b1", bytes(10),
        struct.pack("<QQ", 3, 5), b"keyvalue",
        struct.pack("<QQ", 1, 17), b"k12345678901234567", bytes(6),
    ])  # fmt: skip
    assert flatten(ENTRIES, VERSION) == expected
    assert flattened_size(ENTRIES, VERSION) == len(expected)
    assert struct.pack(">I", 0x5F426224) == b"_Bb$"


@pytest.mark.parametrize("size", [0, 1, 4, 5, 8, 9, 1024])
def test_entries_start_at_a_multiple_of_eight_behind_the_build_id(size: int) -> None:
    flat = flatten([(b"kk", b"vvv")], Version(build="b" * size))
    assert flat.index(struct.pack("<QQ", 2, 3)) == (32 + size + 7) // 8 * 8


@given(entries_of_any_size, versions)
def test_flatten_and_back(entries: dict[bytes, bytes], version: Version) -> None:
    flat = flatten(entries.items(), version)
    assert unflatten(memoryview(flat), version) == list(entries.items())
    assert bytes(unwrap(wrap(flat))) == flat


@given(entries_of_any_size, versions, versions)
def test_another_version_is_empty(entries: dict[bytes, bytes], a: Version, b: Version) -> None:
    found = unflatten(memoryview(flatten(entries.items(), a)), b)
    assert found == (list(entries.items()) if a == b else None)


@given(st.binary(max_size=200))
def test_any_bytes_are_entries_or_named(data: bytes) -> None:
    header = struct.pack("<III", 0x5F426224, 3, 9)
    for flat in (data, header + data):
        with pytest.raises(MalformedBlobs):
            unflatten(memoryview(flat), VERSION)


def test_a_flipped_bit_is_named_or_changes_one_blob() -> None:
    named = 0
    for bit in range(8 * len(flatten(ENTRIES, VERSION))):
        flat = bytearray(flatten(ENTRIES, VERSION))
        flat[bit // 8] ^= 1 << bit % 8
        try:
            found = unflatten(memoryview(flat), VERSION)
        except MalformedBlobs:
            named += 1
            continue
        # No checksum here: the file has one. But what is read is whole, and at most one entry
        # differs.
        assert found is None or sum(a != b for a, b in zip(found, ENTRIES, strict=True)) == 1
    assert named > 400


def altered(offset: int, layout: str, value: int) -> bytes:
    flat = bytearray(flatten(ENTRIES, VERSION))
    struct.pack_into(layout, flat, offset, value)
    return bytes(flat)


@pytest.mark.parametrize(
    ("flat", "named"),
    [
        (b"", "0 bytes end inside the header of 28"),
        (altered(0, "<I", 1), "the magic is 0x00000001, not 0x5f426224"),
        (altered(24, "<i", -1), "cannot hold a build id of -1"),
        (altered(24, "<i", 2**31 - 1), "cannot hold a build id of 2147483647"),
        (altered(12, "<I", 1), "padding of the header is not zero"),
        (altered(30, "<B", 1), "padding of the header is not zero"),
        (altered(16, "<Q", 2**64 - 1), "entry 2 is missing"),
        (altered(16, "<Q", 1), "40 bytes follow the last entry"),
        (altered(40, "<Q", 2**64 - 1), "entry 0 of 18446744073709551615 . 5 bytes does not end"),
        (altered(48, "<Q", 2**63), "entry 0 of 3 . 9223372036854775808 bytes does not end"),
        (altered(40, "<Q", 0), "entry 0 has an empty key or value"),
        (altered(48, "<Q", 0), "entry 0 has an empty key or value"),
        (flatten(ENTRIES, VERSION)[:-1] + b"\x01", "the padding of entry 1 is not zero"),
        (flatten([*ENTRIES, ENTRIES[0]], VERSION), "entry 2 has the key of an entry before it"),
        (flatten(ENTRIES, VERSION) + bytes(8), "8 bytes follow the last entry"),
    ],
)  # fmt: skip
def test_each_defect_is_named(flat: bytes, named: str) -> None:
    with pytest.raises(MalformedBlobs, match=named) as caught:
        unflatten(memoryview(flat), VERSION)
    assert isinstance(caught.value, CacheError)


def test_each_single_bit_and_each_length_of_a_file_is_refused() -> None:
    file = wrap(flatten(ENTRIES, VERSION))
    assert unflatten(unwrap(file), VERSION) == ENTRIES
    for bit in range(8 * len(file)):
        flipped = bytearray(file)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MalformedBlobs):
            unwrap(bytes(flipped))
    for size in range(len(file) + 257):
        if size != len(file):
            with pytest.raises(MalformedBlobs):
                unflatten(unwrap((file + bytes(257))[:size]), VERSION)


@given(entries_of_any_size, versions)
def test_no_file_of_a_cache_is_larger_than_its_limits_allow(
    entries: dict[bytes, bytes], version: Version
) -> None:
    limits = Limits(
        key=1 << 20, value=1 << 20, total=max(1, sum(len(k + v) for k, v in entries.items()))
    )
    flat = flatten(entries.items(), version)
    assert len(flat) <= largest_flattened(limits, version)
    assert len(wrap(flat)) <= largest_file(limits, version)


def test_the_smallest_entries_reach_the_largest_file() -> None:
    limits = Limits(total=512)
    flat = flatten([(bytes([i]), b"v") for i in range(256)], VERSION)
    assert len(wrap(flat)) == largest_file(limits, VERSION)


@pytest.mark.parametrize("policy", [p for p in POLICIES if p.select is Select.LRU])
def test_the_order_of_last_use_survives(policy: Policy) -> None:
    cache = BlobCache(Limits(total=20), policy)
    for key in b"abcdefghij":
        cache.set(bytes([key]), b"v")
    cache.get(b"b")
    other = BlobCache(Limits(total=20), policy)
    other.unflatten(cache.flatten())
    assert other.keys() == [bytes([k]) for k in b"acdefghijb"]


def test_limits_hold_for_what_is_read() -> None:
    cache, small = BlobCache(), BlobCache(Limits(key=2, value=3, total=4))
    for key, value in [(b"key", b"v"), (b"k", b"value"), (b"x", b"x"), (b"a", b"123")]:
        assert cache.set(key, value)
    assert small.unflatten(cache.flatten())
    assert small.items() == [(b"x", b"x")]  # of four bytes, half are in use: nothing is evicted
    roomy = BlobCache(Limits(key=2, value=3, total=6))
    assert roomy.unflatten(cache.flatten())
    assert roomy.items() == [(b"x", b"x"), (b"a", b"123")]


@pytest.mark.parametrize(
    ("device", "build", "named"),
    [
        (-1, "", "32-bit number, not -1"),
        (2**32, "", "not 4294967296"),
        (1, "é" * 513, "1024 bytes"),
    ],
)
def test_a_version_that_does_not_fit_is_refused(device: int, build: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        Version(device, build)
