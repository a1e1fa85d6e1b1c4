from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.errors import InputError, ShapeOverflow
from penstock.hal import Capabilities, MemoryPreference
from penstock.hal.device import preferred_memory
from penstock.ir import DType, Lifetime, Operand
from penstock.memory import PoolLayout
from penstock.memory.layout import lay_out, strictest

POWERS = st.sampled_from([1, 2, 4, 16, 64, 256, 4096])
PREFERENCES = st.builds(MemoryPreference, POWERS, POWERS)


def operand(name: str, shape: tuple[int | None, ...], dtype: DType = DType.FLOAT32) -> Operand:
    return Operand(dtype, shape, Lifetime.SUBGRAPH_INPUT, name)


@pytest.mark.parametrize(
    ("level", "claims", "wanted"),
    [
        (8, {}, (64, 64)),
        (5, {}, (64, 64)),
        (4, {}, (64, 1)),
        (1, {"alignment": 128, "padding": 32}, (128, 1)),
        (6, {"alignment": 4096, "padding": 1}, (4096, 1)),
    ],
)
def test_the_preferences_of_devices_are_nnapis(
    level: int, claims: dict[str, Any], wanted: tuple[int, int]
) -> None:
    device: Any = SimpleNamespace(feature_level=level, capabilities=Capabilities(**claims))
    assert preferred_memory(device) == MemoryPreference(*wanted)


def test_the_strictest_preference_is_16_and_1_at_least() -> None:
    assert strictest([]) == MemoryPreference(16, 1)
    assert strictest([MemoryPreference(4, 64), MemoryPreference(128, 2)]) == (
        MemoryPreference(128, 64)
    )


@given(st.lists(st.integers(0, 3000), max_size=12), PREFERENCES, st.integers(0, 100))
def test_values_are_aligned_padded_and_apart(
    sizes: list[int], preference: MemoryPreference, start: int
) -> None:
    places, end = lay_out(sizes, preference, start)
    before = start
    for size, (offset, padding) in zip(sizes, places, strict=True):
        assert offset >= before
        assert offset % preference.alignment == 0
        assert (size + padding) % preference.padding == 0
        assert padding < preference.padding
        before = offset + size + padding
    assert end == before


def test_a_layout_beyond_every_memory_is_refused() -> None:
    with pytest.raises(ShapeOverflow, match="exceeds 64-bit"):
        lay_out([2**62, 2**62], MemoryPreference())


@given(st.lists(st.tuples(st.integers(0, 50), PREFERENCES), max_size=6))
def test_views_of_a_layout_do_not_overlap(wanted: list[tuple[int, MemoryPreference]]) -> None:
    operands = [(operand(f"v{i}", (n,)), p) for i, (n, p) in enumerate(wanted)]
    layout = PoolLayout.for_operands(operands)
    with layout.pool() as pool:
        views = layout.views(pool)
        for value, view in enumerate(views.values()):
            view[:] = value + 1
        for value, (name, view) in enumerate(views.items()):
            plan = layout.places[name]
            assert view.shape == plan.shape
            assert view.size == 0 or view.ctypes.data % wanted[value][1].alignment == 0
            assert (view == value + 1).all()
            end = plan.offset + plan.nbytes + plan.padding
            assert end <= layout.nbytes


def test_a_layout_of_a_model_names_its_inputs_and_outputs() -> None:
    compiled = SimpleNamespace(
        inputs=(operand("x", (2, 3)), operand("y", (None,))),
        outputs=(operand("z", (5,), DType.INT8),),
        input_memory=(MemoryPreference(64, 64), MemoryPreference()),
        output_memory=(MemoryPreference(256, 16),),
    )
    model: Any = compiled
    layout = PoolLayout.of(model, inputs=["x"])
    assert [(n, p.offset, p.nbytes, p.padding) for n, p in layout.places.items()] == [
        ("x", 0, 24, 40),
        ("z", 256, 5, 11),
    ]
    assert layout.nbytes == 272
    with layout.pool() as pool:
        assert layout.views(pool)["z"].dtype == np.int8
    assert list(PoolLayout.of(model, inputs=[], outputs=["z"]).places) == ["z"]
    with pytest.raises(InputError, match="no size that is known"):
        PoolLayout.of(model)
    with pytest.raises(InputError, match="no input is named 'q'; there are 'x', 'y'"):
        PoolLayout.of(model, inputs=["q"])
    with pytest.raises(
        InputError, match="inputs takes a list of names or positions, not 'x'; for on"
    ):
        PoolLayout.of(model, inputs="x")
    with pytest.raises(InputError, match="a layout is of a compiled model, not of int"):
        PoolLayout.of(3)  # type: ignore[arg-type]  # what users give
    with pytest.raises(InputError, match="no output is named 'x'"):
        PoolLayout.of(model, inputs=[], outputs=["x"])
    with pytest.raises(InputError, match="two values are named 'x'"):
        PoolLayout.of(model, inputs=["x", "x"])


@pytest.mark.parametrize("wrong", [None, 128, "pool"])
def test_views_of_what_is_no_pool_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="views of a layout lie in a MemoryPool, not in"):
        PoolLayout({}, 0).views(wrong)


def test_strings_have_no_place_in_a_layout() -> None:
    with pytest.raises(InputError, match="no size that is known"):
        PoolLayout.for_operands([(operand("s", (2,), DType.STRING), MemoryPreference())])
