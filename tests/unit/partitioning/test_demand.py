from __future__ import annotations

import pytest

import penstock
from penstock import knobs
from penstock.errors import LimitExceeded
from penstock.memory import limits
from penstock.partitioning.placement import place
from penstock.partitioning.work import (
    LEAST_LIMIT,
    check_memory,
    peak_of,
    run_limit,
    times_of,
    workspace_of,
)
from penstock.runtime.discovery import manager
from tests.support_bounds import broadcast, chain, convolution, doubling, pool, product, summed
from tests.unit.loaders.files import FileBuilder


def test_values_count_until_their_last_reader() -> None:
    # Input and output of 16 bytes, and at a time two of those in between.
    assert peak_of(penstock.load(chain(10))).nbytes == 4 * 16
    assert peak_of(penstock.load(chain(100))).nbytes == 4 * 16


def test_peak_is_at_the_operation_that_makes_the_large_value() -> None:
    peak = peak_of(penstock.load(summed(1000)))
    assert (peak.nbytes, peak.operation) == (4 * 1_000_000 + 8, 0)


def test_inputs_and_outputs_count_throughout() -> None:
    peak = peak_of(penstock.load(broadcast(1000)))
    assert (peak.nbytes, peak.operation) == (4 * 1_000_000 + 4, None)


def test_doubling_demands_at_least_its_last_value() -> None:
    assert peak_of(penstock.load(doubling(20))).nbytes >= 16 * 2**20


def test_value_of_unknown_shape_counts_as_nothing() -> None:
    file = FileBuilder()
    x = file.tensor("x", [1, 4], shape_signature=[-1, 4])
    y = file.tensor("y", [1, 4], shape_signature=[-1, 4])
    file.operator("RELU", [x], [y])
    assert peak_of(penstock.load(file.finish([x], [y]))).nbytes == 0


def test_window_of_a_convolution_keeps_a_place_for_each_pixel() -> None:
    model = penstock.load(convolution(31, 100))
    assert workspace_of(model.entry, model.operations[0]) == 8 * 100 * 100 * 31 * 31


def test_workspace_of_a_large_window_is_bounded_by_the_picture() -> None:
    model = penstock.load(pool(2**31 - 1, 8, "AVERAGE_POOL_2D", 8))
    assert workspace_of(model.entry, model.operations[0]) == 8 * 16 * 16


def test_other_operations_keep_nothing_beside_their_values() -> None:
    model = penstock.load(chain(1))
    assert workspace_of(model.entry, model.operations[0]) == 0


def test_model_within_the_limit_passes() -> None:
    with knobs.override(max_run_mib=4):
        assert run_limit() == 4 << 20
        check_memory(penstock.load(broadcast(1000)))


def test_model_beyond_the_limit_is_refused_with_bytes_and_knob() -> None:
    with (
        knobs.override(max_run_mib=3),
        pytest.raises(LimitExceeded, match=r"4000004 bytes .* 3145728 \(knob max_run_mib\)"),
    ):
        check_memory(penstock.load(broadcast(1000)))


def test_limit_is_half_of_the_memory_and_a_gibibyte_at_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from penstock.partitioning import work

    assert run_limit() == max(LEAST_LIMIT, limits.available_memory() // 2)
    monkeypatch.setattr(work, "available_memory", lambda: 1 << 20)
    assert run_limit() == 1 << 30


def test_window_that_is_gone_over_takes_longer_at_worst_than_a_product() -> None:
    pooled, multiplied = penstock.load(pool(9, 64)), penstock.load(convolution(9, 64, 64))
    windows, products = (times_of(m.entry, m.operations[0])[1] for m in (pooled, multiplied))
    # The product has twenty times as many.
    assert windows > products / 3


def test_step_names_the_operation_that_takes_longest() -> None:
    plan = place(penstock.load(product(1000)), manager.choose(["reference"]))
    (step,) = plan.steps
    assert step.worst is not None
    assert step.worst.operation == 2
    assert step.worst.most < step.worst.total
