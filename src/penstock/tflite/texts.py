"""The words of LiteRT's interpreter that programs match on, as ai-edge-litert 2.3.0 says them."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import (
    CyclicModel,
    DuplicateWriter,
    IndexOutOfRange,
    InvalidOperand,
    InvalidQuantization,
    LimitExceeded,
    ModelError,
    NotAModel,
    OffsetOutOfBounds,
    ShapeOverflow,
    TruncatedModel,
    UnknownOperator,
    UnknownType,
    UnwrittenOperand,
)

NO_MODEL: Final = "`model_path` or `model_content` must be specified."
TWO_MODELS: Final = "Can't both provide `model_path` and `model_content`"
NOT_READY: Final = "Invoke called on model that is not ready."
NO_DATA: Final = "Tensor data is null. Run allocate_tensors() first"
UNALLOCATED: Final = (
    "Cannot set tensor: Tensor is unallocated. Try calling allocate_tensors() first"
)
HELD: Final = (
    "There is at least 1 reference to internal data\n"
    "      in the interpreter in the form of a numpy array or slice. Be sure to\n"
    "      only hold the function returned from tensor() if you are using raw\n"
    "      data access."
)
INCONSISTENT: Final = "AllocateTensors() called on inconsistent model."
FIXED_SIZE: Final = "Attempting to resize a fixed-size tensor."
OVERFLOW: Final = "BytesRequired number of elements overflowed."
FLEX: Final = (
    "Select TensorFlow op(s), included in the given model, is(are) not supported by this interpreter. "
    "Make sure you apply/link the Flex delegate before inference. For the Android, it can be resolved by "
    'adding "org.tensorflow:tensorflow-lite-select-tf-ops" dependency. See instructions: '
    "https://www.tensorflow.org/lite/guide/ops_select"
)
UNRESOLVED: Final = (
    "Encountered unresolved custom op: {name}.\n"
    "See instructions: https://www.tensorflow.org/lite/guide/ops_custom "
)
SCHEMA_VERSION: Final = re.compile(r"schema version is (\d+)")
NO_VARIABLES: Final = "tensor.data.raw != nullptr was not true."
PRESERVED: Final = (
    "Warning: Enabling `experimental_preserve_all_tensors` with the BUILTIN or AUTO op resolver is intended "
    "for debugging purposes only. Be aware that this can significantly increase memory usage by storing all "
    "intermediate tensors. If you encounter memory problems or are not actively debugging, consider disabling "
    "this option."
)
NO_BUILTIN_KERNELS: Final = (
    "BUILTIN_WITHOUT_DEFAULT_DELEGATES means LiteRT's own kernels, and these are not available ({reason}). Penstock's "
    "reference kernels are used in their place, as for BUILTIN_REF."
)
FLEX_PREFIX: Final = "Flex"

INCONSISTENCIES: Final = (CyclicModel, DuplicateWriter, IndexOutOfRange, UnwrittenOperand)
"""Errors of a graph that contradicts itself, which LiteRT finds when it allocates."""

_REFUSALS: Final[tuple[tuple[tuple[type[ModelError], ...], str], ...]] = (
    (
        (NotAModel, TruncatedModel, OffsetOutOfBounds, LimitExceeded),
        "The model is not a valid Flatbuffer buffer",
    ),
    ((UnknownType,), "Unsupported data type in tensor"),
    ((UnknownOperator,), "Op builtin_code out of range. Registration failed."),
    ((ShapeOverflow,), OVERFLOW),
    ((InvalidOperand,), "required_bytes <= bytes was not true."),
)


def unresolved(name: str, index: int) -> str:
    """What LiteRT says of operator *index*, a custom operator without a kernel."""
    words = FLEX if name.startswith(FLEX_PREFIX) else UNRESOLVED.format(name=name)
    return words + unprepared(name, index)


def unprepared(name: str, index: int) -> str:
    """What LiteRT says of operator *index* when it cannot be prepared."""
    return f"Node number {index} ({name}) failed to prepare."


_QUANTIZATIONS: Final = (
    (
        re.compile(r"\d+ scales and no zero points"),
        "Quantization parameters has non-null scale but null zero_point.",
    ),
    (
        re.compile(r"(\d+) scales and (\d+) zero points"),
        "QuantizationParam has {1} zero_point values and {0} scale values. Must have same number.",
    ),
    (
        re.compile(r"quantised dimension (-?\d+) of a rank-(\d+)"),
        "quantized_dimension must be in range [0, {1}). Was {0}.",
    ),
)


def _quantization(error: InvalidQuantization) -> str:
    tensor = re.search(r"tensor (\d+)", error.where or "")
    for pattern, words in _QUANTIZATIONS:
        if tensor and (found := pattern.search(error.message)):
            said = words.format(*found.groups())
            return f"{said}Tensor {tensor[1]} has invalid quantization parameters."
    return ""


def refused(error: ModelError) -> str:
    """What LiteRT says of a file that it does not open for the reason of *error*; then Penstock's
    own words.
    """
    if found := SCHEMA_VERSION.search(error.message):
        words = f"Model provided is schema version {found[1]} not equal to supported version 3."
        return f"{words}\n{error}"
    words = next((text for kinds, text in _REFUSALS if isinstance(error, kinds)), "")
    if isinstance(error, InvalidQuantization):
        words = _quantization(error)
    if "no subgraph" in error.message:
        words = "No subgraph in the model."
    elif "operator code" in error.message and not words:
        words = "Missing registration for opcode_index"
    return f"{words}\n{error}" if words else str(error)
