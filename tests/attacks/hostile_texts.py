"""Files whose names and texts are commands to a terminal."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Final

import numpy as np

from tests.support_onnx import helper
from tests.unit.loaders.files import FileBuilder, described, relu

COMMANDS: Final = {
    "a title": "\x1b]0;title\x07",
    "a cleared screen": "\x1b[2J",
    "the clipboard": "\x1b]52;c;cGF5bG9hZA==\x07",
    "a C1 control sequence": "\x9b31m",
    "text from right to left": "\u202egnp.\u2066",
    "a line's end of Unicode": "\u2028",
    "a carriage return": "\rover",
    "bytes that are no text": "\udcff",
}
TEXT: Final = "x" + "".join(COMMANDS.values())
"""All of them, as a name in a file that may hold anything that UTF-8 can say."""

SPOKEN: Final = TEXT.replace("\udcff", "")


def write_all(directory: Path) -> dict[str, Path]:
    """Files by what is hostile in them."""
    contents = {
        "names.tflite": names(),
        "custom.tflite": custom(),
        "refused.tflite": refused(),
        "members.tflite": members(),
        "names.onnx": onnx_names("Relu"),
        "refused.onnx": onnx_names(f"Odd{SPOKEN}"),
        "labels.txt": (f"label{SPOKEN}".replace("\r", "").replace("\u2028", "") + "\n").encode()
        * 4,
        f"called{SPOKEN}.tflite": relu([1, 4]).encode(),
        f"called{SPOKEN}.txt": b"no array",
        f"called{SPOKEN}.capsule": b"no capsule",
    }
    written = {}
    for name, content in contents.items():
        path = directory / name
        path.write_bytes(content)
        written[name.replace(SPOKEN, "")] = path
    array = io.BytesIO()
    np.save(array, np.zeros((1, 4), np.float32))
    written["arrays.npz"] = directory / "arrays.npz"
    with zipfile.ZipFile(written["arrays.npz"], "w") as archive:
        archive.writestr(f"x{SPOKEN}.npy", array.getvalue())
    return written


def names() -> bytes:
    """Every name and description of a TFLite file."""
    file = FileBuilder()
    x, y = file.tensor(f"in{SPOKEN}", [1, 4]), file.tensor(f"out{SPOKEN}", [1, 4])
    file.operator("RELU", [x], [y])
    file.end([x], [y])
    file.graph["name"] = f"graph{SPOKEN}"
    file.root["description"] = f"description{SPOKEN}"
    file.root["signature_defs"] = [
        {
            "signature_key": f"signature{SPOKEN}",
            "inputs": [{"name": f"a{SPOKEN}", "tensor_index": x}],
            "outputs": [{"name": f"b{SPOKEN}", "tensor_index": y}],
        }
    ]
    told = described(
        name=f"name{SPOKEN}",
        input_tensor_metadata=[{"name": f"n{SPOKEN}", "description": f"d{SPOKEN}"}],
    )
    file.root["metadata"] = [
        {"name": f"entry{SPOKEN}", "buffer": file.buffer(b"x")},
        {"name": "TFLITE_METADATA", "buffer": file.buffer(told)},
    ]
    return file.encode()


def custom() -> bytes:
    """A custom operator that nobody knows."""
    file = FileBuilder()
    x, y = file.tensor("in", [1, 4]), file.tensor("out", [1, 4])
    file.operator(f"CUSTOM:own{SPOKEN}", [x], [y])
    return file.finish([x], [y])


def refused() -> bytes:
    """A tensor of a shape that contradicts its operation."""
    file = FileBuilder()
    x, y = file.tensor(f"in{SPOKEN}", [1, 4]), file.tensor(f"out{SPOKEN}", [1, 5])
    z = file.tensor(f"sum{SPOKEN}", [1, 5])
    file.operator("ADD", [x, y], [z])
    return file.finish([x, y], [z])


def members() -> bytes:
    """Files of labels beside the model, as TFLite's metadata packs them."""
    stream = io.BytesIO(relu([1, 4]).encode())
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr(f"labels{SPOKEN}.txt", f"label{SPOKEN}")
    return stream.getvalue()


def onnx_names(operator: str) -> bytes:
    """Every name and text of an ONNX file."""
    node = helper.make_node(operator, [f"x{SPOKEN}"], [f"y{SPOKEN}"], name=f"node{SPOKEN}")
    graph = helper.make_graph(
        [node],
        f"graph{SPOKEN}",
        [helper.make_tensor_value_info(f"x{SPOKEN}", 1, [1, 4])],
        [helper.make_tensor_value_info(f"y{SPOKEN}", 1, [1, 4])],
    )
    made = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17)],
        doc_string=f"text{SPOKEN}",
        producer_name=f"producer{SPOKEN}",
    )
    content: bytes = made.SerializeToString()
    return content
