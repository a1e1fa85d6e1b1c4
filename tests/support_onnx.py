"""Small ONNX models made in tests, and ONNX Runtime as their judge."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.ir import NDArray

onnx: Any = pytest.importorskip("onnx", reason="the extra onnx is not installed")
helper: Any = onnx.helper

NO_JUDGE = "ONNX Runtime is not installed: nobody judges"
ML = "ai.onnx.ml"


class Const:
    """An input that is an initialiser."""

    def __init__(self, value: Any, dtype: Any = None) -> None:
        self.array: NDArray = np.asarray(value, dtype)


def array_type(array: NDArray) -> int:
    if array.dtype == object:
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def tensor(name: str, array: NDArray) -> Any:
    return onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)


def declared(name: str, array: NDArray, shape: Sequence[int | str | None] | None = None) -> Any:
    dims = array.shape if shape is None else shape
    return helper.make_tensor_value_info(name, array_type(array), dims)


def model_of(
    nodes: Sequence[Any],
    inputs: Mapping[str, NDArray],
    outputs: Sequence[str],
    constants: Mapping[str, NDArray] | None = None,
    *,
    opset: int = 17,
    unknown: bool = False,
    functions: Sequence[Any] = (),
    domains: Mapping[str, int] | None = None,
) -> Any:
    """A model; with *unknown* the first dimension of every input is symbolic."""
    given = [
        declared(n, a, [f"{n}_0", *a.shape[1:]] if unknown and a.ndim else None)
        for n, a in inputs.items()
    ]
    made = [onnx.ValueInfoProto(name=o) for o in outputs]
    values = [tensor(n, a) for n, a in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "graph", given, made, values)
    versions = {"": opset, ML: 3, **(domains or {})}
    imports = [helper.make_opsetid(d, v) for d, v in versions.items()]
    return helper.make_model(
        graph, opset_imports=imports, ir_version=min(10, 10), functions=list(functions)
    )


def one_node(
    op: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    outputs: int = 1,
    opset: int = 17,
    domain: str = "",
    unknown: bool = False,
) -> tuple[Any, dict[str, NDArray]]:
    """A model of one node, and what to feed it. An input is an array, a `Const`, or None where it
    is left out.
    """
    names, fed, constants = [], {}, {}
    for i, value in enumerate(inputs):
        names.append("" if value is None else f"x{i}")
        if isinstance(value, Const):
            constants[f"x{i}"] = value.array
        elif value is not None:
            fed[f"x{i}"] = np.asarray(value)
    made = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, made, name=f"the_{op}", domain=domain, **(attributes or {}))
    return model_of([node], fed, made, constants, opset=opset, unknown=unknown), fed


def judged(model: Any, fed: Mapping[str, NDArray], *, optimised: bool = True) -> list[NDArray]:
    """What ONNX Runtime gives, with one thread."""
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        pytest.skip(NO_JUDGE)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    results: list[NDArray] = session.run(None, dict(fed))
    return results


def ours(model: Any, fed: Mapping[str, NDArray]) -> list[NDArray]:
    """What the reference driver gives."""
    loaded = penstock.load(model.SerializeToString())
    with penstock.compile(loaded, devices=["reference"]) as net:
        outputs = net.run({o.name: fed[o.name] for o in loaded.inputs})
        return [outputs[o.name] for o in loaded.outputs]


def check(
    model: Any, fed: Mapping[str, NDArray], *, share: float = 2e-4, optimised: bool = True
) -> None:
    """Raises `AssertionError` unless both agree: in type, shape, and values, floats to *share* of
    the largest.
    """
    want = judged(model, fed, optimised=optimised)
    got = ours(model, fed)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape, f"shape {a.shape}, not {b.shape}"
        if b.dtype == object or b.dtype.kind in "US":
            texts = [v if isinstance(v, bytes) else str(v).encode() for v in b.reshape(-1).tolist()]
            assert a.reshape(-1).tolist() == texts
            continue
        assert a.dtype == b.dtype, f"type {a.dtype}, not {b.dtype}"
        if b.dtype.kind in "fV":
            mine, its = a.astype(np.float64), b.astype(np.float64)
            finite = np.isfinite(its)
            assert np.array_equal(mine[~finite], its[~finite], equal_nan=True)
            largest = float(np.abs(its[finite]).max(initial=0))
            off = float(np.abs(mine[finite] - its[finite]).max(initial=0))
            assert off <= share * max(largest, 1e-6), f"off by {off:.3e} of {largest:.3e}"
        else:
            assert np.array_equal(a, b), f"{np.count_nonzero(a != b)} elements differ"
