"""The contract between the reference driver and its operations.

An operation has a *builder*, registered under its row of the operation table. The builder gets a
`Site` (an operation with its operands in a model), and returns a `Kernel`. It raises `Unsupported`
for operations that it cannot compute, and the driver reports the message as its reason. What does
not depend on the run is prepared by the builder, or, if it takes much memory or time, by one of
`Site.preparations`: a question about support then costs neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial, wraps
from importlib import import_module
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from penstock.drivers.reference.index import MODULES
from penstock.errors import MissedDeadlineTransient, PenstockError
from penstock.hal import ExecutionConfig
from penstock.ir import Attributes, DType, NDArray, Operand, Operation, Quantization, Subgraph
from penstock.ir.operations import spec_of
from penstock.ir.rounding import Sums

Inputs: TypeAlias = "Sequence[NDArray | None]"
Outputs: TypeAlias = "Sequence[NDArray]"

Kernel: TypeAlias = "Callable[[Inputs], Outputs]"
"""Computes one operation.

Its arguments are the arrays of its inputs (None for an omitted one; constants included). It returns
the arrays of its outputs, in their actual shapes. An output may be an input, or a view of an input.
Inputs are never written. A kernel is stateless and thread-safe.
"""

Builder: TypeAlias = "Callable[[Site], Kernel]"


class Unsupported(PenstockError):
    """The reference driver does not compute this operation; the message is the reason."""


EXECUTION: Final[ContextVar[ExecutionConfig]] = ContextVar("penstock_reference_execution")
"""The configuration of the current run, for kernels that loop."""


LATE: Final = "the deadline passed during the execution"


def check_interrupts(config: ExecutionConfig) -> None:
    """Raises `Cancelled`, or `MissedDeadlineTransient` if the deadline has passed."""
    if config.cancel is not None:
        config.cancel.check()
    if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
        raise MissedDeadlineTransient(LATE)


def _unavailable(index: int) -> Any:
    raise Unsupported(f"subgraph {index} is not available")


class Site(Struct, frozen=True, eq=False):
    """One operation with its operands in a model.

    An omitted optional input is None in *inputs*, or missing at the end. *values* returns the value
    of a constant input by its position, None for other inputs.
    """

    operation: Operation
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    values: Callable[[int], NDArray | None]
    subgraphs: Callable[[int], Kernel] = field(default=_unavailable)
    """The kernel of a referenced subgraph, by index. Raises `Unsupported` if it has none."""

    sums: Sums = "any"
    """The order of float sums (`Sums`)."""

    graphs: Callable[[int], Subgraph] = field(default=_unavailable)
    """Returns a referenced subgraph of the model, by index."""

    preparations: list[Callable[[], object]] = field(default_factory=list)
    """Calls that the driver makes when it prepares the model, in the state of NumPy that builders
    are called in. None of them raises `Unsupported`.
    """

    @property
    def attributes(self) -> Attributes:
        return self.operation.attributes

    def has(self, index: int) -> bool:
        """Whether input *index* is present."""
        operand = self.inputs[index] if index < len(self.inputs) else None
        return operand is not None and operand.has_value

    def input(self, index: int) -> Operand:
        """Input *index*. Raises `Unsupported` if it is omitted."""
        operand = self.inputs[index] if self.has(index) else None
        if operand is None:
            raise Unsupported(f"{self.operation.type} without input {index}")
        return operand

    def output(self, index: int = 0) -> Operand:
        """Output *index*. Raises `Unsupported` if there is none."""
        if index >= len(self.outputs):
            raise Unsupported(f"{self.operation.type} without output {index}")
        return self.outputs[index]

    def quantization(self, index: int = 0) -> Quantization:
        """The scale and zero point of input *index*, as `tensor_quantization`."""
        return tensor_quantization(self.input(index), f"input {index}")

    def output_quantization(self, index: int = 0) -> Quantization:
        """The scale and zero point of output *index*, as `tensor_quantization`."""
        return tensor_quantization(self.output(index), "the output")

    def quantizations(self) -> tuple[Quantization, Quantization]:
        """The scales and zero points of the first input and the first output."""
        return self.quantization(), self.output_quantization()

    def is_constant(self, index: int) -> bool:
        """Whether input *index* is present, and a constant."""
        return self.has(index) and self.input(index).is_constant

    def constant(self, index: int) -> NDArray | None:
        """The value of input *index* if it is a constant, otherwise None."""
        return self.values(index) if self.has(index) else None

    def require_types(self, condition: bool) -> None:
        """Raises `Unsupported`, which names the types of all operands, unless *condition* holds."""
        if not condition:
            raise self.unsupported_types()

    def unsupported_types(self) -> Unsupported:
        """The error for this combination of types."""
        given = ", ".join("-" if o is None else o.dtype.value for o in self.inputs)
        written = ", ".join(o.dtype.value for o in self.outputs)
        return Unsupported(f"{self.operation.type} of ({given}) -> ({written})")


def tensor_quantization(operand: Operand, role: str) -> Quantization:
    """The scale and zero point of an operand quantised per tensor.

    Raises `Unsupported` if it is not quantised, has several scales, or a scale of 0.
    """
    quantization = operand.quantization
    if quantization is None or len(quantization.scales) != 1 or quantization.scale == 0.0:
        raise Unsupported(f"{role} of type {operand.dtype.value} without one scale and zero point")
    return quantization


def types(names: str) -> frozenset[DType]:
    """The element types of these names."""
    return frozenset(map(DType, names.split()))


OptionsT = TypeVar("OptionsT", bound=Struct)


def options_of(site: Site, form: type[OptionsT]) -> OptionsT:
    """The attributes of *site* that the fields of *form* name."""
    try:
        return msgspec.convert(dict(site.attributes), form)
    except msgspec.ValidationError as error:
        raise Unsupported(f"{site.operation.type} with such attributes: {error}") from error


def require(condition: bool, reason: str) -> None:
    """Raises `Unsupported` with *reason* unless *condition* holds."""
    if not condition:
        raise Unsupported(reason)


class _Kernels(Mapping[str, Builder]):
    """Builders by row of the operation table (`Operation.key`).

    A builder's module is imported when its row is first looked up. A network uses few rows, and
    importing all modules would slow every start.
    """

    def __init__(self) -> None:
        self._modules = {row: module for module, rows in MODULES.items() for row in rows.split()}
        self.registered: dict[str, Builder] = {}

    def register(self, key: str, builder: Builder) -> None:
        if key in self.registered:
            raise ValueError(f"{key} has a builder already")
        self.registered[key] = builder

    def __getitem__(self, key: str) -> Builder:
        if key not in self.registered:
            import_module(f"{__package__}.{self._modules[key]}")
        return self.registered[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


KERNELS: Final = _Kernels()


def kernel(*keys: str) -> Callable[[Builder], Builder]:
    """Registers the decorated builder under *keys* (operation types, or CUSTOM:<code>)."""

    def register(builder: Builder) -> Builder:
        for key in keys:
            KERNELS.register(key, builder)
        return builder

    return register


def direct(
    *keys: str,
    inputs: int = 0,
    accepts: Callable[[Site], bool] | None = None,
    check: Callable[[Site], object] | None = None,
) -> Callable[[Callable[[Site, Inputs], Outputs]], Callable[[Site, Inputs], Outputs]]:
    """Registers the decorated function of a site and its inputs under *keys*. For operations
    without preparation. The first *inputs* inputs are required. *accepts* says whether it computes
    the site's types; *check* raises `Unsupported` for any other site that it does not compute.
    """

    def register(compute: Callable[[Site, Inputs], Outputs]) -> Callable[[Site, Inputs], Outputs]:
        @wraps(compute)
        def build(site: Site) -> Kernel:
            for index in range(inputs):
                site.input(index)
            site.require_types(accepts is None or accepts(site))
            if check is not None:
                check(site)
            return partial(compute, site)

        kernel(*keys)(build)
        return compute

    return register


def _absent(operation: Operation) -> str:
    """The operation's key, and for a custom operation a hint for the user."""
    kind, _, code = operation.key.partition(":")
    if kind != "CUSTOM":
        return operation.key
    if code.startswith("Flex"):
        advice = "one of TensorFlow's own operations: convert the model without them"
        return f"{operation.key}, {advice}"
    return f"{operation.key}: a custom operation needs a driver that has it"


def _widened(builder: Builder, site: Site) -> Kernel | None:
    """The kernel of *site* in float32. None if *site* has no float16, or runs subgraphs."""
    operands = [*(o for o in site.inputs if o is not None), *site.outputs]
    kinds = {attribute.kind for attribute in spec_of(site.operation).attributes}
    if all(o.dtype is not DType.FLOAT16 for o in operands) or kinds & {"subgraph", "subgraphs"}:
        return None

    def wide(operand: Operand) -> Operand:
        half = operand.dtype is DType.FLOAT16
        return replace(operand, dtype=DType.FLOAT32) if half else operand

    run = builder(
        replace(
            site,
            inputs=tuple(None if o is None else wide(o) for o in site.inputs),
            outputs=tuple(map(wide, site.outputs)),
            values=lambda position: _wide(site.values(position)),
        )
    )
    halves = [o.dtype is DType.FLOAT16 for o in site.outputs]

    def compute(inputs: Inputs) -> Outputs:
        results = run([_wide(a) for a in inputs])
        return [
            np.asarray(r).astype(np.float16) if half else r
            for r, half in zip(results, halves, strict=True)
        ]

    return compute


def _wide(array: NDArray | None) -> NDArray | None:
    """*array*, in float32 if it is float16."""
    return array if array is None or array.dtype != np.float16 else array.astype(np.float32)


def build(site: Site) -> Kernel:
    """The kernel of *site*. Raises `Unsupported` with the reason if it has none. An operation
    without a float16 kernel is computed in float32.

    Infinities and NaN are ordinary values: NumPy's warnings are off during preparation and runs.
    """
    builder = KERNELS.get(site.operation.key)
    if builder is None:
        raise Unsupported(f"the reference driver has no {_absent(site.operation)}")
    with np.errstate(all="ignore"):
        try:
            run = builder(site)
        except Unsupported:
            wide = _widened(builder, site)
            if wide is None:
                raise
            run = wide
    return np.errstate(all="ignore")(run)
