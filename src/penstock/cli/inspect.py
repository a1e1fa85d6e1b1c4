"""`penstock inspect`: the contents of a model file."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cli import options
from penstock.cli.output import Output, milliseconds, size
from penstock.errors import counted

if TYPE_CHECKING:
    from penstock.ir import Model, Operand, TensorMetadata


def inspect(output: Output, model: options.ModelFile) -> None:
    """Show a model's inputs, outputs, signatures, operations and metadata."""
    from penstock.cli import opening

    loaded = opening.load(model)
    data = describe(loaded.model)
    nbytes = Path(model).stat().st_size
    output.line(f"{model}: {size(nbytes)}, loaded in {milliseconds(loaded.load_ns)}", "bold")
    output.line(f"digest {data['digest']}", "dim")
    metadata = data["metadata"]
    about = [metadata[k] for k in ("name", "version", "author", "license")]
    for text in (" ".join(filter(None, about)), metadata["description"]):
        if text:
            output.line(text)
    output.table(
        ("", "name", "type", "metadata"),
        [
            *_rows("input", loaded.model.inputs, loaded.model.metadata.inputs),
            *_rows("output", loaded.model.outputs, loaded.model.metadata.outputs),
        ],
    )
    for name, signature in data["signatures"].items():
        output.line(
            f"signature {name!r}: {_list(signature['inputs'])} -> {_list(signature['outputs'])}"
        )
    for variable in data["states"]:
        output.line(f"state {variable['name']!r}: {variable['dtype']}{variable['shape']}")
    output.table(("operation", "count"), data["operations"].items())
    if metadata["files"]:
        output.line(f"associated files: {_list(metadata['files'])}")
    output.line(
        f"operations: {sum(data['operations'].values())}, subgraphs: {data['subgraphs']}, "
        f"constant values: {data['parameters']:,}"
    )
    output.json({"file": model, "nbytes": nbytes, **data})


def describe(model: Model) -> dict[str, Any]:
    """The model for `--json`."""
    metadata = model.metadata
    return {
        "digest": model.digest.hex(),
        "inputs": [_operand(o) for o in model.inputs],
        "outputs": [_operand(o) for o in model.outputs],
        "signatures": {
            name: {
                "subgraph": s.subgraph,
                "inputs": [n for n, _ in s.inputs],
                "outputs": [n for n, _ in s.outputs],
            }
            for name, s in model.signatures.items()
        },
        "states": [
            {
                "name": v.name,
                "dtype": v.dtype.value,
                "shape": None if v.shape is None else list(v.shape),
            }
            for v in model.variables
        ],
        "subgraphs": len(model.subgraphs),
        "operations": dict(
            Counter(o.key for s in model.subgraphs for o in s.operations).most_common()
        ),
        "parameters": sum(
            math.prod(d or 0 for d in o.shape or ())
            for s in model.subgraphs
            for o in s.operands
            if o.is_constant
        ),
        "metadata": {
            **{
                name: getattr(metadata, name)
                for name in ("name", "description", "version", "author", "license")
            },
            "files": sorted(metadata.files),
            "inputs": [_about(m) for m in metadata.inputs],
            "outputs": [_about(m) for m in metadata.outputs],
        },
    }


def _operand(operand: Operand) -> dict[str, Any]:
    return {
        "name": operand.name,
        "dtype": operand.dtype.value,
        "shape": operand.shape,
        "quantization": msgspec.to_builtins(operand.quantization),
    }


def _about(metadata: TensorMetadata) -> dict[str, Any]:
    names = ("name", "description", "content", "normalization")
    labels = None if metadata.labels is None else len(metadata.labels)
    return {**{name: getattr(metadata, name) for name in names}, "labels": labels}


def _rows(
    kind: str, operands: tuple[Operand, ...], metadata: tuple[TensorMetadata, ...]
) -> list[tuple[str, str, str, str]]:
    from penstock.ir import TensorMetadata
    from penstock.ir.model import show_operand

    rows = []
    for position, operand in enumerate(operands):
        about = metadata[position] if position < len(metadata) else TensorMetadata()
        parts = [about.name, about.content]
        if about.normalization is not None:
            mean, std = (", ".join(f"{v:g}" for v in values) for values in about.normalization)
            parts.append(f"mean {mean} std {std}")
        if about.labels is not None:
            parts.append(f"{counted(len(about.labels), 'label')}")
        shown = show_operand(operand), "; ".join(filter(None, parts))
        rows.append((f"{kind} {position}", operand.name, *shown))
    return rows


def _list(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
