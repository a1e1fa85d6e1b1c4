"""Requirements on types and quantisation that relate several operands.

A requirement rejects only operations that no kernel of TFLite prepares. These are integer
operations with missing or contradictory quantisation, and outputs whose quantisation differs from
the one that the arithmetic fixes (NNAPI section 8.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import InvalidOperation, InvalidQuantization
from penstock.ir.operand import Operand
from penstock.ir.operation import Operation
from penstock.ir.operations.signature import QUANT8
from penstock.ir.operations.spec import Requirement
from penstock.ir.types import DType, Quantization

QUANTIZED: Final = QUANT8 | {DType.INT16}
BIAS_TOLERANCE: Final = 0.02
"""Greatest difference between the bias's scale and input scale times filter scale, as a fraction of
the output's scale (TFLite).
"""


def _quantization(operand: Operand, what: str) -> Quantization:
    if operand.quantization is None:
        raise InvalidQuantization(f"{what} is {operand.dtype.value} and has no quantisation")
    return operand.quantization


def _symmetric(operand: Operand, what: str) -> None:
    quantization = operand.quantization
    if operand.dtype is DType.INT16 and quantization is not None and any(quantization.zero_points):
        raise InvalidQuantization(f"{what} is int16 and has a zero point other than 0")


def integer_filter(channels: int, *, data: int = 0, checks_bias: bool) -> Requirement:
    """The requirement of a layer with integer activations: input and filter are quantised, and the
    bias is an integer.

    *data* is the position of the input. Filter and bias follow it, or are around it as in
    TRANSPOSE_CONV. *channels* is the filter's output dimension: per-channel scales are along it,
    and need signed activations. As in TFLite, the bias's scale is compared for uint8, and for all
    types with *checks_bias*, which also allows extra scales.
    """

    def require(_: Operation, given: Sequence[Operand], written: Sequence[Operand]) -> None:
        source, weights = given[data], given[1]
        if source.dtype not in QUANTIZED:
            return
        scales = _quantization(source, "the input")
        filters = _quantization(weights, "the filter")
        _symmetric(source, "the input")
        _symmetric(written[0], "the output")
        if len(filters.scales) > 1:
            if source.dtype is DType.UINT8:
                raise InvalidQuantization("a filter quantised per channel needs a signed input")
            shape, count = weights.shape, len(filters.scales)
            wanted = None if shape is None else shape[channels]
            if wanted is not None and (count < wanted if checks_bias else count != wanted):
                raise InvalidQuantization(
                    f"{len(filters.scales)} scales for a filter of shape {shape}, "
                    f"whose channels are dimension {channels}"
                )
        at = 3 if data == 2 else 2
        if at >= len(given) or not given[at].has_value:
            return
        bias = given[at]
        if not bias.dtype.is_integer:
            raise InvalidOperation(
                f"a bias of {bias.dtype.value} beside an input of {source.dtype.value}"
            )
        per_tensor = len(filters.scales) == 1
        if per_tensor and (checks_bias or source.dtype is DType.UINT8):
            _check_bias(scales.scale * filters.scale, bias, written[0])

    return require


def _check_bias(product: float, bias: Operand, output: Operand) -> None:
    """Compares the scale of the bias with *product*. TFLite reads it as 0 if the bias has none, or
    has per-channel scales.
    """
    wanted = _quantization(output, "the output").scale
    known = bias.quantization
    found = 0.0 if known is None or known.per_channel else known.scale
    if abs(product - found) > BIAS_TOLERANCE * wanted:
        raise InvalidQuantization(
            f"the bias has scale {found}, input and filter have {product} together"
        )


def symmetric_16bit(_: Operation, given: Sequence[Operand], written: Sequence[Operand]) -> None:
    """16-bit operands have zero point 0."""
    for index, operand in enumerate((*given, *written)):
        _symmetric(operand, f"operand {index}")


def fixed_output(tolerance: float = 0.0, **fixed: tuple[float, int | None]) -> Requirement:
    """The output has a given scale, within a relative tolerance, and zero point (None: any), by its
    type. An output whose type differs from the input's is not restricted.
    """

    def require(_: Operation, given: Sequence[Operand], written: Sequence[Operand]) -> None:
        output = written[0]
        wanted = fixed.get(output.dtype.value)
        if wanted is None or given[0].dtype is not output.dtype:
            return
        scale, zero_point = wanted
        found = _quantization(output, "the output")
        if abs(found.scale - scale) > tolerance * scale or zero_point not in {
            None,
            found.zero_point,
        }:
            point = "" if zero_point is None else f" and zero point {zero_point}"
            raise InvalidQuantization(
                f"an {output.dtype.value} output has scale {scale}{point}, "
                f"not {found.scale} and {found.zero_point}"
            )

    return require


def same_quantization(_: Operation, given: Sequence[Operand], written: Sequence[Operand]) -> None:
    """Quantised inputs and outputs of 8 or 16 bits have the same scale and zero point. As in
    TFLite's kernels, per-channel scales count as none.
    """
    wanted = of_tensor(given[0].quantization)
    for index, output in enumerate(written):
        if output.dtype in QUANTIZED and of_tensor(output.quantization) != wanted:
            raise InvalidQuantization(f"output {index} has another quantisation than input 0")


def of_tensor(quantization: Quantization | None) -> Quantization | None:
    """*quantization* if it has one scale; None if it is per channel."""
    return None if quantization is None or quantization.per_channel else quantization


def joined(_: Operation, given: Sequence[Operand], written: Sequence[Operand]) -> None:
    """Concatenation: int8 inputs have the output's quantisation, int16 ones are symmetric."""
    for index, operand in enumerate(given):
        if operand.dtype is DType.INT8 and operand.quantization != written[0].quantization:
            raise InvalidQuantization(
                f"int8 input {index} has another quantisation than the output"
            )
        _symmetric(operand, f"input {index}")


def quantized_output(_: Operation, __: Sequence[Operand], written: Sequence[Operand]) -> None:
    """An integer output is quantised."""
    if written[0].dtype.is_integer:
        _quantization(written[0], "the output")
