"""Derive `penstock/export/tflite/schema.py` from the FlatBuffers module that ai-edge-litert ships.

Run: python tools/generate_schema.py [--check]

The generated module of that package is read by calling its builder functions with a recorder (slots,
scalar types, defaults) and by looking at its accessors (strings, vectors, tables, unions). What it does
not say is in the two tables below: which fields hold an enumeration, and which options table belongs
to an operator whose name does not tell.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

TARGET = Path(__file__).parents[1] / "src" / "penstock" / "export" / "tflite" / "schema.py"

ENUM_FIELDS = {
    "Tensor.type": "TensorType",
    "VariantSubType.type": "TensorType",
    "DimensionMetadata.format": "DimensionType",
    "LSHProjectionOptions.type": "LSHProjectionType",
    "Operator.custom_options_format": "CustomOptionsFormat",
    "StableHLOCompositeOptions.composite_attributes_format": "CustomOptionsFormat",
    "StablehloRngBitGeneratorOptions.algorithm": "RngAlgorithm",
    "ReduceWindowOptions.reduce_function": "ReduceWindowFunction",
    "OperatorCode.builtin_code": "BuiltinOperator",
    "fused_activation_function": "ActivationFunctionType",
    "padding": "Padding",
    "kernel_type": "LSTMKernelType",
    "weights_format": "FullyConnectedOptionsWeightsFormat",
    "combiner": "CombinerType",
    "mode": "MirrorPadMode",
    "comparison_direction": "StablehloComparisonDirection",
    "compare_type": "StablehloComparisonType",
    "precision_config": "StablehloPrecisionConfig",
    "output_type": "TensorType",
    "in_data_type": "TensorType",
    "out_data_type": "TensorType",
    "quantized_bias_type": "TensorType",
    "key_dtype": "TensorType",
    "value_dtype": "TensorType",
    "out_type": "TensorType",
    "idx_out_type": "TensorType",
}

SCALAR_OF_ENUM = {
    "BuiltinOperator": "int32",
    "ReduceWindowFunction": "int32",
    "StablehloPrecisionConfig": "uint32",
    "StablehloComparisonDirection": "uint32",
    "StablehloComparisonType": "uint32",
}

OPTIONS = {
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "L2_POOL_2D": "Pool2DOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "LOCAL_RESPONSE_NORMALIZATION": "LocalResponseNormalizationOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
    "MEAN": "ReducerOptions",
    "SUM": "ReducerOptions",
    "REDUCE_PROD": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "REDUCE_ANY": "ReducerOptions",
    "REDUCE_ALL": "ReducerOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "CONV_3D_TRANSPOSE": "Conv3DOptions",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "BROADCAST_TO": "BroadcastToOptions",
    "STABLEHLO_COMPOSITE": "StableHLOCompositeOptions",
    "STABLEHLO_SLICE": "StablehloSliceOptions",
    "STABLEHLO_RNG_BIT_GENERATOR": "StablehloRngBitGeneratorOptions",
    "CONCAT_EMBEDDINGS": "ConcatEmbeddingsOptions",
    "CALL": "CallOptions",
    "RANDOM_UNIFORM": "RandomOptions",
    "RANDOM_STANDARD_NORMAL": "RandomOptions",
    "MULTINOMIAL": "RandomOptions",
}

SCALARS = {
    "Bool": "bool", "Int8": "int8", "Uint8": "uint8", "Int16": "int16", "Uint16": "uint16", "Int32": "int32",
    "Uint32": "uint32", "Int64": "int64", "Uint64": "uint64", "Float32": "float32", "Float64": "float64",
}  # fmt: skip


class Recorder:
    """Stands in for a `flatbuffers.Builder` and keeps the last call."""

    def __init__(self) -> None:
        self.call: tuple[str, tuple[Any, ...]] = ("", ())

    def __getattr__(self, name: str) -> Any:
        def record(*arguments: Any) -> None:
            self.call = name, arguments

        return record


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def is_enum(item: Any) -> bool:
    values = [v for k, v in vars(item).items() if not k.startswith("_")]
    return bool(values) and all(isinstance(v, int) for v in values)


def enums_of(module: ModuleType) -> dict[str, dict[str, int]]:
    return {
        name: {k: v for k, v in vars(item).items() if not k.startswith("_")}
        for name, item in vars(module).items()
        if inspect.isclass(item) and item.__module__ == module.__name__ and is_enum(item)
    }


def field_type(
    module: ModuleType, table: str, camel: str, scalar: str | None, unions: dict[str, list[str]]
) -> str:
    if scalar:
        return scalar
    accessor = inspect.getsource(getattr(getattr(module, table), camel))
    vector = "_tab.Vector(" in accessor
    if "_tab.Union(" in accessor:
        annotation = re.search(rf"self\.{camel[0].lower()}{camel[1:]} = .*# type: Union\[(.*)\]",
                               inspect.getsource(getattr(module, table + "T").__init__))  # fmt: skip
        if annotation is None:
            raise SystemExit(f"{table}.{camel}: no union annotation")
        members = re.findall(r"'?(\w+)T\b", annotation[1])
        return next(name for name, tables in unions.items() if tables[1:] == members)
    if "_tab.String(" in accessor:
        kind = "string"
    elif made := re.search(r"obj = (\w+)\(\)", accessor):
        kind = made[1]
    else:
        flags = re.search(r"_tab\.Get\(flatbuffers\.number_types\.(\w+)Flags", accessor)
        if flags is None:
            raise SystemExit(f"{table}.{camel}: accessor not understood")
        kind = SCALARS[flags[1]]
    return f"[{kind}]" if vector else kind


def fields_of(module: ModuleType, table: str, unions: dict[str, list[str]]) -> list[str]:
    recorder = Recorder()
    getattr(module, table + "Start")(recorder)
    slots: list[str] = ["_"] * recorder.call[1][0]
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if not name.startswith(table + "Add") or not inspect.getsource(function).startswith(
            f"def {table}Add"
        ):
            continue
        camel = name[len(table) + 3 :]
        if not hasattr(getattr(module, table), camel):
            continue
        function(recorder, 1)
        method, (slot, _, default) = recorder.call
        scalar = SCALARS.get(method.removeprefix("Prepend").removesuffix("Slot"))
        field = snake(camel)
        kind = field_type(module, table, camel, scalar, unions)
        enum = ENUM_FIELDS.get(f"{table}.{field}") or ENUM_FIELDS.get(field)
        element = kind.strip("[]")
        if enum and element == SCALAR_OF_ENUM.get(enum, "int8"):
            kind = kind.replace(element, enum)
        text = f"{field}: {kind}"
        if scalar and default:
            text += f" = {'true' if scalar == 'bool' else default}"
        slots[slot] = text
    for slot, text in enumerate(slots):
        if text.split(": ")[-1] in unions:
            slots[slot - 1] = ""
    return [text for text in slots if text]


def options_of(module: ModuleType, tables: dict[str, list[str]]) -> dict[str, str]:
    plain = {
        name.removesuffix("Options").lower(): name for name in tables if name.endswith("Options")
    }
    found = {}
    for operator in sorted(enums_of(module)["BuiltinOperator"]):
        table = OPTIONS.get(operator) or plain.get(operator.replace("_", "").lower())
        if table:
            found[operator] = table
    return found


def generate(module: ModuleType) -> str:
    """The text of `schema.py` for one generated FlatBuffers module."""
    enums = enums_of(module)
    unions = {
        name: list(values) for name, values in enums.items() if hasattr(module, name + "Creator")
    }
    names = [
        name
        for name, item in vars(module).items()
        if inspect.isclass(item) and hasattr(module, name + "Start") and not is_enum(item)
    ]
    tables = {name: fields_of(module, name, unions) for name in names}
    out = [
        '"""TFLite schema v3 as data. Generated by tools/generate_schema.py; the notation is explained in `fields.py`."""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import Final",
        "",
        'FILE_IDENTIFIER: Final = b"TFL3"',
        "",
        "ENUMS: Final[dict[str, tuple[str, dict[str, int]]]] = {",
    ]
    for name, values in enums.items():
        if name not in unions:
            out += [
                f'    "{name}": (',
                f'        "{SCALAR_OF_ENUM.get(name, "int8")}",',
                "        {",
            ]
            out += [f'            "{member}": {number},' for member, number in values.items()]
            out += ["        },", "    ),"]
    out += ["}", "", "UNIONS: Final[dict[str, tuple[str, ...]]] = {"]
    for name, members in unions.items():
        out += [f'    "{name}": (', *(f'        "{member}",' for member in members), "    ),"]
    out += ["}", "", "TABLES: Final[dict[str, str]] = {"]
    for name, fields in tables.items():
        text = "; ".join(fields)
        if len(text) + len(name) < 100:
            out.append(f'    "{name}": "{text}",')
        else:
            lines = textwrap.wrap(text, 100, break_long_words=False)
            out += [
                f'    "{name}": (',
                *(f'        "{line} "' for line in lines[:-1]),
                f'        "{lines[-1]}"',
                "    ),",
            ]
    out += ["}", "", "OPTIONS_OF_OPERATOR: Final[dict[str, str]] = {"]
    out += [
        f'    "{operator}": "{table}",' for operator, table in options_of(module, tables).items()
    ]
    out += ["}", ""]
    return "\n".join(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="compare with the file instead of writing it"
    )
    arguments = parser.parse_args()
    text = generate(importlib.import_module("ai_edge_litert.schema_py_generated"))
    if arguments.check:
        return 0 if TARGET.read_text() == text else 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
