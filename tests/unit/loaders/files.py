"""Small TFLite files, table by table, as tests and mutations need them.

file = FileBuilder()
x, y = file.tensor("x", [1, 4]), file.tensor("y", [1, 4])
file.operator("RELU", [x], [y])
content = file.finish(inputs=[x], outputs=[y])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.export.tflite.encoding import encode
from penstock.export.tflite.fields import OPTIONS_OF_OPERATOR, TFLITE
from penstock.export.tflite.metadata_schema import METADATA
from penstock.ir import DType
from penstock.ir.builder import pack

Values = dict[str, Any]


class FileBuilder:
    """Collects one file. `root` is what `encode` gets: change anything in it before `encode()`."""

    def __init__(self) -> None:
        self.codes: list[Values] = []
        self.buffers: list[Values] = [{}]
        self.subgraphs: list[Values] = []
        self.root: Values = {
            "version": 3,
            "operator_codes": self.codes,
            "subgraphs": self.subgraphs,
            "buffers": self.buffers,
        }
        self.begin()

    def begin(self, name: str = "") -> int:
        """Starts another subgraph, which later calls add to, and returns its index."""
        self.subgraphs.append(
            {"tensors": [], "operators": [], "inputs": [], "outputs": [], "name": name}
        )
        return len(self.subgraphs) - 1

    @property
    def graph(self) -> Values:
        return self.subgraphs[-1]

    def tensor(
        self,
        name: str,
        shape: Sequence[int] = (),
        dtype: str = "FLOAT32",
        value: Any = None,
        **fields: Any,
    ) -> int:
        """Adds a tensor; *value* is an array, or the bytes of its buffer."""
        table = {"name": name, "shape": list(shape), "type": TFLITE.number("TensorType", dtype)}
        if value is not None:
            table["buffer"] = self.buffer(
                value if isinstance(value, bytes) else pack(np.asarray(value))[0]
            )
        self.graph["tensors"].append({**table, **fields})
        return len(self.graph["tensors"]) - 1

    def buffer(self, content: bytes) -> int:
        self.buffers.append({"data": content})
        return len(self.buffers) - 1

    def operator(
        self,
        kind: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: Values | None = None,
        **fields: Any,
    ) -> Values:
        """Adds an operator; `CUSTOM:name` is a custom one."""
        name, _, custom = kind.partition(":")
        table: Values = {
            "opcode_index": self.code(name, custom),
            "inputs": list(inputs),
            "outputs": list(outputs),
        }
        if options is not None:
            target = OPTIONS_OF_OPERATOR[name]
            for union, field in (
                ("BuiltinOptions", "builtin_options"),
                ("BuiltinOptions2", "builtin_options2"),
            ):
                if target in TFLITE.unions[union]:
                    table[f"{field}_type"] = TFLITE.unions[union].index(target)
                    table[field] = options
        table.update(fields)
        self.graph["operators"].append(table)
        return table

    def code(self, name: str, custom: str = "") -> int:
        number = TFLITE.number("BuiltinOperator", name)
        table = {
            "deprecated_builtin_code": min(number, 127),
            "builtin_code": number,
            "custom_code": custom or None,
        }
        if table not in self.codes:
            self.codes.append(table)
        return self.codes.index(table)

    def finish(self, inputs: Sequence[int], outputs: Sequence[int], **root: Any) -> bytes:
        """Ends the last subgraph with these inputs and outputs, and encodes the file."""
        self.end(inputs, outputs)
        return self.encode(**root)

    def end(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.graph["inputs"], self.graph["outputs"] = list(inputs), list(outputs)

    def encode(self, **root: Any) -> bytes:
        return encode(TFLITE, {**self.root, **root})


def relu(shape: Sequence[int] = (1, 4), **tensor: Any) -> FileBuilder:
    """One RELU from tensor 0 to tensor 1; *tensor* fields go to the input."""
    file = FileBuilder()
    x, y = file.tensor("x", shape, **tensor), file.tensor("y", shape)
    file.operator("RELU", [x], [y])
    file.end([x], [y])
    return file


def quantization(
    scale: Sequence[float], zero_point: Sequence[int] | None = None, axis: int = 0
) -> Values:
    points = [0] * len(scale) if zero_point is None else list(zero_point)
    return {"scale": list(scale), "zero_point": points, "quantized_dimension": axis}


def accumulator(name: str = "total") -> FileBuilder:
    """y = total = total + x, the total in a resource variable that starts at [1, 2] by
    CALL_ONCE.
    """
    file = FileBuilder()
    file.operator("CALL_ONCE", [], [], {"init_subgraph_index": 1})
    handle = file.tensor("handle", [], "RESOURCE")
    x, before, after = (file.tensor(n, [2]) for n in ("x", "before", "after"))
    file.operator("VAR_HANDLE", [], [handle], {"container": "", "shared_name": name})
    file.operator("READ_VARIABLE", [handle], [before])
    file.operator("ADD", [x, before], [after])
    file.operator("ASSIGN_VARIABLE", [handle, after], [])
    file.end([x], [after])
    file.begin("init")
    handle = file.tensor("handle", [], "RESOURCE")
    initial = file.tensor("initial", [2], value=np.array([1, 2], np.float32))
    file.operator("VAR_HANDLE", [], [handle], {"container": "", "shared_name": name})
    file.operator("ASSIGN_VARIABLE", [handle, initial], [])
    file.end([], [])
    return file


def counting_loop() -> FileBuilder:
    """WHILE total < limit: total += 1, the total in a resource variable that the body changes."""
    file = FileBuilder()
    handle, i, n = (
        file.tensor("h", [], "RESOURCE"),
        file.tensor("i", [], "INT32"),
        file.tensor("n", [], "INT32"),
    )
    before, after = file.tensor("before", [], "INT32"), file.tensor("after", [], "INT32")
    file.operator("VAR_HANDLE", [], [handle], {"container": "", "shared_name": "count"})
    file.operator("READ_VARIABLE", [handle], [before])
    file.operator("WHILE", [i], [n], {"cond_subgraph_index": 1, "body_subgraph_index": 2})
    file.operator("READ_VARIABLE", [handle], [after])
    file.end([i], [n, after])
    file.begin("cond")
    i, limit, less = (
        file.tensor("i", [], "INT32"),
        file.tensor("limit", [], "INT32", np.int32(5)),
        file.tensor("l", [], "BOOL"),
    )
    file.operator("LESS", [i, limit], [less])
    file.end([i], [less])
    file.begin("body")
    i, one, j = (
        file.tensor("i", [], "INT32"),
        file.tensor("one", [], "INT32", np.int32(1)),
        file.tensor("j", [], "INT32"),
    )
    handle, value, more = (
        file.tensor("h", [], "RESOURCE"),
        file.tensor("v", [], "INT32"),
        file.tensor("m", [], "INT32"),
    )
    file.operator("VAR_HANDLE", [], [handle], {"container": "", "shared_name": "count"})
    file.operator("READ_VARIABLE", [handle], [value])
    file.operator("ADD", [value, i], [more])
    file.operator("ASSIGN_VARIABLE", [handle, more], [])
    file.operator("ADD", [i, one], [j])
    file.end([i], [j])
    return file


def sparse_matrix(dense: Any, **tensor: Any) -> FileBuilder:
    """DENSIFY of a sparse constant: rows dense, columns compressed."""
    file = FileBuilder()
    columns = [np.flatnonzero(row) for row in dense]
    segments = np.cumsum([0, *map(len, columns)])
    sparsity = {
        "traversal_order": [0, 1],
        "block_map": [],
        "dim_metadata": [
            {"format": 0, "dense_size": dense.shape[0]},
            {
                "format": 1,
                "array_segments_type": TFLITE.unions["SparseIndexVector"].index("Int32Vector"),
                "array_segments": {"values": segments},
                "array_indices_type": TFLITE.unions["SparseIndexVector"].index("Uint8Vector"),
                "array_indices": {"values": np.concatenate(columns).astype(np.uint8).tobytes()},
            },
        ],
    }
    sparse = file.tensor("w", dense.shape, value=dense[dense != 0], sparsity=sparsity, **tensor)
    x, w, y = (
        file.tensor("x", dense.shape),
        file.tensor("dense", dense.shape),
        file.tensor("y", dense.shape),
    )
    file.operator("DENSIFY", [sparse], [w])
    file.operator("ADD", [x, w], [y])
    file.end([x], [y])
    return file


def svdf() -> FileBuilder:
    """One SVDF with its state in a variable tensor."""
    file = FileBuilder()
    x, y = file.tensor("x", [1, 2]), file.tensor("y", [1, 3])
    feature = file.tensor("feature", [3, 2], value=np.ones((3, 2), np.float32))
    time = file.tensor("time", [3, 4], value=np.ones((3, 4), np.float32))
    state = file.tensor("state", [1, 12], is_variable=True)
    file.operator("SVDF", [x, feature, time, -1, state], [y], {"rank": 1})
    file.end([x], [y])
    return file


def hash_table() -> FileBuilder:
    """HASHTABLE_FIND in a table imported from constants."""
    file = FileBuilder()
    table = file.tensor("table", [], "RESOURCE")
    keys = file.tensor("keys", [3], "INT64", np.array([5, 6, 7], np.int64))
    names = file.tensor("names", [3], "STRING", np.array([b"a", b"bb", b"ccc"], object))
    default = file.tensor("default", [], "STRING", np.array(b"?", object))
    query, found = file.tensor("query", [2], "INT64"), file.tensor("found", [2], "STRING")
    types = {
        k: TFLITE.number("TensorType", v)
        for k, v in (("key_dtype", "INT64"), ("value_dtype", "STRING"))
    }
    file.operator("HASHTABLE", [], [table], {"table_id": 3, **types})
    file.operator("HASHTABLE_IMPORT", [table, keys, names], [])
    file.operator("HASHTABLE_FIND", [table, query, default], [found])
    file.end([query], [found])
    return file


def computed_table() -> FileBuilder:
    """A `hash_table` with keys that are an input of the model."""
    file = hash_table()
    keys = file.tensor("new keys", [3], "INT64")
    file.graph["inputs"].append(keys)
    file.graph["operators"][1]["inputs"][1] = keys
    return file


def random_draws() -> FileBuilder:
    """Two operators of the same seeds, which draw from generators of their own."""
    file = FileBuilder()
    shape = file.tensor("shape", [1], "INT32", np.array([3], np.int32))
    first, second = (file.tensor(n, [3]) for n in ("first", "second"))
    for output in (first, second):
        file.operator("RANDOM_UNIFORM", [shape], [output], {"seed": 1, "seed2": 2})
    file.end([], [first, second])
    return file


def block_scaled(
    scales: Any = None, *, shape: tuple[int, ...] = (4, 8), constant: bool = True, **details: int
) -> FileBuilder:
    """EMBEDDING_LOOKUP in a table of int4 rows in two blocks each."""
    kind = TFLITE.unions["QuantizationDetails"].index("BlockwiseQuantization")
    file = FileBuilder()
    ids, rows = file.tensor("ids", [2], "INT32"), file.tensor("rows", [2, 8])
    array = np.ones((4, 2), np.float16) if scales is None else scales
    place = file.tensor(
        "scales", array.shape, array.dtype.name.upper(), array if constant else None
    )
    values = np.zeros(shape, DType.INT4.numpy)
    found = {"scales": place, "block_size": 4, "zero_points": 0, **details}
    params = file.tensor(
        "params",
        shape,
        "INT4",
        pack(values, DType.INT4)[0],
        quantization={"details_type": kind, "details": found},
    )
    file.operator("EMBEDDING_LOOKUP", [ids, params], [rows])
    file.end([ids], [rows])
    return file


def described(**subgraph: Any) -> bytes:
    """A TFLITE_METADATA buffer."""
    return encode(
        METADATA, {"name": "net", "description": "what it does", "subgraph_metadata": [subgraph]}
    )


SAMPLES = (relu, accumulator, counting_loop, svdf, hash_table)
