"""The model: immutable, validated, with a digest. It depends on no file format and no device."""

from typing import TYPE_CHECKING

from penstock.facade import lazily

if TYPE_CHECKING:
    from penstock.ir.builder import ModelBuilder, SubgraphBuilder
    from penstock.ir.form import Digest
    from penstock.ir.infer import infer_shapes
    from penstock.ir.model import Model
    from penstock.ir.operand import DataLocation, ExtensionType, Lifetime, Operand, Origin
    from penstock.ir.operation import Attributes, AttributeValue, Operation
    from penstock.ir.subgraph import (
        ConstantPool,
        Metadata,
        Signature,
        StatePort,
        Subgraph,
        TensorMetadata,
        Variable,
    )
    from penstock.ir.types import DType, NDArray, Quantization, Shape

__all__ = [
    "AttributeValue",
    "Attributes",
    "ConstantPool",
    "DType",
    "DataLocation",
    "Digest",
    "ExtensionType",
    "Lifetime",
    "Metadata",
    "Model",
    "ModelBuilder",
    "NDArray",
    "Operand",
    "Operation",
    "Origin",
    "Quantization",
    "Shape",
    "Signature",
    "StatePort",
    "Subgraph",
    "SubgraphBuilder",
    "TensorMetadata",
    "Variable",
    "infer_shapes",
]

__getattr__ = lazily(
    __name__,
    {
        "builder": "ModelBuilder SubgraphBuilder",
        "form": "Digest",
        "infer": "infer_shapes",
        "model": "Model",
        "subgraph": "ConstantPool Metadata Signature StatePort Subgraph TensorMetadata Variable",
        "operand": "DataLocation ExtensionType Lifetime Operand Origin",
        "operation": "Attributes AttributeValue Operation",
        "types": "DType NDArray Quantization Shape",
    },
)
