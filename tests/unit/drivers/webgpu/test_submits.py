"""What each submit of a run has, how predictions follow the runs, and that parts are the whole."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from penstock import hal
from penstock.compiler.program import Access, Program, Tensor, along
from penstock.drivers.webgpu import submits
from penstock.drivers.webgpu.calls import Binding, Call
from penstock.drivers.webgpu.emit import module
from penstock.drivers.webgpu.running import Run
from penstock.drivers.webgpu.submits import SUBMIT_NS, Pace, Submit, planned
from penstock.errors import Cancelled, MissedDeadline
from penstock.ir import DType, Model, ModelBuilder, NDArray
from tests.support_webgpu import manifest_of, needs_webgpu, run_program, software
from tests.unit.drivers.webgpu.test_nest import copied, program_of

MS = 1_000_000
F32 = DType.FLOAT32


def call(ms: float, groups: tuple[int, int] = (100, 1), *, divides: bool = False) -> Call:
    bindings = (Binding("memory", 0, 256),)
    return Call(0, bindings, (*groups, 1), "nest", "k", (), round(ms * MS), divides)


def numbers(found: Sequence[Submit]) -> list[list[int]]:
    return [[piece.call for piece in submit.pieces] for submit in found]


def test_a_submit_has_at_most_so_much_work_or_one_kernel() -> None:
    calls = [call(ms) for ms in (20, 20, 20, 90, 0.001)]
    assert numbers(Pace(calls).submits) == [[0, 1], [2], [3], [4]]
    assert numbers(Pace([]).submits) == [[]]


@pytest.mark.parametrize("groups", [(1, 1), (7, 1), (1000, 3), (2, 500), (3, 3), (65_535, 40)])
@pytest.mark.parametrize("ms", [1.0, 51.0, 480.0, 20_000.0])
def test_pieces_cover_each_workgroup_once(groups: tuple[int, int], ms: float) -> None:
    one = call(ms, groups, divides=True)
    found = planned([one], [ms * MS])
    pieces = [piece for submit in found for piece in submit.pieces]
    area = sum(piece.columns * piece.rows for piece in pieces)
    assert area == math.prod(groups)
    if math.prod(groups) < 10_000:
        seen = np.zeros(groups, int)
        for p in pieces:
            seen[p.column : p.column + p.columns, p.row : p.row + p.rows] += 1
        assert (seen == 1).all()
    assert [p.is_first for p in pieces] == [True, *[False] * (len(pieces) - 1)]
    assert [p.is_last for p in pieces] == [*[False] * (len(pieces) - 1), True]
    least = ms * MS / math.prod(groups)
    for submit in found:
        assert len(submit.pieces) == 1 or submit.predicted_ns <= SUBMIT_NS
        # A workgroup more than the mean, where they do not divide.
        assert submit.predicted_ns <= SUBMIT_NS + least * (sum(groups) + 1)


def taken(pace: Pace, truth_ms: Sequence[float]) -> list[float]:
    """What the submits of *pace* take if kernels take *truth_ms*."""
    calls = pace._calls
    return [
        sum(truth_ms[p.call] * MS * p.share_of(calls[p.call]) for p in submit.pieces)
        for submit in pace.submits
    ]


def test_a_run_that_is_quicker_than_estimated_becomes_one_submit() -> None:
    pace = Pace([call(ms, divides=True) for ms in (400, 30, 900)])
    assert len(pace.submits) > 20
    pace.learn(pace.submits, taken(pace, (4, 0.5, 9)))
    assert numbers(pace.submits) == [[0, 1, 2]]
    before = pace.submits
    pace.learn(pace.submits, taken(pace, (4.5, 0.5, 8)))
    assert pace.submits is before


def test_a_run_that_is_slower_than_estimated_is_divided() -> None:
    truth = (500.0, 30.0, 5.0)
    pace = Pace([call(ms, divides=True) for ms in (5, 30, 5)])
    assert numbers(pace.submits) == [[0, 1, 2]]
    for _ in range(12):
        pace.learn(pace.submits, taken(pace, truth))
    assert max(taken(pace, truth)) <= submits.STEADY * SUBMIT_NS


def test_one_slow_run_divides_no_submit() -> None:
    pace = Pace([call(30, divides=True)])
    pace.learn(pace.submits, taken(pace, (30,)))
    before = pace.submits
    pace.learn(pace.submits, taken(pace, (60,)))
    assert pace.submits is before


def divided_and_whole(program: Program, inputs: list[NDArray]) -> tuple[list[NDArray], int]:
    """The results of *program* by many submits, after those of one are seen to be the same."""
    whole = run_program(program, inputs)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "DIVIDED_NS", 1)
        patched.setattr(submits, "SUBMIT_NS", 1_000)
        manifest, _ = manifest_of(program)
        pieces = [p for s in Pace(manifest.calls).submits for p in s.pieces]
        parts = run_program(program, inputs)
    for one, other in zip(whole, parts, strict=True):
        assert one.tobytes() == other.tobytes()
    return parts, len(pieces)


@needs_webgpu
def test_a_kernel_in_parts_gives_the_same_bits() -> None:
    tensors = [Tensor(F32, (5000,))] * 2
    program = program_of(
        [copied(F32, (5000,), Access(0, along(0)), Access(1, along(0)))], tensors, 1
    )
    given = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    (found,), pieces = divided_and_whole(program, [given])
    assert pieces > 10
    assert np.array_equal(found, given)


@needs_webgpu
@pytest.mark.parametrize("rows", [200, 120])
def test_products_in_parts_give_the_same_bits(rows: int) -> None:
    """With many rows all threads of a workgroup have the same channels; with few they do not."""
    rng = np.random.default_rng(1)
    builder = ModelBuilder()
    x = builder.input(F32, (rows, 12), "x")
    w = builder.constant(rng.normal(size=(40, 12)).astype(np.float32))
    (y,) = builder.operation("FULLY_CONNECTED", [x, w, None], [(F32, (rows, 40))])
    model = builder.build([y])
    given = rng.normal(size=(rows, 12)).astype(np.float32)
    found = []
    for submit_ns, divided_ns in ((SUBMIT_NS, module.DIVIDED_NS), (1_000, 1)):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, "DIVIDED_NS", divided_ns)
            patched.setattr(submits, "SUBMIT_NS", submit_ns)
            prepared = prepare(model)
            output = np.zeros((rows, 40), np.float32)
            for _ in range(3):
                prepared.execute(request(given, output), hal.ExecutionConfig())
            found.append((output.tobytes(), len(prepared.executable.code.pace.submits)))
    assert found[0] == (found[1][0], 1)
    assert found[1][1] >= 3


def prepare(model: Model) -> Any:
    return software().prepare_model(model, hal.PrepareConfig())


def request(given: NDArray, output: NDArray) -> hal.Request:
    return hal.Request((hal.HostMemory(given),), (hal.HostMemory(output),))


@needs_webgpu
@pytest.mark.parametrize("limit", ["cancel", "deadline"])
def test_a_limit_that_is_reached_during_a_run_ends_it_before_the_next_submit(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DIVIDED_NS", 1)
    monkeypatch.setattr(submits, "SUBMIT_NS", 1_000)
    builder = ModelBuilder()
    x = builder.input(F32, (5000,), "x")
    (y,) = builder.operation("NEG", [x], [(F32, (5000,))])
    prepared = prepare(builder.build([y]))
    given, output = np.ones(5000, np.float32), np.zeros(5000, np.float32)
    prepared.execute(request(given, output), hal.ExecutionConfig())
    assert (output == -1).all()
    # What the first run took is not learned.
    assert len(prepared.executable.code.pace.submits) > 10
    token, count = hal.CancelToken(), 0
    ended = time.monotonic_ns() + 3600 * 10**9
    submit = Run._submit

    def counted(run: Run, *given: Any, **more: Any) -> None:
        nonlocal count
        count += 1
        submit(run, *given, **more)
        if count == 3 and limit == "cancel":
            token.set()
        if count == 3 and limit == "deadline":
            monkeypatch.setattr(time, "monotonic_ns", lambda: ended + 1)

    monkeypatch.setattr(Run, "_submit", counted)
    config = hal.ExecutionConfig(cancel=token)
    if limit == "deadline":
        config = hal.ExecutionConfig(deadline_ns=ended)
    with pytest.raises((Cancelled, MissedDeadline)):
        prepared.execute(request(given, output), config)
    assert count == 3
    monkeypatch.undo()
    prepared.execute(request(given, output), hal.ExecutionConfig())
    assert (output == -1).all()
