"""The root over a payload depends on every byte, on the order and on the length, and on nothing
else.
"""

from __future__ import annotations

import hashlib
import threading

import pytest
from hypothesis import given, strategies as st

from penstock import knobs
from penstock.sealed import LEAF_BYTES, merkle_root
from penstock.sealed.payload import map_leaves

MIB = 1 << 20


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def root_of(content: bytes) -> bytes:
    """The definition of docs/cache-format.md, recursively."""

    def top(leaves: list[bytes]) -> bytes:
        if len(leaves) == 1:
            return sha(b"\0", leaves[0])
        split = 1
        while split * 2 < len(leaves):
            split *= 2
        return sha(b"\1", top(leaves[:split]), top(leaves[split:]))

    leaves = [content[i : i + MIB] for i in range(0, len(content), MIB)] or [b""]
    return sha(b"\2", len(content).to_bytes(8, "little"), top(leaves))


@pytest.mark.parametrize("leaves", range(10))
@pytest.mark.parametrize("rest", [-1, 0, 1])
def test_the_root_is_the_documented_one(leaves: int, rest: int) -> None:
    content = (b"0123456789abcdef" * (leaves * MIB // 16 + 1))[: max(leaves * MIB + rest, 0)]
    assert merkle_root(content) == root_of(content)


def test_a_tree_written_out() -> None:
    a, b, c = (sha(b"\0", bytes([i]) * MIB) for i in range(3))
    content = bytes(MIB) + b"\1" * MIB + b"\2" * MIB
    length = (3 * MIB).to_bytes(8, "little")
    assert merkle_root(content) == sha(b"\2", length, sha(b"\1", sha(b"\1", a, b), c))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_does_not_matter(threads: int) -> None:
    content = bytes(range(256)) * (5 * MIB // 256)
    with knobs.override(num_threads=threads):
        assert merkle_root(memoryview(content)) == root_of(content)


def test_an_error_in_one_thread_ends_the_others_and_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = threading.active_count()
    done: list[int] = []

    def work(start: int, _stop: int) -> None:
        if start == 3 * LEAF_BYTES:
            raise ZeroDivisionError
        if start < 3 * LEAF_BYTES:
            done.append(start)

    with knobs.override(num_threads=3), pytest.raises(ZeroDivisionError):
        map_leaves(64 * LEAF_BYTES, work)
    assert threading.active_count() == before
    assert set(done) <= {0, LEAF_BYTES, 2 * LEAF_BYTES}


def test_large_payloads_are_hashed_side_by_side() -> None:
    both = threading.Barrier(2, timeout=30)
    with knobs.override(num_threads=2):
        assert map_leaves(4 * LEAF_BYTES, lambda *_: both.wait() in {0, 1}) == [True] * 4


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_different_payloads_have_different_roots(one: bytes, other: bytes) -> None:
    assert (merkle_root(one) == merkle_root(other)) == (one == other)


def test_arrays_are_hashed_as_their_bytes() -> None:
    assert merkle_root(memoryview(bytes(8)).cast("I")) == merkle_root(bytes(8))
