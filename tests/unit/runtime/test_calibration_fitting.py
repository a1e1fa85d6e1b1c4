"""The costs that a calibration finds in the times of samples, and what counts of an operation."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from penstock.ir import DType
from penstock.partitioning.costs import LOOP, EngineCosts, Features, cell_of, features_of
from penstock.runtime.calibration import fitting
from penstock.runtime.calibration.draft import Draft
from penstock.runtime.calibration.fitting import Timing, fit
from penstock.runtime.calibration.samples import EDGE, NETWORK, STEP, TINY, samples

EVERY: Final = {sample.name: sample for sample in samples()}


def timed(cell: str, ns: float, *features: Features, edge: float = 0.0, name: str = "") -> Timing:
    return Timing(name or cell, cell, tuple((cell, one) for one in features), edge, ns)


def test_least_squares_within_bounds_finds_what_made_the_data() -> None:
    random = np.random.default_rng(0)
    rows, truth = random.random((12, 4)), np.array([3.0, 0.0, 0.5, 2.0])
    assert fitting.bounded_least_squares(rows, rows @ truth) == pytest.approx(truth, abs=1e-6)
    least, most = np.array([0.0, 0.0, 1.0, 0.0]), np.array([2.0, 9.0, 9.0, 9.0])
    limited = fitting.bounded_least_squares(
        rows, rows @ np.array([3.0, -1.0, 0.5, 1.0]), least, most
    )
    assert (limited >= least - 1e-9).all()
    assert (limited <= most + 1e-9).all()


def test_no_kind_multiplies_quicker_than_a_dense_convolution() -> None:
    """The bytes alone explain the samples of the other kind exactly."""
    sizes = [(1.0, 1e4, 2e4, 0.0), (1.0, 4e4, 6e4, 0.0), (1.0, 16e4, 18e4, 0.0)]
    timings = [timed(STEP, 1.0, (1, 1, 1, 0))]
    timings += [timed("CONV_2D int8", 1 + 0.05 * f[1], f) for f in SIZES]
    timings += [timed("CONV_2D few int8", 1 + f[2], f) for f in sizes]
    found = fit(timings, None, "a test").cells
    assert found["CONV_2D int8"][1] > 0.03
    assert found["CONV_2D few int8"][1] >= found["CONV_2D int8"][1]


def test_errors_of_shipped_costs_are_no_property_of_the_machine() -> None:
    """The shipped costs say half of what one sample takes. Here everything takes three times as
    long.
    """
    sizes: list[Features] = [(1, 1e4, 1e4, 0), (1, 1e5, 1e5, 0), (1, 1e6, 1e6, 0)]
    cell = "ADD float32"
    shipped = EngineCosts({cell: (0.0, 1.0, 1.0, 0.0)}, {}, {}, 1_000, 0.0, 1.5, "shipped")
    before = {f"{n}": 1_000 + 2 * n * (2 if n == 1e4 else 1) for _, n, _, _ in sizes}
    few = [timed(cell, 3 * before[f"{f[1]}"], f, name=f"{f[1]}") for f in sizes[:1]]
    step = timed(STEP, 3_000, (1, 1, 1, 0))
    assert fit([step, *few], shipped, "a test", before).cells[cell][1] == pytest.approx(3, rel=0.01)
    assert fit([step, *few], shipped, "a test").cells[cell][1] > 4


def test_a_convolution_to_few_channels_counts_those_of_a_vector() -> None:
    def products(outputs: int) -> float:
        draft = Draft(DType.FLOAT32)
        model = draft.build(draft.convolution(draft.input((1, 8, 8, 16)), outputs, 3))
        return features_of(model.entry, model.operations[0])[1]

    assert products(1) == products(5) == products(8)
    assert products(9) == products(16) == 2 * products(8)


SIZES: Final[list[Features]] = [
    (4, 4e6, 4e5, 1e5), (4, 1e6, 8e5, 2e4), (4, 4e7, 2e5, 3e6), (1, 3e5, 1e5, 1e3),
    (4, 9e6, 9e5, 4e5),
]  # fmt: skip
TRUTH: Final[Features] = (500.0, 0.01, 0.02, 0.005)


def time_of(features: Features) -> float:
    return sum(a * b for a, b in zip(TRUTH, features, strict=True))


def test_a_fit_finds_the_costs_that_made_the_times() -> None:
    step = 2_000.0
    timings = [timed(STEP, step, (1, 16, 128, 0))]
    timings += [timed("CONV_2D int8", step + time_of(f), f) for f in SIZES]
    found = fit(timings, None, "a test")
    assert found.step_ns == step
    for features in SIZES:
        assert found.of("CONV_2D int8", features) == pytest.approx(time_of(features), rel=0.02)


def test_cost_of_inputs_is_not_counted_for_operations() -> None:
    timings = [
        timed(STEP, 1_000, (1, 1, 1, 0)),
        timed(EDGE, 1_000 + 3_000 + 2_000, (1, 1, 1, 0), edge=3_000),
        timed(EDGE, 1_000 + 3_000 + 8_000, *[(1, 1, 1, 0)] * 4, edge=3_000),
        timed("ADD int8", 1_000 + 3_000 + 9_000, (1, 100, 100, 0), edge=3_000),
    ]
    found = fit(timings, None, "a test")
    assert found.edge_ns == pytest.approx(1.0)
    assert found.of("ADD int8", (1, 100, 100, 0)) == pytest.approx(9_000, rel=0.01)


def test_few_sizes_scale_the_shipped_costs_and_unmeasured_cells_follow() -> None:
    shipped = EngineCosts({"CONV_2D int8": TRUTH, "ADD int8": TRUTH}, {}, {}, 1_000, 0, 1.8, "")
    slow = [timed("CONV_2D int8", 3_000 + 3 * time_of(f), f) for f in SIZES[:2]]
    found = fit([timed(STEP, 3_000, (1, 1, 1, 0)), *slow], shipped, "a test")
    assert found.error == fitting.PARTIAL_ERROR
    for cell in ("CONV_2D int8", "ADD int8"):
        assert found.of(cell, SIZES[2]) == pytest.approx(3 * time_of(SIZES[2]), rel=0.01)


def test_networks_show_by_how_much_operations_cost_more_together() -> None:
    """Every network takes twice what its operations take alone."""
    timings = [timed(STEP, 1.0, (1, 1, 1, 0))]
    timings += [timed("CONV_2D int8", 1 + time_of(f), f) for f in SIZES]
    networks = [SIZES[:2], SIZES, SIZES[2:]]
    for sizes in networks:
        parts = tuple(("CONV_2D int8", size) for size in sizes)
        name = f"{NETWORK} int8"
        timings.append(Timing(name, name, parts, 0, 2 * sum(map(time_of, sizes))))
    found = fit(timings, None, "a test")
    assert found.together["CONV_2D int8"] > 1.5
    for sizes in networks:
        times = [found.of("CONV_2D int8", size) or 0.0 for size in sizes]
        assert sum(times) == pytest.approx(2 * sum(map(time_of, sizes)), rel=0.1)


def test_element_types_and_families_have_scales_of_their_own() -> None:
    cells = (
        "CONV_2D int8",
        "CONV_2D float32",
        "CONV_2D 1x1 uint8",
        "CONV_2D 1x1 float32",
        "PAD int8",
    )
    shipped = EngineCosts(dict.fromkeys(cells, TRUTH), {}, {}, 1_000, 0, 1.8, "")
    timings = [timed(STEP, 1_000, (1, 1, 1, 0))]
    for cell, scale in (("CONV_2D int8", 8.0), ("CONV_2D float32", 2.0), ("PAD int8", 1.0)):
        timings += [timed(cell, 1_000 + scale * time_of(f), f) for f in SIZES]
    found = fit(timings, shipped, "a test")
    for cell, scale in (("CONV_2D 1x1 uint8", 8.0), ("CONV_2D 1x1 float32", 2.0)):
        assert found.of(cell, SIZES[2]) == pytest.approx(scale * time_of(SIZES[2]), rel=0.1)


def test_a_cell_of_one_sample_stays_nearer_to_its_like_than_one_of_many() -> None:
    kinds = ("CONV_2D", "CONV_2D 1x1", "BATCH_MATMUL", "SVDF", "LSTM")
    cells = [f"{kind} float32" for kind in kinds]
    shipped = EngineCosts(dict.fromkeys(cells, TRUTH), {}, {}, 1_000, 0, 1.8, "")
    timings = [timed(STEP, 1_000, (1, 1, 1, 0))]
    timings += [timed(cell, 1_000 + time_of(f), f) for cell in cells[1:] for f in SIZES]
    for sizes, least, most in ((SIZES[:1], 1.5, 3.5), (SIZES, 3.7, 4.1)):
        own = [timed(cells[0], 1_000 + 4 * time_of(f), f) for f in sizes]
        found = fit([*timings, *own], shipped, "a test").of(cells[0], SIZES[1]) or 0.0
        assert least < found / time_of(SIZES[1]) < most


def test_one_kind_that_a_shipped_table_has_wrong_scales_no_other() -> None:
    kinds = ("CONV_2D", "CONV_2D 1x1", "CONV_2D few", "CONV_2D long", "TRANSPOSE_CONV")
    cells = [f"{kind} int8" for kind in kinds]
    shipped = EngineCosts(dict.fromkeys(cells, TRUTH), {}, {}, 1_000, 0, 1.8, "")
    timings = [timed(STEP, 1_000, (1, 1, 1, 0))]
    for cell, scale in zip(cells[:4], (1.0, 1.0, 1.0, 20.0), strict=True):
        timings += [timed(cell, 1_000 + scale * time_of(f), f) for f in SIZES]
    found = fit(timings, shipped, "a test")
    assert found.of(cells[4], SIZES[2]) == pytest.approx(time_of(SIZES[2]), rel=0.1)


def test_networks_of_tiny_operations_show_what_any_operation_costs() -> None:
    timings = [timed(STEP, 1_000, (1, 1, 1, 0))]
    timings += [timed(f"{TINY} int8", 1_000 + 30 * 70, *[(1, 16, 32, 0)] * 30)]
    timings += [
        timed("ADD int8", 1_000 + 4 * (70 + n * 0.01), *[(1, n, 0, 0)] * 4) for n in (1e4, 1e5)
    ]
    found = fit(timings, None, "a test")
    assert found.overhead["int8"] == pytest.approx(70, rel=0.02)
    assert found.of("ADD int8", (1, 16, 0, 0)) == pytest.approx(70, abs=5)
    assert found.of("ADD uint8", (1, 16, 0, 0)) == pytest.approx(70, abs=5)


def test_the_fixed_cost_of_a_model_of_one_operation_is_not_counted_in_networks() -> None:
    """The time of a model of one operation has what arguments cost, and nothing is fused there."""
    elements = (16.0, 1600.0)
    timings = [timed(STEP, 1_000, (1, 1, 1, 0))]
    timings += [timed("LESS int8", 1_900 + n, (1, n, 0, 0)) for n in elements]
    timings += [timed("TILE int8", 1_700 + n, (1, n, 0, 0)) for n in elements]
    parts = [("LESS int8", (1.0, 16.0, 0.0, 0.0)), ("TILE int8", (1.0, 16.0, 0.0, 0.0))]
    for count in (10, 20):
        name, time = f"{TINY} int8", 1_000.0 + 2 * count * 60
        timings.append(Timing(name, name, tuple(parts * count), 0.0, time))
    found = fit(timings, None, "a test")
    ns = sum(found.of(cell, features) or 0.0 for cell, features in parts)
    assert ns == pytest.approx(2 * 60, rel=0.1)


def test_one_size_of_a_kind_without_a_table_gives_the_cost_of_an_element() -> None:
    timings = [timed(STEP, 1_000, (1, 1, 1, 0)), timed("LESS float32", 11_000, (1, 1e5, 5e5, 0))]
    found = fit(timings, None, "a test")
    assert found.of("LESS float32", (1, 1e5, 5e5, 0)) == pytest.approx(10_000, rel=0.05)
    small = found.of("LESS float32", (1, 1e2, 5e2, 0))
    assert small is not None
    assert small < 100


def test_no_byte_is_found_to_cost_more_than_a_slow_memory_takes() -> None:
    """What a few bytes of constants cannot take is taken by the rest."""
    sizes: list[Features] = [(1, 1e6, 1e3, 64), (1, 2e6, 1e3, 128), (1, 3e6, 1e3, 192)]
    timings = [timed(STEP, 1_000, (1, 1, 1, 0))]
    timings += [timed("CONV_2D int8", size[1], size) for size in sizes]
    found = fit(timings, None, "a test")
    assert (np.array(found.cells["CONV_2D int8"])[2:] <= fitting.MOST[2:]).all()
    for size in sizes:
        assert found.of("CONV_2D int8", size) == pytest.approx(size[1], rel=0.1)


def test_a_convolution_of_few_channels_with_a_long_window_is_one_of_a_signal() -> None:
    names = ("CONV_2D few float32 96x96x3x16x3x2", "CONV_2D long float32 640x256x64x64")
    graphs = [EVERY[name].make().entry for name in names]
    cells = [cell_of(graph, graph.operations[0]) for graph in graphs]
    assert cells == ["CONV_2D few float32", "CONV_2D long float32"]
    few = EngineCosts({"CONV_2D few float32": TRUTH}, {}, {}, 0, 0, 1.0, "")
    assert few.of("CONV_2D long float32", SIZES[0]) == few.of("CONV_2D few float32", SIZES[0])


def test_axes_and_other_arguments_are_no_constants_that_take_time() -> None:
    model = EVERY["MEAN int8 1x4x4x16"].make()
    *_, constants = features_of(model.entry, model.operations[0])
    assert constants == 0
    model = EVERY["CONV_2D 1x1 int8 1x1x32x32x1x1"].make()
    *_, constants = features_of(model.entry, model.operations[0])
    assert constants == 32 * 32


def test_loops_show_what_a_round_costs() -> None:
    def loop(rounds: int) -> Timing:
        parts = (
            (LOOP, (1.0, float(rounds), 0.0, 0.0)),
            *[("ADD float32", (1.0, 1.0, 0.0, 0.0))] * rounds,
        )
        return Timing(LOOP, LOOP, parts, 0.0, 1_000 + 400 + rounds * (50 + 20))

    timings = [timed(STEP, 1_000, (1, 1, 1, 0)), timed("ADD float32", 21_000, (1, 20_000, 0, 0))]
    found = fit([*timings, loop(4), loop(100)], None, "a test")
    one = found.of("ADD float32", (1, 1, 0, 0)) or 0.0
    assert found.of(LOOP, (1, 50, 0, 0)) == pytest.approx(400 + 50 * (70 - one), rel=0.05)
