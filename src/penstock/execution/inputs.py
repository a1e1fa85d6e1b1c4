"""The caller's inputs and outputs: checked, never cast, copied only if necessary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from penstock.errors import InputError, counted
from penstock.execution.interface import Interface, find_name, fits
from penstock.ir import DType, NDArray, Operand, Quantization
from penstock.ir.types import dtype_of, is_masked
from penstock.memory.copies import CopyReceipt

_NOT_GIVEN: Final = object()
SEVERAL: Final = "one output has several names"


def arrange(
    given: Mapping[str, Any] | Sequence[Any], names: Sequence[str], kind: str = "input"
) -> list[Any]:
    """The caller's values in the order of the model's inputs (or outputs, for `out=`).

    Raises `InputError` for a wrong count, an unknown name, or a name that two inputs share.
    """
    if isinstance(given, Mapping):
        values: list[Any] = [_NOT_GIVEN] * len(names)
        for name, value in given.items():
            values[find_name(name, names, kind)] = value
        missing = [n for n, v in zip(names, values, strict=True) if v is _NOT_GIVEN]
        if missing:
            raise InputError(f"{kind} {', '.join(map(repr, missing))} is missing")
        return values
    if len(given) != len(names):
        amount, known = counted(len(given), kind), ", ".join(map(repr, names)) or "none"
        raise InputError(f"{amount} given, {len(names)} needed: {known}")
    return list(given)


def in_order(arrays: Sequence[NDArray], interface: Interface) -> list[NDArray]:
    """*arrays* in the model's order. Raises `InputError` if one input was given two values."""
    found: dict[int, int] = {}
    for place, position in enumerate(interface.input_positions):
        first = found.setdefault(position, place)
        if first != place and not same(arrays[first], arrays[place]):
            names = interface.input_names
            both = f"{names[first]!r} and {names[place]!r}"
            raise InputError(f"{both} are the same input and were given different values")
    return [arrays[found[position]] for position in sorted(found)]


def same(a: Any, b: Any) -> bool:
    """Whether two arrays are equal bit for bit, or two arguments the same memory."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return getattr(a, "owner", a) is getattr(b, "owner", b)
    if a is b or a.dtype.hasobject:
        return a is b or (a.shape == b.shape and bool(np.all(a == b)))
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def as_array(value: Any, operand: Operand, position: int, copies: list[CopyReceipt]) -> NDArray:
    """*value* as a C-contiguous array of the operand's dtype, with a shape that fits the operand.

    Accepts NumPy arrays and anything with `__dlpack__`, `__array__` or the buffer protocol. A
    non-contiguous array is copied, and the copy recorded. Strings, also in lists, become an object
    array of bytes. Raises `InputError` with the input's name, the expected value and the given one.
    """
    array = value if type(value) is np.ndarray else _import(value, operand, position)
    if operand.dtype is DType.STRING:
        array = _strings(array, operand, position, copies)
    elif array.dtype != operand.dtype.numpy:
        raise _other_elements(array, operand, position)
    _check_shape(array, operand, position)
    if not array.flags.c_contiguous:
        reason = f"{_label(operand, position)} is not contiguous"
        copies.append(CopyReceipt(array.nbytes, "caller", "host", reason))
        array = np.ascontiguousarray(array)
    return array


def is_bindable(value: Any) -> bool:
    """Whether *value* provides its own memory for a run (`penstock.memory.bound.Bindable`)."""
    return type(value) is not np.ndarray and hasattr(type(value), "bind_argument")


def to_stored(value: Any, operand: Operand, position: int, copies: list[CopyReceipt]) -> Any:
    """Quantises the real values *value* if *operand* is quantised; else returns *value*.

    The result is for `as_array`. *value* is anything that `as_array` imports, in any float dtype;
    it is converted to float32 first. The copy is recorded. Raises `InputError` with the input's
    name, the expected value and the given one.
    """
    if operand.quantization is None or not operand.dtype.is_integer:
        return value
    array = value if type(value) is np.ndarray else _import(value, operand, position)
    kind = dtype_of(array.dtype)
    if array.dtype.kind != "f" and (kind is None or not kind.is_float):
        what = f"real values (a float dtype) with dequantize=True, not {array.dtype}"
        raise InputError(f"{_label(operand, position)} takes {what}")
    _check_shape(array, operand, position)
    _check_channels(array, operand.quantization, operand, position)
    reason = f"{_label(operand, position)} quantised"
    copies.append(CopyReceipt(array.nbytes, "caller", "host", reason))
    return quantize(array, operand.quantization, operand.dtype)


def quantize(value: NDArray, quantization: Quantization, dtype: DType) -> NDArray:
    """Quantises real values as TFLite's QUANTIZE does.

    The float32 quotient is rounded to nearest, halves away from zero. The zero point is added, and
    the sum is clamped to the type's range. Infinities saturate; NaN becomes the zero point.
    """
    scales, zero_points = _parameters(quantization, value.ndim)
    bits, signed = dtype.bits or 0, not dtype.value.startswith("u")
    # The smallest and the largest float64 value in the range of the type.
    least, beyond = -(2.0 ** (bits - 1)) if signed else 0.0, 2.0 ** (bits - signed)
    greatest = min(beyond - 1, math.nextafter(beyond, 0))
    with np.errstate(all="ignore"):
        real = np.asarray(value.astype(np.float32, copy=False) / scales)
        # Adding 0.5 would round the largest float below 0.5 up to 1.
        half = np.nextafter(np.float32(0.5), np.float32(0))
        stored = np.asarray(np.trunc(real + np.copysign(half, real)), np.float64)
        stored = np.where(np.isnan(stored), 0.0, stored) + zero_points
        return np.asarray(np.clip(stored, least, greatest)).astype(dtype.numpy)


def dequantize(value: NDArray, quantization: Quantization) -> NDArray:
    """Dequantises stored values to float32 as TFLite does: scale * (stored - zero point).

    Computed in float32 for types of up to 16 bits, in float64 for wider ones.
    """
    scales, zero_points = _parameters(quantization, value.ndim)
    kind = np.float64 if value.dtype.itemsize > 2 else np.float32
    real = np.asarray(value.astype(kind) - zero_points.astype(kind)) * scales.astype(kind)
    return np.asarray(real, np.float32)


def _parameters(quantization: Quantization, rank: int) -> tuple[NDArray, NDArray]:
    """Scales (float32) and zero points (int64), shaped to broadcast along their dimension."""
    shape = [1] * rank
    if quantization.dimension is not None:
        shape[quantization.dimension] = len(quantization.scales)
    scales = np.array(quantization.scales, np.float32)
    scales = scales.reshape(shape if quantization.per_channel else ())
    return scales, np.array(quantization.zero_points, np.int64).reshape(scales.shape)


def _check_shape(array: NDArray, operand: Operand, position: int) -> None:
    if array.shape != operand.shape and not fits(array.shape, operand.shape):
        given = f"an array of shape {array.shape} was given"
        raise InputError(f"{_label(operand, position)} has shape {_shape(operand)}, {given}")


def _check_channels(
    array: NDArray, quantization: Quantization, operand: Operand, position: int
) -> None:
    """Checks the channels against the scales, for operands of unknown shape."""
    dimension, count = quantization.dimension, len(quantization.scales)
    if dimension is None or (count == 1 and dimension < array.ndim):
        return
    if dimension >= array.ndim or array.shape[dimension] != count:
        scales = f"has {count} scales along dimension {dimension}"
        given = f"an array of shape {array.shape} was given"
        raise InputError(f"{_label(operand, position)} {scales}, {given}")


def _import(value: Any, operand: Operand, position: int) -> NDArray:
    plain = isinstance(value, list | tuple | dict | str | int | float | complex | None)
    if plain and operand.dtype is not DType.STRING and not hasattr(value, "__array__"):
        remedy = "make one with numpy.array"
        if isinstance(value, list | tuple) and any(isinstance(v, np.ndarray) for v in value):
            remedy = "a call takes an argument for each input, run() one list of them"
        raise InputError(f"{_needed(value, operand, position)}; {remedy}")
    if is_masked(value):
        raise InputError(
            f"{_label(operand, position)} is a masked array, and no device heeds masks; "
            "give its filled(), with a value for what is masked"
        )
    try:
        if operand.dtype is DType.STRING and isinstance(value, list | tuple | str | bytes):
            return np.array(value, object)
        if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(f"{_needed(value, operand, position)}: {error}") from None


def _needed(value: Any, operand: Operand, position: int) -> str:
    needed = f"an array ({operand.dtype.value} of shape {_shape(operand)})"
    return f"{_label(operand, position)} needs {needed}, not {type(value).__name__}"


def _other_elements(array: NDArray, operand: Operand, position: int) -> InputError:
    label, given = _label(operand, position), f"an array of {array.dtype} was given"
    return InputError(f"{label} is {operand.dtype.value}, {given}; nothing is cast silently")


def _strings(array: NDArray, operand: Operand, position: int, copies: list[CopyReceipt]) -> NDArray:
    """*array* with every element as bytes; text is encoded in UTF-8."""
    if dtype_of(array.dtype) is not DType.STRING:
        raise _other_elements(array, operand, position)
    items = array.reshape(-1).tolist()
    if array.dtype.kind == "O" and all(type(item) is bytes for item in items):
        return array
    result: NDArray = np.empty(array.shape, object)
    flat = result.reshape(-1)
    for place, item in enumerate(items):
        problem = f"{type(item).__name__} was given"
        if isinstance(item, str):
            try:
                flat[place] = item.encode()
                continue
            except UnicodeEncodeError as error:
                problem = f"text with {item[error.start]!r} was given, which has no UTF-8 form"
        elif isinstance(item, bytes):
            flat[place] = bytes(item)
            continue
        index = ", ".join(str(i) for i in np.unravel_index(place, array.shape))
        text = f"holds strings; at [{index}] {problem}: use bytes or str"
        raise InputError(f"{_label(operand, position)} {text}")
    reason = f"{_label(operand, position)} made bytes"
    copies.append(CopyReceipt(sum(map(len, flat)), "caller", "host", reason))
    return result


def _label(operand: Operand, position: int) -> str:
    return f"input {position} ({operand.name})" if operand.name else f"input {position}"


def _shape(operand: Operand) -> str:
    if operand.shape is None:
        return "unknown"
    return str(tuple("?" if d is None else d for d in operand.shape)).replace("'", "")


class Exchange:
    """Converts between the caller's *interface* and the inputs and *outputs* of the model."""

    def __init__(self, interface: Interface, outputs: int) -> None:
        self.interface = interface
        self.input_names, self.output_names = interface.input_names, interface.output_names
        positions = interface.input_positions
        self.is_in_order = positions == tuple(sorted(set(positions)))
        """Whether the caller gives each input once, in the model's order."""
        self.has_all_outputs = interface.output_positions == tuple(range(outputs))
        """Whether the caller receives each output once, in the model's order."""

    def bind(
        self,
        user: object,
        given: Mapping[str, Any] | Sequence[Any],
        real: bool,
        copies: list[CopyReceipt],
    ) -> list[NDArray]:
        """The caller's inputs in the model's order, quantised if *real*. Raises `InputError`."""
        if isinstance(given, str | bytes) or not isinstance(given, Mapping | Sequence):
            raise InputError(
                "inputs must be a mapping by name or a sequence of arrays, not "
                f"{type(given).__name__}"
            )
        if real and real is not True:
            raise InputError(f"dequantize must be true or false, not {real!r}")
        interface = self.interface
        values = zip(arrange(given, self.input_names), interface.inputs, strict=True)
        arrays = []
        for at, (value, operand) in enumerate(values):
            stored = to_stored(value, operand, at, copies) if real else value
            if is_bindable(stored):
                position = interface.input_positions[at]
                arrays.append(stored.bind_argument(user, "input", position, operand))
            else:
                arrays.append(as_array(stored, operand, at, copies))
        return arrays if self.is_in_order else in_order(arrays, interface)

    def deliver(
        self, results: list[NDArray], real: bool, copies: list[CopyReceipt]
    ) -> list[NDArray]:
        """The model's outputs in the caller's order, dequantised if *real*."""
        if not self.has_all_outputs:
            from penstock.execution.results import copied

            places, route, why = self.interface.output_positions, ("output", "caller"), SEVERAL
            results = [
                copied(results[p], copies, route, why) if p in places[:i] else results[p]
                for i, p in enumerate(places)
            ]
        if not real:
            return results
        delivered = []
        for result, operand in zip(results, self.interface.outputs, strict=True):
            if operand.quantization is not None and operand.dtype.is_integer:
                copies.append(
                    CopyReceipt(result.nbytes, "output", "caller", f"{operand.name!r} dequantised")
                )
                # The delivered form.
                result = dequantize(result, operand.quantization)  # noqa: PLW2901
            delivered.append(result)
        return delivered


def call_inputs(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    kinds: type[Any] | tuple[type[Any], ...] = Mapping,
) -> Mapping[str, Any] | Sequence[Any]:
    """The inputs of a call: positional arrays, all inputs in one of *kinds*, or keywords."""
    if kwargs:
        if args:
            raise InputError("give inputs by position or by keyword, not both")
        return kwargs
    if len(args) == 1 and type(args[0]) is not np.ndarray and isinstance(args[0], kinds):
        given: Mapping[str, Any] | Sequence[Any] = args[0]
        return given
    return args
