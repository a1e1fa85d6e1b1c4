"""Models that ask for more memory than one array may take."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock import knobs
from penstock.errors import GeneralFailure, LimitExceeded, PlacementError
from penstock.ir import DType, Model, ModelBuilder
from penstock.memory.limits import MIB, check_bytes, most_bytes


def filled(shape: np.ndarray | None = None) -> Model:
    """FILL to a constant *shape*, or to one that a run gives."""
    builder = ModelBuilder()
    dims = builder.input(DType.INT32, (2,)) if shape is None else builder.constant(shape)
    value = builder.constant(np.array(1, np.float32))
    return builder.build(builder.operation("FILL", [dims, value], [(DType.FLOAT32, None)]))


def test_memory_limit_is_half_of_the_memory_by_default() -> None:
    assert most_bytes() >= 256 * MIB
    with knobs.override(tensor_limit_mib=3):
        assert most_bytes() == 3 * MIB


def test_memory_limit_error_names_the_knob() -> None:
    with (
        knobs.override(tensor_limit_mib=1),
        pytest.raises(LimitExceeded, match=r"FILL takes 2097152 bytes.*tensor_limit_mib"),
    ):
        check_bytes(2 * MIB, "FILL")


def test_a_large_output_is_refused_before_the_run() -> None:
    model = filled(np.array([1 << 15, 1 << 15], np.int32))
    with (
        knobs.override(tensor_limit_mib=64),
        pytest.raises(PlacementError, match="tensor_limit_mib"),
    ):
        penstock.compile(model, devices=["reference"])


def test_a_large_output_of_unknown_shape_fails_the_run() -> None:
    with (
        knobs.override(tensor_limit_mib=64),
        penstock.compile(filled(), devices=["reference"], isolate=False) as compiled,
    ):
        (small,) = compiled(np.array([2, 3], np.int32))
        np.testing.assert_array_equal(small, np.ones((2, 3), np.float32))
        with pytest.raises(GeneralFailure, match="tensor_limit_mib"):
            compiled(np.array([1 << 15, 1 << 15], np.int32))
