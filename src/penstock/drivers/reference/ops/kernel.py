"""The contract between the reference driver and its operations.

An operation has a *builder*, registered under its row of the operation table. The builder looks at
one `Site` (an operation in its place in a model), prepares whatever does not depend on the run, and
returns a `Kernel`; or it raises `Unsupported`, and its reason becomes the driver's refusal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial, wraps
from importlib import import_module
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from penstock.drivers.reference.ops import MODULES
from penstock.errors import MissedDeadlineTransient, PenstockError
from penstock.hal import ExecutionConfig
from penstock.ir import Attributes, DType, NDArray, Operand, Operation, Quantization, Subgraph
from penstock.ir.operations import spec_of
from penstock.ir.rounding import Sums

Inputs: TypeAlias = "Sequence[NDArray | None]"
Outputs: TypeAlias = "Sequence[NDArray]"

Kernel: TypeAlias = "Callable[[Inputs], Outputs]"
"""Computes one operation: the arrays of its inputs (None for an omitted one; constants are given
too) to fresh arrays of its outputs, in their true shapes. An output may be an input, or a view of
one, where the values are the same; inputs are never written. Stateless, and safe from any thread.
"""

Builder: TypeAlias = "Callable[[Site], Kernel]"


class Unsupported(PenstockError):
    """The reference driver does not compute this operation as it stands here; the message says
    why.
    """


EXECUTION: Final[ContextVar[ExecutionConfig]] = ContextVar("penstock_reference_execution")
"""The configuration of the run under way, for kernels that loop; always set while one runs."""


LATE: Final = "the deadline passed during the execution"


def check_interrupts(config: ExecutionConfig) -> None:
    """Raises `Cancelled`, or `MissedDeadlineTransient` when time ran out while running."""
    if config.cancel is not None:
        config.cancel.check()
    if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
        raise MissedDeadlineTransient(LATE)


def _no_subgraphs(index: int) -> Kernel:
    raise Unsupported(f"subgraph {index} is not at hand here")


def _no_graphs(index: int) -> Subgraph:
    raise Unsupported(f"subgraph {index} is not at hand here")


class Site(Struct, frozen=True, eq=False):
    """One operation in its place.

    *inputs* has None for an omitted optional input; optional inputs missing at the end may be
    missing here too. *values* gives the value of a constant input by its position, None for others.
    """

    operation: Operation
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    values: Callable[[int], NDArray | None]
    subgraphs: Callable[[int], Kernel] = field(default=_no_subgraphs)
    """The kernel of a referenced subgraph, by its index; `Unsupported` where one of its operations
    is.
    """

    sums: Sums = "any"
    """In which order float sums are taken (`Sums`)."""

    graphs: Callable[[int], Subgraph] = field(default=_no_graphs)
    """A referenced subgraph as the model has it, by its index."""

    @property
    def attributes(self) -> Attributes:
        return self.operation.attributes

    def has(self, index: int) -> bool:
        """Whether input *index* is given."""
        operand = self.inputs[index] if index < len(self.inputs) else None
        return operand is not None and operand.has_value

    def input(self, index: int) -> Operand:
        """Input *index*; `Unsupported` where it is omitted."""
        operand = self.inputs[index] if self.has(index) else None
        if operand is None:
            raise Unsupported(f"{self.operation.type} without input {index}")
        return operand

    def output(self, index: int = 0) -> Operand:
        """Output *index*; `Unsupported` where there is none."""
        if index >= len(self.outputs):
            raise Unsupported(f"{self.operation.type} without output {index}")
        return self.outputs[index]

    def constant(self, index: int) -> NDArray | None:
        """The value of input *index* where it is a constant, None where a run brings it or it is
        omitted.
        """
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
    """The scale and zero point of an operand that must have one pair.

    `Unsupported` where it has none or many, or a scale of 0.
    """
    quantization = operand.quantization
    if quantization is None or len(quantization.scales) != 1 or quantization.scale == 0.0:
        raise Unsupported(f"{role} of type {operand.dtype.value} without one scale and zero point")
    return quantization


def require(condition: bool, reason: str) -> None:
    """Raises `Unsupported` with *reason* unless *condition* holds."""
    if not condition:
        raise Unsupported(reason)


class _Kernels(Mapping[str, Builder]):
    """Builders by row of the operation table (`Operation.key`). The module that has a row's builder
    is imported when the row is first asked for: networks use few, and every start would wait for
    all.
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
    """Registers the decorated builder under *keys* (operation types, or CUSTOM:<code>), which
    `MODULES` lists for its module.
    """

    def register(builder: Builder) -> Builder:
        for key in keys:
            KERNELS.register(key, builder)
        return builder

    return register


def function(
    *keys: str, inputs: int = 0
) -> Callable[[Callable[[Site, Inputs], Outputs]], Callable[[Site, Inputs], Outputs]]:
    """Registers the decorated function of a site and its input arrays under *keys*, for operations
    with nothing to check or prepare. They must have the first *inputs* inputs.
    """

    def register(compute: Callable[[Site, Inputs], Outputs]) -> Callable[[Site, Inputs], Outputs]:
        @wraps(compute)
        def build(site: Site) -> Kernel:
            for index in range(inputs):
                site.input(index)
            return partial(compute, site)

        kernel(*keys)(build)
        return compute

    return register


def _absent(operation: Operation) -> str:
    """The operation, and what may be done about it where it is a custom one."""
    kind, _, code = operation.key.partition(":")
    if kind != "CUSTOM":
        return operation.key
    if code.startswith("Flex"):
        return (
            f"{operation.key}, one of TensorFlow's own operations: convert the model without them"
        )
    return f"{operation.key}: a custom operation needs a driver that has it"


def _widened_site(site: Site) -> Site | None:
    """*site* with float32 in the place of float16; None where it has none, or runs subgraphs."""
    operands = [*(o for o in site.inputs if o is not None), *site.outputs]
    if all(o.dtype is not DType.FLOAT16 for o in operands):
        return None
    if any(a.kind in {"subgraph", "subgraphs"} for a in spec_of(site.operation).attributes):
        return None

    def value(position: int) -> NDArray | None:
        found = site.values(position)
        return found.astype(np.float32) if found is not None and _is_half(found) else found

    return replace(
        site,
        inputs=tuple(None if o is None else _widened(o) for o in site.inputs),
        outputs=tuple(map(_widened, site.outputs)),
        values=value,
    )


def _narrowed(run: Kernel, outputs: Sequence[Operand]) -> Kernel:
    """The kernel of a widened site, between float16 arrays."""
    halves = [o.dtype is DType.FLOAT16 for o in outputs]

    def compute(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        wide = [a.astype(np.float32) if a is not None and _is_half(a) else a for a in inputs]
        return [
            np.asarray(r).astype(np.float16) if half else r
            for r, half in zip(run(wide), halves, strict=True)
        ]

    return compute


def _widened(operand: Operand) -> Operand:
    return replace(operand, dtype=DType.FLOAT32) if operand.dtype is DType.FLOAT16 else operand


def _is_half(array: NDArray) -> bool:
    return array.dtype == np.float16


def build(site: Site) -> Kernel:
    """The kernel of *site*; `Unsupported` with the reason where there is none. What has no kernel
    in float16 is computed in float32.

    Infinities and not-a-numbers are values here: NumPy does not warn of them, when preparing or
    running.
    """
    builder = KERNELS.get(site.operation.key)
    if builder is None:
        raise Unsupported(f"the reference driver has no {_absent(site.operation)}")
    with np.errstate(all="ignore"):
        try:
            run = builder(site)
        except Unsupported:
            wide = _widened_site(site)
            if wide is None:
                raise
            run = _narrowed(builder(wide), site.outputs)
    return np.errstate(all="ignore")(run)
