"""A network of open batch on an engine that compiles known shapes alone."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock.errors import PlacementError
from penstock.hal import Device
from penstock.ir import DType, Model, ModelBuilder


def open_batch() -> Model:
    """relu(x) of any number of rows."""
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (None, 4), "x")
    return b.build(b.operation("RELU", [x], [(DType.FLOAT32, (None, 4))]))


def check_open_batch(device: Device) -> None:
    """*device* refuses it and names the remedy, runs it for the shapes given, and takes it over
    from `reference` in the run that tells its shape.
    """
    x = np.array([[-1, 2, -3, 4]] * 3, np.float32)
    with pytest.raises(PlacementError, match="shapes= makes it known"):
        penstock.compile(open_batch(), devices=[device], cache=None)
    with penstock.compile(open_batch(), devices=[device], shapes={"x": x.shape}, cache=None) as one:
        assert one.plan.devices == (device.name,)
        assert np.array_equal(one(x)[0], np.maximum(x, 0))
    placed = penstock.Policy(placement="nnapi")
    with penstock.compile(
        open_batch(), devices=[device, "reference"], cache=None, policy=placed
    ) as two:
        assert [o.device for o in two.plan.operations] == ["reference"]
        outputs = two.run([x])
        assert [s.device for s in outputs.receipt.steps] == [device.name]
        assert np.array_equal(outputs[0], np.maximum(x, 0))
