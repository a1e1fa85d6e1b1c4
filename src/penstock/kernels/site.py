"""What a kernel is: a function marked with the operation types and element types it is for."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct

from penstock.errors import InputError
from penstock.hal import ExtensionAttribute
from penstock.ir import Attributes, DType, Model, NDArray, Operand, Operation
from penstock.ir.extension import split_key
from penstock.ir.operations import OPERATIONS

Kernel: TypeAlias = Callable[..., "NDArray | Sequence[NDArray]"]
"""`kernel(self, site, *inputs)`: an array an input, None for one left out; returns an array, or one
an output.
"""

MARK: Final = "_penstock_kernel"
CUSTOM: Final = "CUSTOM:"

K = TypeVar("K", bound=Callable[..., Any])


class Mark(Struct, frozen=True):
    """What `kernel` leaves on a method."""

    types: tuple[str, ...]
    dtypes: frozenset[DType]


class Site(Struct, frozen=True):
    """An operation as its kernel sees it: operation *index* of *model*'s entry subgraph.

    *inputs* and *outputs* are operands: element type, shape (None: unknown until run time),
    quantisation; an input that is left out is None. *hints* are the attributes of extensions that
    came with the compile, and with the run.
    """

    model: Model
    index: int
    operation: Operation
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    hints: tuple[ExtensionAttribute, ...] = ()

    @property
    def attributes(self) -> Attributes:
        """The operation's attributes, by typed getters: `site.attributes.text("padding")`."""
        return self.operation.attributes

    def hint(self, extension: str, code: int) -> bytes | None:
        """The value of an attribute of an extension, that of the run before that of the compile;
        None where there is none.

        It is whatever a caller gave: a kernel ignores a value that makes no sense.
        """
        for attribute in reversed(self.hints):
            if (attribute.extension, attribute.code) == (extension, code):
                return attribute.value
        return None

    def constant(self, position: int) -> NDArray | None:
        """The value of an input that is a constant, read-only; None where it is not, or is left
        out.
        """
        operand = self.inputs[position] if position < len(self.inputs) else None
        return self.model.constant(operand) if operand is not None and operand.is_constant else None


def kernel(*types: str, dtypes: Sequence[str] = ("float32",)) -> Callable[[K], K]:
    """Marks a method of a `KernelDevice` as the kernel of operations of these *types*.

    *types* are rows of the operation table (`CUSTOM:<code>` for custom operators,
    `EXTENSION:<name>:<number>` for operations of an extension, whose own operand types are arrays
    of uint8); *dtypes* the element types that every input and output may have. Raises `InputError`
    for no type, and for a type or an element type that does not exist.
    """
    known = {d.value: d for d in DType}
    if not types or not all(isinstance(t, str) for t in types):
        raise InputError('kernel needs the operations it is for: @kernel("RELU")')
    operations = list(OPERATIONS)
    for kind in types:
        if not kind.startswith(CUSTOM) and split_key(kind) is None and kind not in operations:
            near = difflib.get_close_matches(kind.upper(), operations)
            raise InputError(
                f"kernel: no operation is named {kind!r}"
                + (f"; near it: {', '.join(near)}" if near else "")
            )
    if isinstance(dtypes, str):
        raise InputError(f"kernel: dtypes is a list of element types: dtypes=[{dtypes!r}]")
    if unknown := [d for d in dtypes if d not in known]:
        raise InputError(f"kernel: no element type is named {', '.join(map(repr, unknown))}")
    mark = Mark(types, frozenset(known[d] for d in dtypes))

    def marked(function: K) -> K:
        setattr(function, MARK, mark)
        return function

    return marked


def sites_of(model: Model, hints: tuple[ExtensionAttribute, ...] = ()) -> list[Site]:
    """The operations of the entry subgraph."""
    return [
        Site(
            model,
            index,
            operation,
            tuple(
                o if o.has_value else None for o in (model.operands[i] for i in operation.inputs)
            ),
            tuple(model.operands[i] for i in operation.outputs),
            hints,
        )
        for index, operation in enumerate(model.operations)
    ]
