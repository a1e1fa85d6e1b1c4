"""The small files that the scenarios open, each of one trait, by name.

models = Models(directory)
models["relu"]            # the bytes
models.file("relu")       # the same in a file under *directory*
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.unit.loaders import files

NUMBERS: Final = (
    *("FLOAT32", "FLOAT16", "FLOAT64", "BFLOAT16", "COMPLEX64", "COMPLEX128", "BOOL", "STRING"),
    *("INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64"),
)
"""Every element type that a tensor of the file format may have and a program may see."""


class Models:
    """The models by name; files of them stand in *directory*."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __getitem__(self, name: str) -> bytes:
        return (BUILDERS | DAMAGED)[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(BUILDERS)

    def file(self, name: str) -> Path:
        """A file of the model's bytes."""
        return self.write(f"{name}.tflite", self[name])

    def write(self, name: str, content: bytes) -> Path:
        """A file of these bytes."""
        path = self.directory / name
        path.write_bytes(content)
        return path


def _static() -> bytes:
    """y = relu(x), [1, 4]: one signature-less graph of fixed shape."""
    return files.relu().encode()


def _dynamic() -> bytes:
    """y = relu(x), [-1, 4], stored with batch 1."""
    return files.relu(shape_signature=[-1, 4]).encode()


def _unary(dtype: str, shape: Sequence[int] = (2, 3), **fields: Any) -> files.FileBuilder:
    """y = reshape(x): every element type passes through it."""
    file = files.FileBuilder()
    x = file.tensor("x", shape, dtype, **fields)
    target = file.tensor("shape", [len(shape)], "INT32", np.array(shape, np.int32))
    y = file.tensor("y", shape, dtype, **fields)
    file.operator("RESHAPE", [x, target], [y], {"new_shape": list(shape)})
    file.end([x], [y])
    return file


def _passing(dtype: str) -> Callable[[], bytes]:
    return lambda: _unary(dtype).encode()


def _chain() -> bytes:
    """y = -(x + 1) with the sum as an intermediate value, [1, 4]."""
    file = files.FileBuilder()
    x, total, y = (file.tensor(n, [1, 4]) for n in ("x", "total", "y"))
    one = file.tensor("one", [1], value=np.ones(1, np.float32))
    file.operator("ADD", [x, one], [total], {})
    file.operator("NEG", [total], [y], {})
    return file.finish([x], [y])


def _two() -> bytes:
    """Two inputs and two outputs: total = a + b, product = a * b, [2]."""
    file = files.FileBuilder()
    a, b, total, product = (file.tensor(n, [2]) for n in ("a", "b", "total", "product"))
    file.operator("ADD", [a, b], [total], {})
    file.operator("MUL", [a, b], [product], {})
    return file.finish([a, b], [total, product])


def _entries(**tensors: int) -> list[dict[str, Any]]:
    return [{"name": name, "tensor_index": index} for name, index in tensors.items()]


def _signature() -> bytes:
    """One signature, `serving`: names that differ from the tensors', [-1, 2]."""
    file = files.FileBuilder()
    a = file.tensor("arg_a:0", [1, 2], shape_signature=[-1, 2])
    b = file.tensor("arg_b:0", [1, 2], shape_signature=[-1, 2])
    y = file.tensor("Identity:0", [1, 2], shape_signature=[-1, 2])
    file.operator("SUB", [a, b], [y], {})
    return file.finish(
        [a, b],
        [y],
        signature_defs=[
            {
                "signature_key": "serving",
                "subgraph_index": 0,
                "inputs": _entries(left=a, right=b),
                "outputs": _entries(difference=y),
            }
        ],
    )


def _signatures() -> bytes:
    """Two signatures on two subgraphs: `add` (x, y -> sum) and `negate` (x -> y, copy), [2]."""
    file = files.FileBuilder()
    x, y, total = (file.tensor(n, [2]) for n in ("add_x", "add_y", "add_sum"))
    file.operator("ADD", [x, y], [total], {})
    file.end([x, y], [total])
    file.begin("second")
    u, v, w = (file.tensor(n, [2]) for n in ("neg_x", "neg_y", "neg_w"))
    file.operator("NEG", [u], [v], {})
    file.operator("RELU", [u], [w])
    file.end([u], [v, w])
    return file.encode(
        signature_defs=[
            {
                "signature_key": "add",
                "subgraph_index": 0,
                "inputs": _entries(x=x, y=y),
                "outputs": _entries(sum=total),
            },
            {
                "signature_key": "negate",
                "subgraph_index": 1,
                "inputs": _entries(x=u),
                "outputs": _entries(y=v, positive=w),
            },
        ]
    )


def _branches() -> bytes:
    """IF: y = a + b where the condition holds, else a * b; subgraphs 1 and 2."""
    file = files.FileBuilder()
    choice = file.tensor("choice", [1], "BOOL")
    a, b, y = (file.tensor(n, [2]) for n in ("a", "b", "y"))
    options = {"then_subgraph_index": 1, "else_subgraph_index": 2}
    file.operator("IF", [choice, a, b], [y], options)
    file.end([choice, a, b], [y])
    for name, kind in (("then", "ADD"), ("else", "MUL")):
        file.begin(name)
        p, q, r = (file.tensor(f"{name}_{n}", [2]) for n in "pqr")
        file.operator(kind, [p, q], [r], {})
        file.end([p, q], [r])
    return file.encode()


def _per_tensor(dtype: str) -> Callable[[], bytes]:
    return lambda: _unary(dtype, quantization=files.quantization([0.5], [3])).encode()


def _per_channel() -> bytes:
    """A fully connected layer whose weights have a scale for each of three rows."""
    file = files.FileBuilder()
    x = file.tensor("x", [1, 2], "INT8", quantization=files.quantization([0.5], [-1]))
    rows = np.array([[1, 2], [3, -4], [5, 6]], np.int8)
    w = file.tensor(
        "w", [3, 2], "INT8", rows, quantization=files.quantization([0.25, 0.5, 1.0], [0, 0, 0])
    )
    y = file.tensor("y", [1, 3], "INT8", quantization=files.quantization([2.0], [1]))
    file.operator("FULLY_CONNECTED", [x, w, -1], [y], {})
    return file.finish([x], [y])


def _int4_weights() -> bytes:
    """A constant of four bits a value, dequantised."""
    file = files.FileBuilder()
    packed = bytes([0x21, 0xF3])
    w = file.tensor("w", [4], "INT4", packed, quantization=files.quantization([0.5], [0]))
    real, x, y = file.tensor("real", [4]), file.tensor("x", [4]), file.tensor("y", [4])
    file.operator("DEQUANTIZE", [w], [real])
    file.operator("ADD", [x, real], [y], {})
    return file.finish([x], [y])


def _float16_weights() -> bytes:
    """A float16 constant, dequantised."""
    file = files.FileBuilder()
    w = file.tensor("w", [3], "FLOAT16", np.array([0.5, 1.5, -2], np.float16))
    real, x, y = file.tensor("real", [3]), file.tensor("x", [3]), file.tensor("y", [3])
    file.operator("DEQUANTIZE", [w], [real])
    file.operator("MUL", [x, real], [y], {})
    return file.finish([x], [y])


def _dynamic_output() -> bytes:
    """y = reshape(x, shape) with the shape given at run time."""
    file = files.FileBuilder()
    x, shape = file.tensor("x", [6]), file.tensor("shape", [2], "INT32")
    y = file.tensor("y", [0], shape_signature=[-1, -1])
    file.operator("RESHAPE", [x, shape], [y])
    return file.finish([x, shape], [y])


def _where() -> bytes:
    """Where a condition holds: as many rows as there are."""
    file = files.FileBuilder()
    x, y = file.tensor("x", [4], "BOOL"), file.tensor("y", [0, 1], "INT64", shape_signature=[-1, 1])
    file.operator("WHERE", [x], [y], {})
    return file.finish([x], [y])


def _empty_tensor() -> bytes:
    """y = relu(x) of no element, [0, 4]."""
    return files.relu(shape=[0, 4]).encode()


def _scalar() -> bytes:
    """y = x + 1 of rank 0."""
    file = files.FileBuilder()
    x, y = file.tensor("x"), file.tensor("y")
    one = file.tensor("one", value=np.float32(1))
    file.operator("ADD", [x, one], [y], {})
    return file.finish([x], [y])


def _custom(code: str) -> Callable[[], bytes]:
    def build() -> bytes:
        file = files.FileBuilder()
        x, y = file.tensor("x", [2]), file.tensor("y", [2])
        file.operator(f"CUSTOM:{code}", [x], [y])
        return file.finish([x], [y])

    return build


def _strings() -> bytes:
    """Strings in, strings out: those that two indexes pick of three."""
    file = files.FileBuilder()
    words, which = file.tensor("words", [3], "STRING"), file.tensor("which", [2], "INT32")
    picked = file.tensor("picked", [2], "STRING")
    file.operator("GATHER", [words, which], [picked], {})
    return file.finish([words, which], [picked])


def _constant_output() -> bytes:
    """An output that is a constant beside a computed one."""
    file = files.FileBuilder()
    x, y = file.tensor("x", [2]), file.tensor("y", [2])
    c = file.tensor("c", [2], value=np.array([7, 8], np.float32))
    file.operator("RELU", [x], [y])
    return file.finish([x], [y, c])


def _input_is_output() -> bytes:
    """The input itself as an output."""
    file = files.FileBuilder()
    x, y = file.tensor("x", [2]), file.tensor("y", [2])
    file.operator("RELU", [x], [y])
    return file.finish([x], [x, y])


def _no_input() -> bytes:
    """Two constants added; nothing goes in."""
    file = files.FileBuilder()
    a = file.tensor("a", [2], value=np.array([1, 2], np.float32))
    b = file.tensor("b", [2], value=np.array([10, 20], np.float32))
    y = file.tensor("y", [2])
    file.operator("ADD", [a, b], [y], {})
    return file.finish([], [y])


def _sparse() -> bytes:
    return files.sparse_matrix(np.array([[0, 1, 0], [2, 0, 3]], np.float32)).encode()


def _loop() -> bytes:
    """WHILE: i doubles as long as it is below 100."""
    file = files.FileBuilder()
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


def _fully_connected() -> bytes:
    """A layer [n, 2] -> [n, 3] with a bias, which an unfitting width breaks."""
    file = files.FileBuilder()
    x = file.tensor("x", [1, 2])
    w = file.tensor("w", [3, 2], value=np.arange(6, dtype=np.float32).reshape(3, 2))
    b = file.tensor("b", [3], value=np.array([1, 1, 1], np.float32))
    y = file.tensor("y", [1, 3])
    file.operator("FULLY_CONNECTED", [x, w, b], [y], {})
    return file.finish([x], [y])


def _division() -> bytes:
    """Integers divided: a zero fails at run time."""
    file = files.FileBuilder()
    a, b, y = (file.tensor(n, [2], "INT32") for n in "aby")
    file.operator("DIV", [a, b], [y], {})
    return file.finish([a, b], [y])


def _nameless() -> bytes:
    """Tensors without a name."""
    file = files.FileBuilder()
    x, y = file.tensor("", [2]), file.tensor("", [2])
    del file.graph["tensors"][x]["name"]
    file.operator("RELU", [x], [y])
    return file.finish([x], [y])


def _unranked() -> bytes:
    """An input whose shape the file does not say."""
    file = files.FileBuilder()
    x, y = file.tensor("x"), file.tensor("y")
    file.graph["tensors"][x]["has_rank"] = False
    del file.graph["tensors"][x]["shape"]
    file.operator("RELU", [x], [y])
    return file.finish([x], [y])


def _shared_state() -> bytes:
    """Signatures `put` (x), `get` (no input) and `add` (x) on one resource variable that starts at
    [1, 2].
    """
    file = files.FileBuilder()

    def handle() -> int:
        file.operator("CALL_ONCE", [], [], {"init_subgraph_index": 3})
        h = file.tensor("handle", [], "RESOURCE")
        file.operator("VAR_HANDLE", [], [h], {"container": "", "shared_name": "held"})
        return h

    h, x, y = handle(), file.tensor("put_x", [2]), file.tensor("put_y", [2])
    file.operator("ASSIGN_VARIABLE", [h, x], [])
    file.operator("RELU", [x], [y])
    file.end([x], [y])
    file.begin("get")
    h, read, out = handle(), file.tensor("read", [2]), file.tensor("out", [2])
    one = file.tensor("one", [1], value=np.ones(1, np.float32))
    file.operator("READ_VARIABLE", [h], [read])
    file.operator("MUL", [read, one], [out], {})
    file.end([], [out])
    file.begin("add")
    h, x, read, total = handle(), *(file.tensor(n, [2]) for n in ("add_x", "before", "after"))
    file.operator("READ_VARIABLE", [h], [read])
    file.operator("ADD", [x, read], [total], {})
    file.operator("ASSIGN_VARIABLE", [h, total], [])
    file.end([x], [total])
    file.begin("init")
    h = file.tensor("handle", [], "RESOURCE")
    start = file.tensor("start", [2], value=np.array([1, 2], np.float32))
    file.operator("VAR_HANDLE", [], [h], {"container": "", "shared_name": "held"})
    file.operator("ASSIGN_VARIABLE", [h, start], [])
    file.end([], [])
    ends = {
        "put": (0, {"x": 1}, {"y": 2}),
        "get": (1, {}, {"value": 2}),
        "add": (2, {"x": 1}, {"total": 3}),
    }
    return file.encode(
        signature_defs=[
            {
                "signature_key": key,
                "subgraph_index": graph,
                "inputs": _entries(**inputs),
                "outputs": _entries(**outputs),
            }
            for key, (graph, inputs, outputs) in ends.items()
        ]
    )


def _signature_on(
    content: files.FileBuilder, inputs: dict[str, int], outputs: dict[str, int]
) -> bytes:
    return content.encode(
        signature_defs=[
            {
                "signature_key": "serving_default",
                "subgraph_index": 0,
                "inputs": _entries(**inputs),
                "outputs": _entries(**outputs),
            }
        ]
    )


def _where_signature() -> bytes:
    """A signature whose result has as many rows as hold."""
    file = files.FileBuilder()
    x, y = file.tensor("x", [4], "BOOL"), file.tensor("y", [0, 1], "INT64", shape_signature=[-1, 1])
    file.operator("WHERE", [x], [y], {})
    file.end([x], [y])
    return _signature_on(file, {"mask": x}, {"places": y})


def _two_names_for_one() -> bytes:
    """A signature with two names for one output."""
    return _signature_on(files.relu([2]), {"in": 0}, {"out": 1, "again": 1})


def _output_twice() -> bytes:
    file = files.FileBuilder()
    x, y = file.tensor("x", [2]), file.tensor("y", [2])
    file.operator("RELU", [x], [y])
    return file.finish([x], [y, y])


def _input_twice() -> bytes:
    file = files.FileBuilder()
    x, y = file.tensor("x", [2]), file.tensor("y", [2])
    file.operator("RELU", [x], [y])
    return file.finish([x, x], [y])


def _odd_quantization() -> bytes:
    """Tensors with a range and no scale, and with scales on axis 1."""
    file = files.FileBuilder()
    x = file.tensor("x", [2, 3], "INT8", quantization={"min": [-1.0], "max": [1.0]})
    y = file.tensor("y", [2, 3], "INT8", quantization=files.quantization([1, 2, 3], [0, 0, 0], 1))
    file.operator("RESHAPE", [x, file.tensor("s", [2], "INT32", np.array([2, 3], np.int32))], [y])
    return file.finish([x], [y])


def _bad_quantization() -> bytes:
    """A tensor with a scale and no zero point."""
    return files.relu(quantization={"scale": [0.5]}).encode()


def _changed(**fields: Any) -> Callable[[], bytes]:
    """The model `static` with other fields in its operator, its operator code or its root."""

    def build() -> bytes:
        file = files.relu()
        file.graph["operators"][0].update(fields.get("operator", {}))
        file.codes[0].update(fields.get("code", {}))
        file.graph.update(fields.get("graph", {}))
        file.graph["tensors"][0].update(fields.get("tensor", {}))
        return file.encode(**fields.get("root", {}))

    return build


def _second_signature_alone() -> bytes:
    """A signature on the second subgraph and none on the first."""
    file = files.relu([2])
    file.begin("second")
    x, y = file.tensor("x", [2]), file.tensor("y", [2])
    file.operator("NEG", [x], [y], {})
    file.end([x], [y])
    return file.encode(
        signature_defs=[
            {
                "signature_key": "negate",
                "subgraph_index": 1,
                "inputs": _entries(x=x),
                "outputs": _entries(y=y),
            }
        ]
    )


DAMAGED: Final[dict[str, Callable[[], bytes]]] = {
    "bad_quantization": _bad_quantization,
    "buffer_beyond": _changed(tensor={"buffer": 99}),
    "code_beyond": _changed(operator={"opcode_index": 9}),
    "custom_options": _changed(operator={"custom_options": b"abc"}),
    "identifier": lambda: files.relu().encode().replace(b"TFL3", b"TFL9", 1),
    "input_beyond": _changed(graph={"inputs": [7]}),
    "negative_shape": _changed(tensor={"shape": [-2, 4]}),
    "no_operators": _changed(graph={"operators": []}),
    "no_subgraphs": _changed(root={"subgraphs": []}),
    "operand_beyond": _changed(operator={"inputs": [42]}),
    "output_beyond": _changed(graph={"outputs": [7]}),
    "too_new": _changed(code={"version": 99}),
    "unknown_builtin": _changed(code={"builtin_code": 9999, "deprecated_builtin_code": 127}),
    "unknown_type": _changed(tensor={"type": 100}),
    "version_2": lambda: files.relu().encode(version=2),
}
"""Files with one defect."""

BUILDERS: Final[dict[str, Callable[[], bytes]]] = {
    "accumulator": lambda: files.accumulator().encode(),
    "branches": _branches,
    "chain": _chain,
    "constant_output": _constant_output,
    "custom": _custom("Mystery"),
    "division": _division,
    "dynamic": _dynamic,
    "dynamic_output": _dynamic_output,
    "empty_tensor": _empty_tensor,
    "flex": _custom("FlexAddV2"),
    "float16_weights": _float16_weights,
    "fully_connected": _fully_connected,
    "hash_table": lambda: files.hash_table().encode(),
    "input_is_output": _input_is_output,
    "input_twice": _input_twice,
    "int4_weights": _int4_weights,
    "loop": _loop,
    "nameless": _nameless,
    "odd_quantization": _odd_quantization,
    "output_twice": _output_twice,
    "no_input": _no_input,
    "per_channel": _per_channel,
    "scalar": _scalar,
    "second_signature": _second_signature_alone,
    "shared_state": _shared_state,
    "signature": _signature,
    "signatures": _signatures,
    "sparse": _sparse,
    "static": _static,
    "strings": _strings,
    "svdf": lambda: files.svdf().encode(),
    "two": _two,
    "two_names": _two_names_for_one,
    "unranked": _unranked,
    "where": _where,
    "where_signature": _where_signature,
    **{f"pass_{t.lower()}": _passing(t) for t in NUMBERS},
    **{f"quantized_{t.lower()}": _per_tensor(t) for t in ("INT8", "UINT8", "INT16", "INT32")},
}
