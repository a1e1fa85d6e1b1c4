"""Messages of LiteRT's interpreter that programs match on, as in ai-edge-litert 2.3.0."""

from __future__ import annotations

from typing import Final

from penstock import errors
from penstock.faults import FaultCode

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
    "Select TensorFlow op(s), included in the given model, is(are) not supported by this "
    "interpreter. Make sure you apply/link the Flex delegate before inference. For the Android, it "
    "can be resolved by "
    'adding "org.tensorflow:tensorflow-lite-select-tf-ops" dependency. See instructions: '
    "https://www.tensorflow.org/lite/guide/ops_select"
)
UNRESOLVED: Final = (
    "Encountered unresolved custom op: {name}.\n"
    "See instructions: https://www.tensorflow.org/lite/guide/ops_custom "
)
NO_VARIABLES: Final = "tensor.data.raw != nullptr was not true."
PRESERVED: Final = (
    "Warning: Enabling `experimental_preserve_all_tensors` with the BUILTIN or AUTO op resolver is "
    "intended for debugging purposes only. Be aware that this can significantly increase memory "
    "usage by storing all intermediate tensors. If you encounter memory problems or are not "
    "actively debugging, consider disabling this option."
)
NO_BUILTIN_KERNELS: Final = (
    "BUILTIN_WITHOUT_DEFAULT_DELEGATES means LiteRT's own kernels, and these are not available "
    "({reason}). Penstock's reference kernels are used in their place, as for BUILTIN_REF."
)
FLEX_PREFIX: Final = "Flex"

INCONSISTENCIES: Final = (
    errors.CyclicModel,
    errors.DuplicateWriter,
    errors.IndexOutOfRange,
    errors.UnwrittenOperand,
)
"""Errors of inconsistent graphs, which LiteRT raises on allocation."""

_REFUSALS: Final[tuple[tuple[tuple[type[errors.ModelError], ...], str], ...]] = (
    (
        (errors.NotAModel, errors.TruncatedModel, errors.OffsetOutOfBounds, errors.LimitExceeded),
        "The model is not a valid Flatbuffer buffer",
    ),
    ((errors.UnknownType,), "Unsupported data type in tensor"),
    ((errors.UnknownOperator,), "Op builtin_code out of range. Registration failed."),
    ((errors.ShapeOverflow,), OVERFLOW),
    ((errors.InvalidOperand,), "required_bytes <= bytes was not true."),
)


def unresolved(name: str, index: int) -> str:
    """LiteRT's message for operator *index*, a custom operator without a kernel."""
    words = FLEX if name.startswith(FLEX_PREFIX) else UNRESOLVED.format(name=name)
    return words + unprepared(name, index)


def unprepared(name: str, index: int) -> str:
    """LiteRT's message for operator *index* if it cannot be prepared."""
    return f"Node number {index} ({name}) failed to prepare."


_FAULTS: Final = {
    FaultCode.SCHEMA_VERSION: (
        "Model provided is schema version {found} not equal to supported version {known}."
    ),
    FaultCode.NO_SUBGRAPH: "No subgraph in the model.",
    FaultCode.OPERATOR_CODE: "Missing registration for opcode_index",
    FaultCode.NO_ZERO_POINTS: "Quantization parameters has non-null scale but null zero_point.",
    FaultCode.ZERO_POINT_COUNT: (
        "QuantizationParam has {zero_points} zero_point values and {scales} scale values. "
        "Must have same number."
    ),
    FaultCode.QUANTIZED_DIMENSION: (
        "quantized_dimension must be in range [0, {rank}). Was {dimension}."
    ),
}


def refused(error: errors.ModelError) -> str:
    """LiteRT's message for a file that *error* rejects, then Penstock's."""
    words = next((text for kinds, text in _REFUSALS if isinstance(error, kinds)), "")
    if error.fault is not None:
        words = _FAULTS[error.fault.code].format(**error.fault.facts)
    if isinstance(error, errors.InvalidQuantization) and words and error.where is not None:
        words += f"Tensor {error.where.tensor} has invalid quantization parameters."
    return f"{words}\n{error}" if words else str(error)
