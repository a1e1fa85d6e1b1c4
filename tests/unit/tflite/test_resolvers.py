"""`OpResolverType`: whose kernels compute, and in which accuracy class."""

from __future__ import annotations

import warnings
from typing import Any, Final

import numpy as np
import pytest

from penstock import Policy, tflite
from penstock.export.tflite import write
from penstock.ir import DType, Model, ModelBuilder, NDArray, Quantization
from penstock.ir.operation import AttributeValue
from penstock.runtime.discovery import Manager
from penstock.tflite.resolver import BUILTIN_DEVICE, placed_by
from tests.support_xnnpack import needs_litert

BUILTIN: Final = tflite.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
REFERENCE: Final = tflite.OpResolverType.BUILTIN_REF
SHAPE: Final = (1, 16, 16, 8)


def layer(channels: int = 32) -> Model:
    """A convolution whose quantised results LiteRT's three sets of kernels round in three ways."""
    rng = np.random.default_rng(0)
    weights = rng.integers(-127, 128, (channels, 3, 3, 8), np.int8)
    scales = tuple(float(s) for s in rng.uniform(0.001, 0.003, channels).astype(np.float32))
    given = Quantization((0.05,), (3,))
    b = ModelBuilder()
    x = b.input(DType.INT8, SHAPE, "x", given)
    filters = b.constant(weights, "weights", Quantization(scales, (0,) * channels, 0))
    steps = tuple(float(np.float32(0.05) * np.float32(s)) for s in scales)
    bias = b.constant(np.zeros(channels, np.int32), "bias", Quantization(steps, (0,) * channels, 0))
    out = (DType.INT8, (1, 16, 16, channels), Quantization((0.3,), (-1,)))
    attributes: dict[str, AttributeValue] = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
    return b.build(b.operation("CONV_2D", [x, filters, bias], [out], attributes))


def run(module: Any, content: bytes, resolver: Any, **more: Any) -> NDArray:
    """The output of *content* in an interpreter of *module* with the resolver of that name."""
    made = module.Interpreter(
        model_content=content,
        experimental_op_resolver_type=module.OpResolverType[resolver.name],
        **more,
    )
    made.allocate_tensors()
    values = np.random.default_rng(1).integers(-128, 128, SHAPE, np.int8)
    made.set_tensor(made.get_input_details()[0]["index"], values)
    made.invoke()
    return np.asarray(made.get_tensor(made.get_output_details()[0]["index"]))


@needs_litert
@pytest.mark.parametrize("resolver", [BUILTIN, REFERENCE])
def test_quantised_results_are_those_of_litert_with_the_same_resolver(resolver: Any) -> None:
    from ai_edge_litert import interpreter as litert

    content = write(layer())
    ours, theirs = (run(module, content, resolver) for module in (tflite, litert))
    assert np.array_equal(ours, theirs)
    # The kernel sets are told apart by this layer.
    assert not np.array_equal(theirs, run(litert, content, tflite.OpResolverType.BUILTIN))
    assert not np.array_equal(
        run(litert, content, BUILTIN), run(litert, content, tflite.OpResolverType.BUILTIN_REF)
    )


@needs_litert
def test_operations_without_builtin_kernel_run_on_the_reference() -> None:
    b = ModelBuilder()
    x = b.input(DType.STRING, (2,), "x")
    y = b.input(DType.STRING, (2,), "y")
    content = write(b.build(b.operation("EQUAL", [x, y], [(DType.BOOL, (2,))])))
    with tflite.Interpreter(
        model_content=content, experimental_op_resolver_type=BUILTIN
    ) as interpreter:
        interpreter.allocate_tensors()
        for detail, words in zip(
            interpreter.get_input_details(), ([b"a", b"b"], [b"a", b"c"]), strict=True
        ):
            interpreter.set_tensor(detail["index"], np.array(words))
        interpreter.invoke()
        found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    assert found.tolist() == [True, False]


def test_without_litert_the_builtin_kernels_are_the_reference_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Manager.by_name

    def without(self: Manager, name: str, isolate: bool | None = None) -> Any:
        return None if name == BUILTIN_DEVICE else real(self, name, isolate)

    monkeypatch.setattr(Manager, "by_name", without)
    content = write(layer())
    with pytest.warns(UserWarning, match="not available .* reference kernels are used"):
        found = run(tflite, content, BUILTIN)
    assert np.array_equal(found, run(tflite, content, REFERENCE))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tflite, content, BUILTIN, devices=["reference"])


def test_reference_kernels_are_held_to_exact_results() -> None:
    placed = placed_by(REFERENCE)
    assert placed.devices == ("reference",)
    assert placed.policy is not None
    assert placed.policy.accuracy == "exact"


@pytest.mark.parametrize("name", ["AUTO", "BUILTIN"])
def test_other_resolvers_place_on_every_device_by_the_default_policy(name: str) -> None:
    placed = placed_by(tflite.OpResolverType[name])
    assert (placed.devices, placed.policy, placed.note) == (None, None, "")


@needs_litert
def test_devices_and_a_policy_of_the_caller_go_before_the_resolvers() -> None:
    content = write(layer())
    wanted = run(tflite, content, REFERENCE)
    assert np.array_equal(run(tflite, content, BUILTIN, devices=["reference"]), wanted)
    exact = Policy(accuracy="exact", placement="nnapi")
    assert np.array_equal(run(tflite, content, BUILTIN, policy=exact), wanted)
