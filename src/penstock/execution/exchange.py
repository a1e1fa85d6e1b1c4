"""What callers give to the runs of a compiled model, and get: values in their order and under their
names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.compilation.receipt import CopyReceipt
from penstock.errors import InputError
from penstock.execution.inputs import (
    arrange,
    as_array,
    dequantize,
    in_order,
    is_bindable,
    to_stored,
)
from penstock.execution.interface import Interface
from penstock.ir import NDArray


class Exchange:
    """Between *interface*, the caller's, and a model of so many *outputs*."""

    def __init__(self, interface: Interface, outputs: int) -> None:
        self.interface = interface
        self.input_names, self.output_names = interface.input_names, interface.output_names
        positions = interface.input_positions
        self.is_in_order = positions == tuple(sorted(set(positions)))
        """Whether each input is given once, in the model's order."""
        self.has_all_outputs = interface.output_positions == tuple(range(outputs))
        """Whether the caller gets each output once, in the model's order."""

    def bind(
        self,
        user: object,
        given: Mapping[str, Any] | Sequence[Any],
        real: bool,
        copies: list[CopyReceipt],
    ) -> list[NDArray]:
        """The caller's inputs in the model's order, *real* values quantised; *user* is the compiled
        model that memory among them must be for. Raises `InputError`.
        """
        if isinstance(given, str | bytes) or not isinstance(given, Mapping | Sequence):
            raise InputError(
                f"inputs must be a mapping by name or a sequence of arrays, not {type(given).__name__}"
            )
        if real and real is not True:
            raise InputError(f"dequantize must be true or false, not {real!r}")
        interface = self.interface
        values = arrange(given, self.input_names)
        if real:
            values = [
                to_stored(v, o, i, copies)
                for i, (v, o) in enumerate(zip(values, interface.inputs, strict=True))
            ]
        places = interface.input_positions
        arrays = [
            v.bind_argument(user, "input", places[i], o)
            if is_bindable(v)
            else as_array(v, o, i, copies)
            for i, (v, o) in enumerate(zip(values, interface.inputs, strict=True))
        ]
        return arrays if self.is_in_order else in_order(arrays, interface)

    def deliver(
        self, results: list[NDArray], real: bool, copies: list[CopyReceipt]
    ) -> list[NDArray]:
        """The model's outputs as the caller gets them, quantised ones as *real* values where he
        asked for that.
        """
        if not self.has_all_outputs:
            places = self.interface.output_positions
            results = [
                _again(results[p], copies) if p in places[:i] else results[p]
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
                result = dequantize(result, operand.quantization)  # noqa: PLW2901  # the delivered form
            delivered.append(result)
        return delivered


def call_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any] | Sequence[Any]:
    """What a run takes for the arguments of a call: positional arrays, one mapping, or keywords.
    Raises `InputError`.
    """
    if kwargs:
        if args:
            raise InputError("give inputs by position or by keyword, not both")
        return kwargs
    if len(args) == 1 and isinstance(args[0], Mapping):
        return args[0]
    return args


def _again(result: NDArray, copies: list[CopyReceipt]) -> NDArray:
    from penstock.execution.copying import copied

    return copied(result, copies, ("output", "caller"), "one output has several names")
