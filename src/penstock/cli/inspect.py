"""`penstock inspect`: the contents of a model file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli import options
from penstock.cli.output import milliseconds, output_of, size
from penstock.errors import counted

if TYPE_CHECKING:
    from penstock.ir import Model, Operand, TensorMetadata


def inspect(context: typer.Context, model: options.ModelFile) -> None:
    """Show a model's inputs, outputs, signatures, operations and metadata."""
    from penstock.cli import opening

    output = output_of(context)
    loaded = opening.load(model)
    data = describe(loaded.model)
    nbytes = Path(model).stat().st_size
    output.line(f"{model}: {size(nbytes)}, loaded in {milliseconds(loaded.load_ns)}", "bold")
    output.line(f"digest {data['digest']}", "dim")
    if text := " ".join(
        data["metadata"][k] for k in ("name", "version", "author", "license") if data["metadata"][k]
    ):
        output.line(text)
    if data["metadata"]["description"]:
        output.line(data["metadata"]["description"])
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
    if data["metadata"]["files"]:
        output.line(f"associated files: {_list(data['metadata']['files'])}")
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
            _elements(o) for s in model.subgraphs for o in s.operands if o.is_constant
        ),
        "metadata": {
            "name": metadata.name,
            "description": metadata.description,
            "version": metadata.version,
            "author": metadata.author,
            "license": metadata.license,
            "files": sorted(metadata.files),
            "inputs": [_about(m) for m in metadata.inputs],
            "outputs": [_about(m) for m in metadata.outputs],
        },
    }


def _operand(operand: Operand) -> dict[str, Any]:
    q = operand.quantization
    return {
        "name": operand.name,
        "dtype": operand.dtype.value,
        "shape": None if operand.shape is None else list(operand.shape),
        "quantization": None
        if q is None
        else {"scales": q.scales, "zero_points": q.zero_points, "dimension": q.dimension},
    }


def _about(metadata: TensorMetadata) -> dict[str, Any]:
    return {
        "name": metadata.name,
        "description": metadata.description,
        "content": metadata.content,
        "normalization": metadata.normalization,
        "labels": None if metadata.labels is None else len(metadata.labels),
    }


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
        rows.append(
            (
                f"{kind} {position}",
                operand.name,
                show_operand(operand),
                "; ".join(filter(None, parts)),
            )
        )
    return rows


def _elements(operand: Operand) -> int:
    count = 1
    for dimension in operand.shape or ():
        count *= dimension or 0
    return count


def _list(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
