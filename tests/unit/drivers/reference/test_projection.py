"""Hashes of tensors and n-grams of strings, bit for bit against LiteRT."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.drivers.reference import lookup
from penstock.drivers.reference.projection import fingerprints
from penstock.errors import LimitExceeded, ShapeMismatch
from penstock.ir import DType, NDArray, Operand
from tests.support_litert import Given, Wanted, assert_agrees, kernel_of, run_alone
from tests.support_runs import strings

I32 = DType.INT32


@pytest.mark.parametrize("kind", ["SPARSE", "DENSE"])
@pytest.mark.parametrize("hashes", [(2, 3), (1, 32), (3, 31)])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 12, 13, 28, 29, 60, 61, 64, 124, 125, 200])
def test_lsh_projection_of_rows_of_any_length_agrees_with_litert(
    kind: str, hashes: tuple[int, int], size: int
) -> None:
    """With the four bytes of the seed the rows take every branch of the fingerprint."""
    rng = np.random.default_rng(size)
    arguments = [
        Given(rng.normal(size=hashes).astype(np.float32), constant=True),
        Given(rng.integers(0, 256, (3, size)).astype(np.uint8)),
    ]
    if size % 2:
        arguments.append(Given(rng.normal(size=3).astype(np.float32)))
    assert_agrees(run_alone("LSH_PROJECTION", arguments, [Wanted(I32)], type=kind))


@pytest.mark.parametrize("dtype", [I32, DType.INT64, DType.FLOAT32, DType.BOOL])
def test_lsh_projection_of_any_type_agrees_with_litert(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    arguments = [
        Given(rng.normal(size=(4, 8)).astype(np.float32), constant=True),
        Given(rng.integers(0, 2, (5, 3)).astype(dtype.numpy)),
    ]
    assert_agrees(run_alone("LSH_PROJECTION", arguments, [Wanted(I32)], type="SPARSE"))


@pytest.mark.parametrize("items", [("a",), ("a", "bb", "ccc"), ("", "x" * 70), ("",) * 5])
def test_lsh_projection_of_strings_agrees_with_litert(items: tuple[str, ...]) -> None:
    rng = np.random.default_rng(1)
    arguments = [
        Given(rng.normal(size=(4, 8)).astype(np.float32), constant=True),
        Given(strings(*items)),
    ]
    assert_agrees(run_alone("LSH_PROJECTION", arguments, [Wanted(I32)], type="DENSE"))


def test_lsh_projection_refuses_a_hash_without_functions() -> None:
    operands = [Operand(DType.FLOAT32, (1, 2)), Operand(I32, None)]
    run = kernel_of("LSH_PROJECTION", operands, [Operand(I32, None)], type="DENSE")
    with pytest.raises(ShapeMismatch):
        run([np.zeros((1, 2), np.float32), np.zeros((0, 2), np.int32)])


@given(st.lists(st.binary(min_size=40, max_size=40), min_size=1, max_size=5))
def test_strings_are_hashed_apart_from_their_neighbours(items: list[bytes]) -> None:
    rows = np.frombuffer(b"".join(items), np.uint8).reshape(len(items), -1)
    alone = [fingerprints(row[None]).item() for row in rows]
    assert fingerprints(rows).tolist() == alone


TEXTS = ["the quick brown fox jumps", " a  b\tc\n d ", "", "one", "a b c", "  x y", " ", "a\vb\fc"]


def grams(text: str | bytes, **attributes: Any) -> list[bytes]:
    inputs, outputs = [Operand(DType.STRING, (1,))], [Operand(DType.STRING, (None,))]
    (result,) = kernel_of("SKIP_GRAM", inputs, outputs, **attributes)([strings(text)])
    return [bytes(g) for g in result.tolist()]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("skip", [-1, 0, 1, 2])
@pytest.mark.parametrize("every", [False, True])
def test_skip_gram_agrees_with_litert(size: int, skip: int, every: bool) -> None:
    options: dict[str, Any] = {
        "ngram_size": size,
        "max_skip_size": skip,
        "include_all_ngrams": every,
    }
    for text in TEXTS:
        arguments = [Given(strings(text))]
        found = run_alone("SKIP_GRAM", arguments, [Wanted(DType.STRING)], **options)
        assert_agrees(found)


@given(st.integers(0, 7), st.integers(1, 4), st.integers(0, 6), st.booleans())
def test_skip_gram_returns_combinations_with_small_gaps(
    count: int, size: int, skip: int, every: bool
) -> None:
    words = [str(n) for n in range(count)]
    sizes = range(1 if every else size, size + 1)
    wanted = {
        " ".join(words[i] for i in places).encode()
        for n in sizes
        for places in combinations(range(count), n)
        if all(b - a <= skip + 1 for a, b in pairwise(places))
    }
    found = grams(" ".join(words), ngram_size=size, max_skip_size=skip, include_all_ngrams=every)
    assert set(found) == (wanted if count >= size else set())
    assert len(found) == len(set(found))


def test_skip_gram_refuses_output_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "MOST_BYTES", 10_000)
    text = " ".join("abcdefghijklmnopqrst")
    with pytest.raises(LimitExceeded, match="10000 bytes"):
        grams(text, ngram_size=10, max_skip_size=2**31 - 1, include_all_ngrams=True)


def test_skip_gram_reads_only_the_first_string() -> None:
    inputs, outputs = [Operand(DType.STRING, (2,))], [Operand(DType.STRING, (None,))]
    run = kernel_of("SKIP_GRAM", inputs, outputs, ngram_size=1, max_skip_size=0)
    results: NDArray = run([strings("a b", "c d")])[0]
    assert results.tolist() == [b"a", b"b"]
