"""Small files for the tests of the interpreter."""

from __future__ import annotations

import numpy as np

from tests.unit.loaders.files import FileBuilder, quantization


def chain() -> bytes:
    """y = -(x + 1), [-1, 2] stored with batch 1: x 0, total 1, y 2, one 3."""
    file = FileBuilder()
    x, total, y = (file.tensor(n, [1, 2], shape_signature=[-1, 2]) for n in ("x", "total", "y"))
    one = file.tensor("one", [1], value=np.ones(1, np.float32))
    file.operator("ADD", [x, one], [total], {})
    file.operator("NEG", [total], [y], {})
    return file.finish([x], [y])


def typed(dtype: str, shape: tuple[int, ...] = (2, 3)) -> bytes:
    """y = reshape(x) for any element type."""
    file = FileBuilder()
    x, y = file.tensor("x", shape, dtype), file.tensor("y", shape, dtype)
    target = file.tensor("shape", [len(shape)], "INT32", np.array(shape, np.int32))
    file.operator("RESHAPE", [x, target], [y], {"new_shape": list(shape)})
    return file.finish([x], [y])


def where() -> bytes:
    """The indexes at which four booleans hold: as many rows as there are."""
    file = FileBuilder()
    x, y = file.tensor("x", [4], "BOOL"), file.tensor("y", [1, 1], "INT64", shape_signature=[-1, 1])
    file.operator("WHERE", [x], [y], {})
    return file.finish([x], [y])


def branches() -> bytes:
    """y = a + b where the condition holds, else a * b; subgraphs 1 and 2."""
    file = FileBuilder()
    choice = file.tensor("choice", [1], "BOOL")
    a, b, y = (file.tensor(n, [2]) for n in "aby")
    file.operator("IF", [choice, a, b], [y], {"then_subgraph_index": 1, "else_subgraph_index": 2})
    file.end([choice, a, b], [y])
    for name, kind in (("then", "ADD"), ("else", "MUL")):
        file.begin(name)
        p, q, r = (file.tensor(n, [2]) for n in "pqr")
        file.operator(kind, [p, q], [r], {})
        file.end([p, q], [r])
    return file.encode()


def doubling() -> bytes:
    """i doubles as long as it is below 100; condition 1, body 2."""
    file = FileBuilder()
    i, n = file.tensor("i", [1], "INT32"), file.tensor("n", [1], "INT32")
    file.operator("WHILE", [i], [n], {"cond_subgraph_index": 1, "body_subgraph_index": 2})
    file.end([i], [n])
    file.begin("cond")
    i, less = file.tensor("i", [1], "INT32"), file.tensor("less", [1], "BOOL")
    limit = file.tensor("limit", [1], "INT32", np.array([100], np.int32))
    file.operator("LESS", [i, limit], [less])
    file.end([i], [less])
    file.begin("body")
    i, j = file.tensor("i", [1], "INT32"), file.tensor("j", [1], "INT32")
    file.operator("ADD", [i, i], [j], {})
    file.end([i], [j])
    return file.encode()


def signed() -> bytes:
    """Two signatures: `add` (y, x -> sum) on subgraph 0, `negate` (x -> y) on subgraph 1; and one,
    `inner`, that names a tensor inside.
    """
    file = FileBuilder()
    x, y, total = (file.tensor(n, [2]) for n in ("a:0", "b:0", "sum:0"))
    file.operator("ADD", [x, y], [total], {})
    file.end([x, y], [total])
    file.begin("second")
    u, v, w = (file.tensor(n, [2]) for n in "uvw")
    file.operator("NEG", [u], [v], {})
    file.operator("RELU", [v], [w])
    file.end([u], [w])
    return file.encode(
        signature_defs=[
            _signature("negate", 1, {"x": u}, {"y": w}),
            _signature("add", 0, {"y": y, "x": x}, {"sum": total}),
            _signature("inner", 1, {"x": u}, {"between": v}),
        ]
    )


def _signature(
    key: str, subgraph: int, inputs: dict[str, int], outputs: dict[str, int]
) -> dict[str, object]:
    ends = {
        kind: [{"name": n, "tensor_index": i} for n, i in named.items()]
        for kind, named in (("inputs", inputs), ("outputs", outputs))
    }
    return {"signature_key": key, "subgraph_index": subgraph, **ends}


def per_channel() -> bytes:
    """A layer whose int8 weights (tensor 1) have a scale for each of three rows."""
    file = FileBuilder()
    x = file.tensor("x", [1, 2], "INT8", quantization=quantization([0.5], [-1]))
    rows = np.array([[1, 2], [3, -4], [5, 6]], np.int8)
    scales = quantization([0.25, 0.5, 1.0], [0, 0, 0])
    w = file.tensor("w", [3, 2], "INT8", rows, quantization=scales)
    y = file.tensor("y", [1, 3], "INT8", quantization=quantization([2.0], [1]))
    file.operator("FULLY_CONNECTED", [x, w, -1], [y], {})
    return file.finish([x], [y])
