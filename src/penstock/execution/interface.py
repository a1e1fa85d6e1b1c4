"""The names of a compiled model's inputs and outputs, the fast path for inputs, and `Outputs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, overload

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy import ndarray

from penstock.arguments import there_are
from penstock.compilation.receipt import Receipt
from penstock.errors import InputError, InvalidSignature, UnknownSignature, counted
from penstock.ir import DType, Model, NDArray, Operand
from penstock.ir.types import static_shape


class Interface(Struct, frozen=True):
    """The caller's inputs and outputs, in order.

    *inputs* and *outputs* describe the operands under the caller's names. *input_positions* and
    *output_positions* are their positions among the model's ordinary inputs and outputs. A
    signature may have several names for one input or output.
    """

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    input_positions: tuple[int, ...]
    output_positions: tuple[int, ...]

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.outputs)


def interface_of(model: Model, signature: str | None) -> Interface:
    """The interface of the entry subgraph.

    Names are those of *signature*, or of the operands without one. Raises `UnknownSignature` if the
    model has no signature of that name, `InvalidSignature` if it leaves an input out.
    """
    if signature is None:
        given, results = (tuple(range(len(ports))) for ports in (model.inputs, model.outputs))
        return Interface(model.inputs, model.outputs, given, results)
    if signature not in model.signatures:
        known = ", ".join(map(repr, model.signatures))
        raise UnknownSignature(f"no signature {signature!r}; the model has {known}")
    chosen, entry = model.signatures[signature], model.entry
    if {i for _, i in chosen.inputs} != set(entry.ordinary_inputs):
        raise InvalidSignature(f"signature {signature!r} does not name every input of its subgraph")
    return Interface(
        tuple(replace(entry.operands[i], name=name) for name, i in chosen.inputs),
        tuple(replace(entry.operands[i], name=name) for name, i in chosen.outputs),
        tuple(entry.ordinary_inputs.index(i) for _, i in chosen.inputs),
        tuple(entry.ordinary_outputs.index(i) for _, i in chosen.outputs),
    )


class Ready(Struct, frozen=True):
    """Recognises NumPy arrays of *kinds* and *shapes*; *names* is empty if they are not unique."""

    names: tuple[str, ...]
    kinds: tuple[tuple[np.dtype[np.generic], tuple[int, ...]], ...]
    shapes: tuple[tuple[int, ...], ...]

    def arrays(self, given: object) -> list[NDArray] | None:
        """The caller's arrays in order; None if they need the slow path."""
        kinds = self.kinds
        if type(given) is list or type(given) is tuple:
            values: list[NDArray] = [*given]
        elif type(given) is dict:
            if len(given) != len(kinds):
                return None
            values = []
            # A plain loop: for few inputs it is faster than a comprehension or `map`.
            for name in self.names:
                if name not in given:
                    return None
                values.append(given[name])
        else:
            return None
        if len(values) != len(kinds):
            return None
        for value, (dtype, shape) in zip(values, kinds):  # noqa: B905  # checked above
            if (
                type(value) is not ndarray
                or (value.dtype is not dtype and value.dtype != dtype)
                or value.shape != shape
                or not value.flags.c_contiguous
            ):
                return None
        return values


def ready_inputs(
    operands: Sequence[Operand], shapes: Sequence[tuple[int, ...]] | None = None
) -> Ready | None:
    """A `Ready` for *operands*, of *shapes* if given; None for strings and unknown shapes."""
    declared = [static_shape(operand.shape) for operand in operands] if shapes is None else shapes
    full = tuple(shape for shape in declared if shape is not None)
    if len(full) != len(operands) or any(o.dtype is DType.STRING for o in operands):
        return None
    kinds = tuple((o.dtype.numpy, shape) for o, shape in zip(operands, full, strict=True))
    names = tuple(operand.name for operand in operands)
    return Ready(names if len(set(names)) == len(names) else (), kinds, full)


FIRST_VALUES: Final = 4
SHOWN: Final = 40
"""Most values of an output, and bytes of a string, that a notebook shows."""


class Outputs(Sequence[NDArray]):
    """The output arrays of one run, in the model's order, also accessible by name.

    The arrays own their memory: no later run and no `close()` changes them.
    """

    __slots__ = ("_arrays", "_names", "_receipt")

    def __init__(
        self,
        arrays: Sequence[NDArray],
        names: Sequence[str],
        receipt: Receipt | Callable[[], Receipt],
    ) -> None:
        self._arrays = arrays
        self._names = names
        self._receipt = receipt

    @overload
    def __getitem__(self, key: int | str) -> NDArray: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[NDArray]: ...
    def __getitem__(self, key: int | str | slice) -> NDArray | Sequence[NDArray]:
        """The output at a position or with a name.

        Raises `IndexError` for an unknown position, `InputError` for a name that no output or
        several have, `TypeError` for a key of another type.
        """
        if isinstance(key, str):
            return self._arrays[find_name(key, self._names, "output")]
        try:
            return self._arrays[key]
        except IndexError:
            count = len(self._arrays)
            text = f"there is no output {key}; the model has {counted(count, 'output')}"
            raise IndexError(text) from None
        except TypeError:
            kind = type(key).__name__
            text = f"outputs are taken by position, name or slice, not by {kind}"
            raise TypeError(text) from None

    def __contains__(self, key: object) -> bool:
        """Whether an output has that name, or is that very array."""
        return key in self._names if isinstance(key, str) else any(a is key for a in self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __iter__(self) -> Iterator[NDArray]:
        return iter(self._arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        return Outputs, (list(self._arrays), tuple(self._names), self.receipt)

    def __repr__(self) -> str:
        from penstock.partitioning.show import line_of

        pairs = zip(self._names, self._arrays, strict=True)
        return line_of("Outputs", ", ".join(f"{n!r}: {a.dtype}{list(a.shape)}" for n, a in pairs))

    def _repr_html_(self) -> str:
        """The table for a notebook: type, shape and first values of each output."""
        from penstock.ir.model import html_table

        rows = [("output", "type", "shape", "first values")]
        for name, array in zip(self._names, self._arrays, strict=True):
            rows.append((name, str(array.dtype), str(list(array.shape)), _first_values(array)))
        return html_table(counted(len(self._names), "output"), rows)

    def as_dict(self) -> dict[str, NDArray]:
        """The outputs by name. Raises `InputError` if two outputs share a name."""
        for name in self._names:
            find_name(name, self._names, "output")
        return dict(zip(self._names, self._arrays, strict=True))

    @property
    def receipt(self) -> Receipt:
        """The receipt of this run."""
        receipt = self._receipt
        if not isinstance(receipt, Receipt):
            receipt = self._receipt = receipt()
        return receipt


def _first_values(array: object) -> str:
    if not isinstance(array, ndarray):
        return ""
    values = (v[:SHOWN] if isinstance(v, bytes) else v for v in islice(array.flat, FIRST_VALUES))
    return ", ".join(map(str, values))


def find_name(name: str, names: Sequence[str], kind: str) -> int:
    """The only position with *name*. Raises `InputError` if no name or several match."""
    found = [i for i, known in enumerate(names) if known == name]
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(map(str, found))
        raise InputError(f"{kind}s {several} are all named {name!r}; use their positions")
    raise InputError(f"no {kind} is named {name!r}; {there_are(names)}")


def fits(given: tuple[int, ...], declared: Sequence[int | None] | None) -> bool:
    """Whether a full shape has the declared rank and known dimensions."""
    if declared is None:
        return True
    return len(given) == len(declared) and all(
        d is None or d == g for d, g in zip(declared, given, strict=True)
    )
