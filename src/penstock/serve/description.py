"""What a server tells of a model: the protocol's metadata, and Triton's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.ir import DType, Operand
from penstock.serve.datatypes import NAMES
from penstock.serve.served import ServedSignature
from penstock.serve.settings import Settings

PLATFORM: Final = "penstock"


def metadata(name: str, versions: list[str], served: ServedSignature) -> dict[str, Any]:
    """The protocol's `ModelMetadataResponse`; -1 in a shape is an unknown dimension."""
    return {
        "name": name,
        "versions": versions,
        "platform": PLATFORM,
        "inputs": _tensors(served.inputs),
        "outputs": _tensors(served.outputs),
    }


def config(name: str, served: ServedSignature, settings: Settings) -> dict[str, Any]:
    """The fields of Triton's `ModelConfig` that apply.

    `max_batch_size` is the greatest batch that requests share, 0 if they share none. As in Triton,
    shapes then have no batch dimension.
    """
    batching = settings.batching
    found: dict[str, Any] = {
        "name": name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": batching.rows if served.is_batched else 0,
        "input": _configured(served.inputs, is_batched=served.is_batched),
        "output": _configured(served.outputs, is_batched=served.is_batched),
    }
    if served.is_batched:
        found["dynamic_batching"] = {
            "preferred_batch_size": list(batching.sizes),
            "max_queue_delay_microseconds": round(batching.delay * 1e6),
        }
    return found


def _tensors(operands: Sequence[Operand]) -> list[dict[str, Any]]:
    return [{"name": o.name, "datatype": NAMES[o.dtype], "shape": _dimensions(o)} for o in operands]


def _configured(operands: Sequence[Operand], *, is_batched: bool) -> list[dict[str, Any]]:
    return [
        {
            "name": operand.name,
            "data_type": "TYPE_STRING" if operand.dtype is DType.STRING else _type(operand.dtype),
            "dims": _dimensions(operand)[is_batched:],
        }
        for operand in operands
    ]


def _type(dtype: DType) -> str:
    return f"TYPE_{NAMES[dtype]}"


def _dimensions(operand: Operand) -> list[int]:
    return [-1 if size is None else size for size in operand.shape or ()]
