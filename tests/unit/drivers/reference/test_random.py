"""Random numbers, TFLite's, NNAPI's and StableHLO's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

from penstock import knobs
from penstock.drivers.reference import random
from penstock.drivers.reference.kernel import Unsupported
from penstock.drivers.reference.random import philox, threefry, words
from penstock.errors import InputError, LimitExceeded, PenstockError, ShapeMismatch
from penstock.ir import DType, NDArray, Operand
from tests.support_litert import Given, Wanted, kernel_of, single_operation
from tests.support_runs import assert_same_runs, penstock_runs
from tests.unit.drivers.reference.alone import alone
from tests.unit.drivers.reference.single_models import check, computed, single
from tests.unit.loaders.files import FileBuilder

F32, I32, I64 = DType.FLOAT32, DType.INT32, DType.INT64
SEEDS = [(1, 2), (0, 5), (7, 0), (-3, 2**40 + 5), (2**31, -7)]
SHAPES = [(6,), (3, 5), (0,), (), (1000,)]
X = np.array([1, 2], np.float32)


def shaped(kind: str, shape: tuple[int, ...], seeds: tuple[int, int]) -> bytes:
    given = [Given(np.array(shape, np.int32), constant=True)]
    return single_operation(kind, given, [Wanted(F32)], seed=seeds[0], seed2=seeds[1])


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_random_uniform_agrees_with_litert_over_three_runs(
    seeds: tuple[int, int], shape: tuple[int, ...]
) -> None:
    assert_same_runs(shaped("RANDOM_UNIFORM", shape, seeds), [[]] * 3)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_random_normal_agrees_with_litert_over_three_runs(
    seeds: tuple[int, int], shape: tuple[int, ...]
) -> None:
    """The generator's bits are LiteRT's; sines and logarithms may round otherwise in the last
    place.
    """
    content = shaped("RANDOM_STANDARD_NORMAL", shape, seeds)
    assert_same_runs(content, [[]] * 3, tolerance=1e-7)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("samples", [1, 5, 64])
@pytest.mark.parametrize("dtype", [I32, I64])
def test_multinomial_agrees_with_litert_over_three_runs(
    seeds: tuple[int, int], samples: int, dtype: DType
) -> None:
    logits = 3 * np.random.default_rng(0).normal(size=(3, 17)).astype(np.float32)
    logits[0, 3], logits[1, 2], logits[2, 5] = np.inf, -np.inf, np.nan
    given = [Given(logits), Given(np.array(samples, np.int32), constant=True)]
    content = single_operation("MULTINOMIAL", given, [Wanted(dtype)], seed=seeds[0], seed2=seeds[1])
    assert_same_runs(content, [[logits]] * 3)


@pytest.mark.parametrize("value", [-np.inf, np.nan, -1e38])
def test_multinomial_of_rows_without_weight_agrees_with_litert(value: float) -> None:
    logits = np.full((1, 3), value, np.float32)
    given = [Given(logits), Given(np.array(4, np.int32), constant=True)]
    content = single_operation("MULTINOMIAL", given, [Wanted(I64)], seed=1, seed2=1)
    assert_same_runs(content, [[logits]])


def test_generators_with_equal_seeds_draw_equal_numbers() -> None:
    file = FileBuilder()
    shape = file.tensor("shape", [1], "INT32", np.array([3], np.int32))
    outputs = [file.tensor(n, [3]) for n in "ab"]
    for output in outputs:
        file.operator("RANDOM_UNIFORM", [shape], [output], {"seed": 1, "seed2": 2})
    assert_same_runs(file.finish([], outputs), [[]] * 2)


def in_a_loop() -> FileBuilder:
    """Three rounds of x = 10 x + a number."""
    file = FileBuilder()
    i, x, n, y = (
        file.tensor(name, shape, dtype)
        for name, shape, dtype in (("i", [], "INT32"), ("x", [2], "FLOAT32")) * 2
    )
    file.operator("WHILE", [i, x], [n, y], {"cond_subgraph_index": 1, "body_subgraph_index": 2})
    file.end([i, x], [n, y])
    file.begin("cond")
    i, x, less = file.tensor("i", [], "INT32"), file.tensor("x", [2]), file.tensor("l", [], "BOOL")
    limit = file.tensor("limit", [], "INT32", np.int32(3))
    file.operator("LESS", [i, limit], [less])
    file.end([i, x], [less])
    file.begin("body")
    i, x, j = file.tensor("i", [], "INT32"), file.tensor("x", [2]), file.tensor("j", [], "INT32")
    one, ten = file.tensor("1", [], "INT32", np.int32(1)), file.tensor("10", value=np.float32(10))
    drawn, scaled, y = (file.tensor(n, [2]) for n in ("drawn", "scaled", "y"))
    shape = file.tensor("shape", [1], "INT32", np.array([2], np.int32))
    file.operator("RANDOM_UNIFORM", [shape], [drawn], {"seed": 1, "seed2": 2})
    file.operator("MUL", [x, ten], [scaled])
    file.operator("ADD", [scaled, drawn], [y])
    file.operator("ADD", [i, one], [j])
    file.end([i, x], [j, y])
    return file


def in_branches() -> FileBuilder:
    file = FileBuilder()
    c, x, y = file.tensor("c", [], "BOOL"), file.tensor("x", [2]), file.tensor("y", [2])
    file.operator("IF", [c, x], [y], {"then_subgraph_index": 1, "else_subgraph_index": 2})
    file.end([c, x], [y])
    for seed in (1, 2):
        file.begin()
        x, drawn, y = (file.tensor(n, [2]) for n in ("x", "drawn", "y"))
        shape = file.tensor("shape", [1], "INT32", np.array([2], np.int32))
        file.operator("RANDOM_UNIFORM", [shape], [drawn], {"seed": seed, "seed2": 0})
        file.operator("ADD", [x, drawn], [y])
        file.end([x], [y])
    return file


def test_random_generator_in_a_loop_continues_between_rounds_only() -> None:
    assert_same_runs(in_a_loop().encode(), [[np.array(0, np.int32), X]] * 2)


def test_random_generator_in_a_branch_restarts() -> None:
    feeds = [[np.array(c), X] for c in (True, False, True)]
    assert_same_runs(in_branches().encode(), feeds)


def draw(seed: int, shape: Callable[[], bytes]) -> list[NDArray]:
    with knobs.override(random_seed=seed):
        return [run[0] for run in penstock_runs(shape(), [[]] * 2)]


def test_random_seed_knob_applies_without_seeds() -> None:
    def content() -> bytes:
        return shaped("RANDOM_UNIFORM", (4,), (0, 0))

    first, second, other = (draw(seed, content) for seed in (7, 7, 8))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(draw(-1, content), draw(-1, content))
    # Seeds whose lower 32 bits are 0 are none.
    none = [draw(s, lambda: shaped("RANDOM_UNIFORM", (4,), (2**32, 0))) for s in (1, 2)]
    assert not np.array_equal(none[0], none[1])


def test_philox_equals_its_published_vectors() -> None:
    """Salmon et al.'s known answers for Philox 4x32-10."""
    ones = 2**64 - 1
    assert words(0, 0, 0, 4).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert words(ones, ones, ones, 4).tolist() == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    key, stream, position = 0x299F31D0A4093822, 0x0370734413198A2E, 0x85A308D3243F6A88
    assert words(key, stream, position, 4).tolist() == [
        0xD16CFE09,
        0x94FDCCEB,
        0x5001E420,
        0x24126EA1,
    ]


def test_random_position_continues_the_sequence() -> None:
    operands = [Operand(I32, (1,)), Operand(I64, ())]
    run = kernel_of("RANDOM_UNIFORM", operands, [Operand(F32, None), Operand(I64, ())], seed=3)
    whole, _ = run([np.array([12], np.int32), np.array(0, np.int64)])
    first, position = run([np.array([5], np.int32), np.array(0, np.int64)])
    rest, last = run([np.array([4], np.int32), position])
    assert position == 2
    assert last == 3
    assert np.array_equal(whole[:5], first)
    assert np.array_equal(whole[8:], rest)
    _, wrapped = run([np.array([4], np.int32), np.array(2**63 - 1, np.int64)])
    assert wrapped == -(2**63)


def test_random_numbers_do_not_depend_on_the_step_size(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for step in (4, 1 << 20):
        monkeypatch.setattr(random, "AT_ONCE", step)
        contents = [shaped(k, (3, 7), (1, 2)) for k in ("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL")]
        results += [penstock_runs(content, [[]] * 2) for content in contents]
        logits = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
        given = [Given(logits), Given(np.array(7, np.int32), constant=True)]
        content = single_operation("MULTINOMIAL", given, [Wanted(I64)], seed=1, seed2=2)
        results.append(penstock_runs(content, [[logits]] * 2))
    for small, large in zip(results[:3], results[3:], strict=True):
        assert all(np.array_equal(a[0], b[0]) for a, b in zip(small, large, strict=True))


def test_random_operations_refuse_too_many_numbers() -> None:
    run = kernel_of("RANDOM_UNIFORM", [Operand(I32, (1,))], [Operand(F32, None)], seed=1)
    with pytest.raises(LimitExceeded, match="random numbers"):
        run([np.array([2**30], np.int32)])
    with pytest.raises(ShapeMismatch):
        run([np.array([-1], np.int32)])
    sample = kernel_of(
        "MULTINOMIAL", [Operand(F32, None), Operand(I32, ())], [Operand(I64, None)], seed=1
    )
    with pytest.raises(LimitExceeded, match="random numbers"):
        sample([np.zeros((2, 2), np.float32), np.array(2**30, np.int32)])
    with pytest.raises(ShapeMismatch):
        sample([np.zeros((2, 0), np.float32), np.array(1, np.int32)])


LOGITS = np.log(np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 1e-9]], np.float32))


def drawn(logits: NDArray, samples: int, *seeds: int) -> NDArray:
    inputs = [logits, np.array(seeds, np.int32)]
    (got,) = alone("RANDOM_MULTINOMIAL", inputs, [DType.INT32], samples=samples)
    return got


def test_random_multinomial_draws_classes_by_probability() -> None:
    got = drawn(LOGITS + 50, 100_000, 37, -42)
    assert got.shape == (2, 100_000)
    for row, logits in zip(got, LOGITS, strict=True):
        shares = np.bincount(row, minlength=3) / row.size
        np.testing.assert_allclose(shares, np.exp(logits), atol=0.01)


def test_random_multinomial_repeats_with_equal_seeds() -> None:
    once = drawn(LOGITS, 1000, 1, 2)
    np.testing.assert_array_equal(drawn(LOGITS, 1000, 1, 2), once)
    np.testing.assert_array_equal(drawn(LOGITS.astype(np.float16), 1000, 1, 2).shape, once.shape)
    for other in ((2, 1), (1, 3), (-1, 2)):
        assert (drawn(LOGITS, 1000, *other) != once).any()


@pytest.mark.parametrize("seeds", [(37, 42), (-5, 0), (0, -(2**31))])
def test_random_multinomial_equals_multinomial(seeds: tuple[int, int]) -> None:
    inputs = [LOGITS, np.array(500, np.int32)]
    (same, *_) = alone("MULTINOMIAL", inputs, [DType.INT32], seed=seeds[0], seed2=seeds[1])
    np.testing.assert_array_equal(drawn(LOGITS, 500, *seeds), same)


def test_random_multinomial_without_seeds_differs_between_runs() -> None:
    assert (drawn(LOGITS, 1000, 0, 0) != drawn(LOGITS, 1000, 0, 0)).any()


def test_random_multinomial_never_draws_infinite_logits() -> None:
    logits = np.array([[math.inf, 1, math.nan, 1, -math.inf]], np.float32)
    assert set(drawn(logits, 1000, 5, 6).reshape(-1).tolist()) == {1, 3}
    with pytest.raises(InputError, match="no class"):
        drawn(np.full((2, 3), -math.inf, np.float32), 4, 5, 6)
    with pytest.raises(InputError, match="no class"):
        drawn(np.empty((2, 0), np.float32), 4, 5, 6)


def test_random_multinomial_of_no_samples_is_empty() -> None:
    assert drawn(np.empty((0, 3), np.float32), 4, 5, 6).shape == (0, 4)


def test_random_multinomial_refuses_wrong_shapes() -> None:
    with pytest.raises(ShapeMismatch, match="seeds"):
        drawn(LOGITS, 4, 1, 2, 3)
    with pytest.raises(ShapeMismatch, match="RANDOM_MULTINOMIAL to the shape"):
        drawn(LOGITS, 2**31 - 1, 1, 2)


STATES: Final = {
    "PHILOX": [[1, 2], [7, 2**64 - 2], [3, 2**32 - 1, 9], [5, 2**64 - 1, 2**64 - 1]],
    "DEFAULT": [[2**63 + 5, 2**40], [1, 2, 3]],
    "THREEFRY": [[1, 2], [2**64 - 1, 2**64 - 1], [2**35, 2**32 - 1]],
}


@pytest.mark.parametrize("algorithm", STATES)
@pytest.mark.parametrize("dtype", [DType.INT32, DType.UINT32, DType.INT64, DType.UINT64])
def test_rng_bit_generator_agrees_with_litert(algorithm: str, dtype: DType) -> None:
    for numbers in STATES[algorithm]:
        state = np.array(numbers, np.uint64)
        for shape in ((), (3,), (2, 3, 5)):
            outputs = [(DType.UINT64, state.shape), (dtype, shape)]
            kind = "STABLEHLO_RNG_BIT_GENERATOR"
            check(single(kind, [state], outputs, {"algorithm": algorithm}), [state])


def test_random_generators_equal_their_known_answers() -> None:
    """The zero and all-ones vectors of the Random123 distribution."""
    zero, ones = np.zeros(1, np.uint64), np.full(1, 2**64 - 1, np.uint64)
    words = [int(w[0]) for w in philox(zero[0], zero, zero)]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    words = [int(w[0]) for w in philox(ones[0], ones, ones)]
    assert words == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert [int(w[0]) for w in threefry(zero[0], zero)] == [0x6B200159, 0x99BA4EFE]
    assert [int(w[0]) for w in threefry(ones[0], ones)] == [0x1CB996FC, 0xBB002BE7]


@pytest.mark.parametrize(("algorithm", "length"), [("PHILOX", 1), ("DEFAULT", 4), ("THREEFRY", 3)])
def test_rng_bit_generator_refuses_states_of_another_length(algorithm: str, length: int) -> None:
    state = np.zeros(length, np.uint64)
    outputs = [(DType.UINT64, state.shape), (DType.UINT32, (2,))]
    model = single("STABLEHLO_RNG_BIT_GENERATOR", [state], outputs, {"algorithm": algorithm})
    with pytest.raises(PenstockError, match="state"):
        computed(model, [state])


def test_rng_bit_generator_refuses_other_types_and_unknown_sizes() -> None:
    state = Operand(DType.UINT64, (2,))
    for made in (Operand(DType.UINT8, (2,)), Operand(DType.UINT32, (None,))):
        with pytest.raises(Unsupported):
            kernel_of("STABLEHLO_RNG_BIT_GENERATOR", [state], [state, made], algorithm="PHILOX")
    with pytest.raises(Unsupported):
        kernel_of(
            "STABLEHLO_RNG_BIT_GENERATOR",
            [Operand(DType.INT64, (2,))],
            [state, Operand(DType.UINT32, (2,))],
            algorithm="PHILOX",
        )
