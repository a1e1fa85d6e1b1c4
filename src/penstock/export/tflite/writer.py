"""`write`: any model, or slice of one, as a `.tflite` file (schema v3)."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import NotExportable
from penstock.export.tflite.encoding import Buffers, encode
from penstock.export.tflite.fields import TFLITE
from penstock.export.tflite.subgraphs import FileParts, SubgraphWriter, Values, initial_values
from penstock.interrupts import polled
from penstock.ir.model import Model
from penstock.ir.validate import reachable

SCHEMA_VERSION: Final = 3
INLINE_LIMIT: Final = 2**31 - 2**24
"""FlatBuffers end at 2 GiB. Constants that do not fit are written behind the FlatBuffer."""

ARCHIVE_DATE: Final = (1980, 1, 1, 0, 0, 0)


def write(model: Model, *, inline_limit: int = INLINE_LIMIT, outputs_first: bool = False) -> bytes:
    """The bytes of a `.tflite` file that computes *model*. Equal models give equal bytes.

    The FlatBuffer contains constants of up to *inline_limit* bytes together. Larger constants are
    stored behind it, which every reader of schema v3.c and later supports. With *outputs_first* a
    subgraph's outputs follow its inputs in the list of tensors. Other tensors follow in the order
    of their use. Raises `NotExportable`, with the operation, for an operation that TFLite does not
    have.
    """
    order = reachable(model, [model.main, *(s.subgraph for s in model.signatures.values())])
    parts = FileParts(model, order)
    buffers = parts.buffers
    writers = [SubgraphWriter(parts, index) for index in polled(order)]
    init = len(order) if any(w.has_initial_values for w in writers) else None
    subgraphs: list[Values] = [w.table(init, outputs_first=outputs_first) for w in writers]
    if init is not None:
        subgraphs.append(initial_values(parts, writers))
    root: dict[str, Any] = {
        "version": SCHEMA_VERSION,
        "operator_codes": parts.codes.tables,
        "subgraphs": subgraphs,
        "description": "Penstock",
        "signature_defs": _signatures(parts, writers),
        "metadata": [
            {"name": n, "buffer": buffers.blob(content)}
            for n, content in model.metadata.entries.items()
        ],
    }
    if buffers.nbytes > inline_limit:
        file = _with_external(root, buffers)
    else:
        root["buffers"] = buffers.inline()
        file = encode(TFLITE, root)
    return _with_files(file, model.metadata.files)


def _signatures(parts: FileParts, writers: list[SubgraphWriter]) -> list[Values]:
    tables: list[Values] = []
    for name, signature in parts.model.signatures.items():
        index = parts.numbers[signature.subgraph]
        inputs, outputs = (
            [{"name": label, "tensor_index": writers[index].tensor_of(i)} for label, i in named]
            for named in (signature.inputs, signature.outputs)
        )
        tables.append({
            "inputs": inputs,
            "outputs": outputs,
            "signature_key": name,
            "subgraph_index": index,
        })  # fmt: skip
    return tables


def _with_external(root: dict[str, Any], buffers: Buffers) -> bytes:
    root["buffers"] = buffers.external(buffers.PLACEHOLDER)
    length = len(encode(TFLITE, root))
    root["buffers"] = buffers.external(length)
    head = encode(TFLITE, root)
    if len(head) != length:
        raise NotExportable(
            f"the graph itself takes {len(head)} bytes, of which {length} were planned"
        )
    return b"".join([head, *buffers.tail(length)])


def _with_files(file: bytes, files: Mapping[str, bytes]) -> bytes:
    """*file*, followed by the associated files as a zip archive."""
    if not files:
        return file
    import zipfile

    stream = io.BytesIO(file)
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, ARCHIVE_DATE), content, zipfile.ZIP_DEFLATED)
    return stream.getvalue()
