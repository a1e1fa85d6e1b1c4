"""Random numbers: LiteRT's, from run to run, where there are seeds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from penstock import knobs
from penstock.drivers.reference import random
from penstock.drivers.reference.random import words
from penstock.errors import LimitExceeded, ShapeMismatch
from penstock.ir import DType, NDArray, Operand
from tests.support_litert import Given, Wanted, kernel_of, single_operation
from tests.support_runs import assert_same_runs, penstock_runs
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
