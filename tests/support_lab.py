"""Networks for the lab device, with the reference device's answers."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from penstock.drivers.reference import create as reference
from penstock.hal import ExecutionConfig, HostMemory, PrepareConfig, PreparedModel, Request
from penstock.ir import DType, Model, ModelBuilder, NDArray
from penstock.ir.types import static_shape
from penstock.testing.contract.cases import Case
from penstock.testing.contract.trial import Trial

F32 = DType.FLOAT32


def values(*shape: int, seed: int = 0) -> NDArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def network() -> Case:
    """Every operation that the device has. The answer is the reference device's."""
    b = ModelBuilder()
    x, y = b.input(F32, (2, 6), "x"), b.input(F32, (6,), "y")
    (a,) = b.operation("ADD", [x, y], [(F32, (2, 6))], {"fused_activation_function": "RELU6"})
    (s,) = b.operation("SUB", [x, a], [(F32, (2, 6))])
    (m,) = b.operation(
        "MUL", [s, y], [(F32, (2, 6))], {"fused_activation_function": "RELU_N1_TO_1"}
    )
    (c,) = b.operation("CONCATENATION", [a, m], [(F32, (2, 12))], {"axis": -1})
    given = [c, b.constant(values(5, 12, seed=1)), b.constant(values(5, seed=2))]
    (f,) = b.operation("FULLY_CONNECTED", given, [(F32, (2, 5))])
    (r,) = b.operation("RELU", [f], [(F32, (2, 5))])
    (t,) = b.operation("TANH", [f], [(F32, (2, 5))])
    (g,) = b.operation("LOGISTIC", [t], [(F32, (2, 5))])
    (h,) = b.operation("MUL", [g, r], [(F32, (2, 5))])
    (q,) = b.operation(
        "FULLY_CONNECTED", [h, b.constant(values(4, 5, seed=3)), None], [(F32, (2, 4))]
    )
    (u,) = b.operation("RELU", [q], [(F32, (2, 4))])
    (w,) = b.operation("SOFTMAX", [u], [(F32, (2, 4))], {"beta": 0.5})
    (z,) = b.operation("RESHAPE", [w], [(F32, (8,))], {"new_shape": (8,)})
    return judged("network", b.build([z, h]), values(2, 6, seed=4), values(6, seed=5))


def small() -> Case:
    """A layer whose entry takes less than 1 KiB a file."""
    b = ModelBuilder()
    given = [b.input(F32, (1, 4), "x"), b.constant(values(3, 4)), b.constant(values(3))]
    (y,) = b.operation("FULLY_CONNECTED", given, [(F32, (1, 3))])
    return judged("small", b.build(b.operation("RELU", [y], [(F32, (1, 3))])), values(1, 4, seed=6))


def judged(name: str, model: Model, *inputs: NDArray) -> Case:
    outputs = tuple(np.empty(static_shape(o.shape) or (), o.dtype.numpy) for o in model.outputs)
    request = Request(tuple(map(HostMemory, inputs)), tuple(map(HostMemory, outputs)))
    with closing(reference().prepare_model(model, PrepareConfig())) as prepared:
        prepared.execute(request, ExecutionConfig())
    return Case(name, model, inputs, outputs)


def run(prepared: PreparedModel, case: Case) -> None:
    """One run, whose outputs must be near the reference device's."""
    for found, wanted in zip(outputs(prepared, case), case.outputs, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def outputs(prepared: PreparedModel, case: Case) -> list[NDArray]:
    with Trial(case) as trial:
        return trial.run(prepared)
