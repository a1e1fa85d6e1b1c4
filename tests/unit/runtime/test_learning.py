"""What runs of a network took corrects the plan of its next compile."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import penstock
from penstock.cache import Cache
from penstock.cache.naming import LEARNED
from penstock.cache.verdicts import LearnedTimes, ObservedPlan
from penstock.execution.variant import MOST_TIMES
from penstock.export import tflite
from penstock.ir import DType, ModelBuilder
from penstock.partitioning.costs import EngineCosts
from penstock.runtime import watching
from penstock.runtime.learning import corrected, is_off, mark_of, says_more
from penstock.runtime.watching import LEAST_RUNS, WARM_UP

X: Final = np.ones((1, 4), np.float32)
DEVICES: Final = ["llvm", "reference"]
SLOW_NS: Final = 1_000_000_000


@pytest.fixture
def model(tmp_path: Path) -> Path:
    net = ModelBuilder()
    x = net.input(DType.FLOAT32, (1, 4), "x")
    path = tmp_path / "relu.tflite"
    made = net.build(net.operation("RELU", [x], [(DType.FLOAT32, (1, 4))]))
    path.write_bytes(tflite.write(made))
    return path


def session(model: Path, *times: int) -> penstock.ExecutionPlan:
    """The plan of a compile whose runs take *times*, in nanoseconds."""
    cache = model.parent / "cache"
    compiled = penstock.compile(model, devices=DEVICES, cache=cache, num_threads=1)
    recorded = compiled.executable.base.times
    assert recorded is not None
    recorded += times
    plan = compiled.plan
    compiled.close()
    del compiled
    gc.collect()
    return plan


def device(plan: penstock.ExecutionPlan) -> str:
    return plan.operations[0].device


def test_a_plan_that_proved_slow_is_replaced_and_says_why(model: Path) -> None:
    first = session(model, *[SLOW_NS] * 30)
    assert device(first) == "llvm"
    assert "corrected" not in first.basis
    second = session(model, *[20_000] * 30)
    assert device(second) == "reference"
    assert (
        "corrected by runs, without which llvm would be used: llvm took 1 s a run" in second.basis
    )
    third = session(model)
    assert device(third) == "reference"
    assert "reference took 20 us a run" in third.basis
    assert third.predicted_ns == pytest.approx(20_000, rel=0.01)


def test_a_kept_plan_is_made_again_only_if_runs_say_something_else(model: Path) -> None:
    cache = model.parent / "cache"

    def outcome(*times: int) -> str:
        with penstock.compile(model, devices=DEVICES, cache=cache, num_threads=1) as compiled:
            kept = compiled.receipt.plan
            assert kept is not None
            assert compiled.executable.base.times is not None
            compiled.executable.base.times += times
        del compiled
        gc.collect()
        return f"{kept.outcome} {kept.reason}".strip()

    assert outcome(*[SLOW_NS] * 30).startswith("miss")
    again = "miss IngredientChanged: runs of the network showed what it takes"
    assert outcome(*[20_000] * 30) == again
    assert outcome() == again
    assert outcome(*[21_000] * 30) == "hit"
    assert outcome() == "hit"


@pytest.mark.parametrize("count", [0, WARM_UP + LEAST_RUNS - 1])
def test_few_runs_teach_nothing(model: Path, count: int) -> None:
    session(model, *[SLOW_NS] * count)
    assert not (model.parent / "cache" / LEARNED).exists()


def test_a_busy_machine_teaches_nothing(model: Path) -> None:
    """Every fifth run is disturbed less, and the median is far from it."""
    predicted = session(model).predicted_ns
    assert predicted is not None
    session(model, *[predicted * factor for factor in (2, 9, 9, 9, 9)] * 7)
    assert not (model.parent / "cache" / LEARNED).exists()


def test_runs_that_take_what_was_predicted_write_nothing(model: Path) -> None:
    predicted = session(model).predicted_ns
    assert predicted is not None
    session(model, *[predicted] * 30)
    assert not (model.parent / "cache" / LEARNED).exists()


def test_altered_records_and_a_cleared_cache_count_as_nothing_learned(model: Path) -> None:
    cache = model.parent / "cache"
    session(model, *[SLOW_NS] * 30)
    (file,) = (cache / LEARNED).iterdir()
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"ns":1', b'"ns":2'))
    assert device(session(model)) == "llvm"
    file.write_bytes(content)
    assert device(session(model)) == "reference"
    Cache(cache).clear()
    assert device(session(model)) == "llvm"


def test_only_so_many_runs_are_timed(model: Path) -> None:
    with penstock.compile(model, devices=DEVICES, cache=model.parent / "cache") as compiled:
        variant = compiled.executable.base
        times = variant.times
        assert times == []
        for _ in range(MOST_TIMES + 3):
            compiled.run([X])
        assert len(times) == MOST_TIMES
        assert min(times) > 0
        assert variant.times is None


def test_without_a_cache_or_a_choice_no_run_is_timed(model: Path) -> None:
    for devices, cache in ((DEVICES, None), (["reference"], model.parent / "cache")):
        with penstock.compile(model, devices=devices, cache=cache) as compiled:
            assert compiled.executable.base.times is None
    policy = penstock.Policy(placement="nnapi")
    with penstock.compile(model, cache=model.parent / "c", policy=policy) as compiled:
        assert compiled.executable.base.times is None


def test_a_forked_child_keeps_nothing(tmp_path: Path) -> None:
    given = [SLOW_NS] * 30, str(tmp_path), "0" * 64, ("a",), 1_000
    watching.end(os.getpid() + 1, *given)
    assert LearnedTimes(tmp_path).load("0" * 64) is None
    watching.end(os.getpid(), *given)
    found = LearnedTimes(tmp_path).load("0" * 64)
    assert found is not None
    assert found.plans == (ObservedPlan(("a",), 1_000, SLOW_NS, 0, 30 - WARM_UP),)


def observed(ns: int, *, predicted: int = 1_000, spread: int = 0, on: str = "a") -> ObservedPlan:
    return ObservedPlan((on,), predicted, ns, spread, 40)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (observed(1_200), False),
        (observed(850), False),
        (observed(1_300), True),
        (observed(700), True),
        (observed(1_300, spread=400), False),
    ],
)
def test_a_time_is_off_beyond_a_quarter_and_its_own_spread(
    plan: ObservedPlan, expected: bool
) -> None:
    assert is_off(plan) is expected


def test_quicker_of_two_sessions_counts() -> None:
    assert says_more(observed(1_000), observed(2_000), is_first=False)
    assert not says_more(observed(1_900), observed(2_000), is_first=False)
    assert not says_more(observed(4_000), observed(2_000), is_first=False)
    assert says_more(observed(1_000), None, is_first=False)
    assert not says_more(observed(1_000), None, is_first=True)


def test_devices_that_have_not_run_must_be_better_by_the_error() -> None:
    one = EngineCosts({"ADD float32": (100, 0, 0, 0)}, {}, {}, 10, 0, 1.5, "")
    costs = {"a": one, "b": one}
    found = corrected(costs, [observed(3_000)], [1_000])
    assert found["a"].of("ADD float32", (1, 0, 0, 0)) == 300
    assert found["b"].of("ADD float32", (1, 0, 0, 0)) == 150
    assert corrected(costs, [observed(3_000)], [None]) is costs
    assert corrected(costs, [observed(3_000, on="c")], [1_000]) is costs


def test_the_mark_changes_with_what_runs_say_beyond_noise() -> None:
    base = mark_of([observed(2_000), observed(900, on="b")])
    assert base == mark_of([observed(910, on="b"), observed(2_050)])
    assert base != mark_of([observed(3_000), observed(900, on="b")])
    assert base != mark_of([observed(2_000)])
