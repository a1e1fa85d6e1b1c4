"""Programs: kernels of a subgraph, in order. Operands are freed after their last use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from penstock import errors
from penstock.drivers.reference.kernel import (
    EXECUTION,
    Kernel,
    Site,
    Unsupported,
    build,
    check_interrupts,
)
from penstock.hal import ExecutionConfig
from penstock.interrupts import polled
from penstock.ir import Model, NDArray, Operand, Operation, Subgraph
from penstock.ir.rounding import Sums, sums_of
from penstock.ir.transforms import entered_from
from penstock.ir.types import element_count, static_shape
from penstock.memory.limits import check_bytes

MAX_MESSAGE: Final = 300
FAULTS: Final = errors.PenstockError, ValueError, TypeError, LookupError, ArithmeticError
"""What a kernel, or its preparation, raises for a model or inputs that it cannot compute."""


class Entered(Struct, frozen=True):
    """What the programs of one model share: the *kernels* of the subgraphs that it enters, or why
    there is none, by index; and the `Site.preparations` of all its operations.
    """

    kernels: dict[int, Kernel | str]
    preparations: list[Callable[[], object]]


class Instruction(Struct, frozen=True):
    """One operation of a program; *frees* are the operands that no later operation reads."""

    kernel: Kernel
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    place: str


class Program(Struct, frozen=True):
    """One subgraph, ready to run: constants by operand index, and its operations in order."""

    constants: dict[int, NDArray]
    instructions: tuple[Instruction, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def run(
        self, inputs: Sequence[NDArray], config: ExecutionConfig, clock: list[int] | None = None
    ) -> list[NDArray]:
        """The output arrays; they may view inputs or constants. Checks deadline and cancellation
        between operations.

        *clock* receives the `time.perf_counter_ns` at which each operation begins and the last one
        ends.
        """
        values = {**self.constants, **dict(zip(self.inputs, inputs, strict=True))}
        interruptible = config.cancel is not None or config.deadline_ns is not None
        for instruction in self.instructions:
            if interruptible:
                check_interrupts(config)
            if clock is not None:
                clock.append(time.perf_counter_ns())
            try:
                results = instruction.kernel([values.get(i) for i in instruction.inputs])
            except (errors.DriverError, errors.Cancelled):
                raise
            except MemoryError as error:
                text = f"{instruction.place}: no memory left"
                raise errors.ResourceExhaustedTransient(text) from error
            except FAULTS as error:
                text = f"{instruction.place}: {str(error)[:MAX_MESSAGE]}"
                raise errors.GeneralFailure(text) from error
            values.update(zip(instruction.outputs, results, strict=True))
            for index in instruction.frees:
                del values[index]
        if clock is not None:
            clock.append(time.perf_counter_ns())
        return [values[i] for i in self.outputs]

    def as_kernel(self) -> Kernel:
        """The program as a kernel, for operations that refer to its subgraph."""
        return lambda inputs: self.run([a for a in inputs if a is not None], EXECUTION.get())


def examine(
    model: Model, index: int, entered: Entered, later: Mapping[int, Sums] | None = None
) -> list[Kernel | str]:
    """The kernel of each operation of a subgraph, or why there is none; as `make_sites`."""
    return [_examine(site) for site in polled(make_sites(model, index, entered, later))]


def _examine(site: Site) -> Kernel | str:
    try:
        for output in site.outputs:
            if (shape := static_shape(output.shape)) is not None:
                nbytes = element_count(shape) * output.dtype.numpy.itemsize
                check_bytes(nbytes, site.operation.key)
        return build(site)
    except Unsupported as refusal:
        return str(refusal)
    except FAULTS as error:
        return f"not computable as it stands: {str(error)[:MAX_MESSAGE]}"


def compile_subgraph(model: Model, index: int, kernels: Sequence[Kernel | str]) -> Program:
    """The program of a subgraph. *kernels* is the result of `examine` for it. Raises `Unsupported`
    naming the first operation without a kernel.
    """
    subgraph = model.subgraphs[index]
    needed = {i for o in subgraph.operations for i in (*o.inputs, *o.outputs)} | set(
        subgraph.outputs
    )
    constants = {
        i: model.constant(subgraph.operands[i])
        for i in sorted(needed)
        if subgraph.operands[i].is_constant
    }
    frees = _frees(subgraph, constants)
    instructions: list[Instruction] = []
    for at, kernel in enumerate(polled(kernels)):
        operation = subgraph.operations[at]
        if isinstance(kernel, str):
            raise Unsupported(f"operation {at} ({operation.key}): {kernel}")
        place = f"operation {at} ({operation.key}, {subgraph.operation_name(at)!r})"
        instructions.append(
            Instruction(kernel, operation.inputs, operation.outputs, frees[at], place)
        )
    return Program(constants, tuple(instructions), subgraph.inputs, subgraph.outputs)


def make_sites(
    model: Model, index: int, entered: Entered, later: Mapping[int, Sums] | None = None
) -> list[Site]:
    """The operations of a subgraph for their builders. *entered* has the kernels of the subgraphs
    that it enters.
    """
    subgraph = model.subgraphs[index]
    sums = sums_of(subgraph, later)

    def nested(target: int) -> Kernel:
        found = entered.kernels[target]
        if isinstance(found, str):
            raise Unsupported(found)
        return found

    def make(operation: Operation) -> Site:
        operands = [subgraph.operands[i] for i in operation.inputs]

        def value(position: int) -> NDArray | None:
            operand: Operand = operands[position]
            return model.constant(operand) if operand.is_constant else None

        return Site(
            operation,
            tuple(o if o.has_value else None for o in operands),
            tuple(subgraph.operands[i] for i in operation.outputs),
            value,
            nested,
            next((sums[i] for i in operation.outputs if i in sums), "any"),
            model.subgraphs.__getitem__,
            entered.preparations,
        )

    return [make(operation) for operation in polled(subgraph.operations)]


def compile_entered(model: Model, index: int) -> Entered:
    """The kernels of all subgraphs that *index* enters, directly or not. Each is compiled once,
    after those that it enters: a tree of them may be infinite, or deeper than Python's stack.
    """
    entered = Entered({}, [])
    for target in entered_from(model, index):
        try:
            program = compile_subgraph(model, target, examine(model, target, entered))
            entered.kernels[target] = program.as_kernel()
        except Unsupported as refusal:
            entered.kernels[target] = str(refusal)
    return entered


def _frees(subgraph: Subgraph, constants: dict[int, NDArray]) -> list[tuple[int, ...]]:
    kept = set(subgraph.outputs) | set(constants)
    last: dict[int, int] = {}
    for at, operation in enumerate(subgraph.operations):
        for index in (*operation.outputs, *operation.inputs):
            if index not in kept and subgraph.operands[index].has_value:
                last[index] = at
    frees: list[list[int]] = [[] for _ in subgraph.operations]
    for index, at in last.items():
        frees[at].append(index)
    return [tuple(f) for f in frees]
