"""One subgraph of an interpreter: shapes, memory, and the program that runs it."""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from penstock.errors import DriverError, InputError, ModelError, PlacementError, StateError
from penstock.execution.bound_run import BoundRun
from penstock.ir import Model, NDArray, Operation
from penstock.ir.types import DType
from penstock.loaders.tflite.catalog import SubgraphEntry, TensorEntry
from penstock.memory.limits import check_bytes
from penstock.tflite import texts, values
from penstock.tflite.program import Program, given_tensors
from penstock.tflite.session import Session
from penstock.tflite.values import blank, shown_type, stored_type

if TYPE_CHECKING:
    from penstock.delegates import Delegate
    from penstock.delegates.graph import DelegatedGraph, Kernel
    from penstock.delegates.steps import DelegatedModel, DelegatedRun
    from penstock.execution import CompiledModel

MAX_PROGRAMS: Final = 4
"""How many sets of input shapes stay compiled. The least recently used one is evicted first."""

COMPILE_ERRORS: Final = (ModelError, PlacementError, DriverError, MemoryError)

NOT_KEPT: Final = (
    f"{texts.NO_DATA}\nThe values of tensors inside the graph are kept with "
    "experimental_preserve_all_tensors=True only, after invoke()"
)


class Graph:
    """One subgraph: resized, allocated, invoked. Not thread-safe."""

    def __init__(self, session: Session, index: int) -> None:
        self._session, self._index = session, index
        self.catalog: SubgraphEntry = session.catalog.subgraphs[index]
        self.shapes: list[tuple[int, ...]] = [t.shape for t in self.catalog.tensors]
        self.runs = 0
        self._types: dict[int, DType] = {}
        self._values: dict[int, NDArray] = {}
        self.direct: dict[int, NDArray] = {}
        """The memory of allocated inputs and outputs that callers see as it is, by tensor: setting
        or getting one of them is a copy. A change of the graph empties it.
        """
        self._programs: OrderedDict[tuple[tuple[int, ...], ...], Program] = OrderedDict()
        self._program: Program | None = None
        self._process = os.getpid()
        self._ready = False
        self._given: list[NDArray] = []
        self._out: list[NDArray | None] | None = None
        self._late: list[tuple[int, int]] = []
        self._bound: BoundRun | DelegatedRun | None = None
        self._delegated: DelegatedGraph | None = None
        self._promised = False
        self._model: tuple[tuple[tuple[int, ...], ...], Model] | None = None

    def tensor(self, index: int) -> TensorEntry:
        """The tensor of that index, with its present type. Raises `ValueError`."""
        count = len(self.catalog.tensors)
        if not 0 <= index < count:
            raise ValueError(f"Invalid tensor index {index} exceeds max tensor index {count}")
        tensor = self.catalog.tensors[index]
        dtype = self._types.get(index, tensor.dtype)
        return tensor if dtype is tensor.dtype else replace(tensor, dtype=dtype)

    def details(self, index: int) -> dict[str, Any]:
        tensor, compress = self.tensor(index), self._session.compress_zero_points
        return values.tensor_details(
            tensor, index, self.shapes[index], compress_zero_points=compress
        )

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations that it was compiled to; empty before `allocate`."""
        return () if self._program is None else self._program.compiled.model.operations

    def resize(self, index: int, dims: NDArray, *, strict: bool) -> None:
        """Gives an input another shape, for the next `allocate`. Raises as LiteRT does."""
        if dims.ndim != 1:
            raise ValueError(f"Shape should be 1D instead of {dims.ndim}.")
        if not 0 <= index < len(self.catalog.tensors):
            raise RuntimeError(
                "tensor_index < context_.tensors_size && tensor_index >= 0 was not true.\n"
                f"There is no tensor {index}"
            )
        shape = tuple(dims.tolist())
        if strict:
            known = self.catalog.tensors[index].signature or self.shapes[index]
            if len(known) != len(shape):
                raise RuntimeError(
                    f"tensor->dims->size != dims.size() ({len(known)} != {len(shape)})"
                )
            for place, (old, new) in enumerate(zip(known, shape, strict=True)):
                if old not in (-1, new):
                    raise RuntimeError(
                        f"Attempting to resize dimension {place} of tensor {index} with value "
                        f"{old} to {new}. ResizeInputTensorStrict only allows mutating unknown "
                        "dimensions identified by -1."
                    )
        if shape == self.shapes[index]:
            return
        if self.catalog.tensors[index].data is not None:
            raise RuntimeError(f"{texts.FIXED_SIZE}\nTensor {index} is a constant")
        if any(d < 0 for d in shape):
            raise RuntimeError(f"{texts.OVERFLOW}\nShape {shape} has a negative dimension")
        self.shapes[index] = shape
        self.direct.clear()
        self._values.pop(index, None)
        self._ready = self._promised = False
        if self._delegated is not None:
            self._delegated.tensors.drop(index)

    def allocate(self) -> None:
        """Compiles for the present shapes, and allocates. Raises `RuntimeError` as LiteRT does."""
        if self._ready:
            return
        self._check_indexes()
        if self._process != os.getpid():
            self._compile_again()
        try:
            program = self._compiled()
            self._bind(program)
        except COMPILE_ERRORS as error:
            raise RuntimeError(self._reason(error)) from error
        self._program, self._ready, self._promised = program, True, False
        self._session.reset((*program.variables.values(), *program.generators))

    def invoke(self) -> None:
        """Runs once. Raises `RuntimeError` before `allocate`, and if a run fails."""
        if self._process != os.getpid():
            self._compile_again()
        if self._promised:
            self._allocate_if_promised()
        program = self._program
        if not self._ready or program is None:
            raise RuntimeError(texts.NOT_READY)
        try:
            if self._bound is None:
                self._bound = program.bind(self._given, self._out)
            state = self._session.state_for(program) if program.has_state else None
            results = self._bound.run(state)
        except (DriverError, ModelError, StateError, MemoryError) as error:
            raise RuntimeError(self._reason(error)) from error
        self.runs += 1
        for position, tensor in self._late:
            value = results[position]
            self._values[tensor] = value
            self.shapes[tensor] = value.shape
        if self._delegated is not None and not self._session.allow_buffer_handle_output:
            for tensor in self.catalog.outputs:
                self._delegated.tensors.make_readable(tensor)

    def set(self, index: int, value: Any) -> None:
        """Copies *value* into a tensor. Raises `ValueError` as LiteRT does."""
        tensor = self.tensor(index)
        array = values.readable(value, tensor, self.shapes[index], index)
        if tensor.data is not None:
            raise ValueError(
                f"Cannot set tensor: tensor {index}, name: {tensor.name}, is a constant of the "
                "model"
            )
        program = self._program
        if program is not None and index in program.variables:
            if (state := self._session.state_for(program)) is not None:
                stored = np.array(array.astype(tensor.dtype.numpy, copy=False))
                state.replace({program.variables[index]: stored})
            return
        self._allocate_if_promised()
        memory = self._memory(index)
        if memory is None and tensor.dtype is DType.STRING and index in self.catalog.inputs:
            memory = self._sized(index, self.shapes[index])
        if memory is None and array.size == 0:
            return
        if memory is None:
            raise ValueError(texts.UNALLOCATED)
        np.copyto(memory, array, casting="unsafe")
        if self._delegated is not None:
            self._delegated.tensors.overwritten(index)

    def get(self, index: int) -> Any:
        """A copy of a tensor's value, a number for a scalar. Raises `ValueError` if it has none."""
        return values.handed_out(self._value(index), self.tensor(index).dtype)

    def view(self, index: int) -> Any:
        """A counted view of a tensor's memory; of a constant it is read-only."""
        memory = self._value(index)
        if self._delegated is not None:
            self._delegated.tensors.overwritten(index)
        return self._session.guests.lend(memory, shown_type(self.tensor(index).dtype))

    def reset_variables(self) -> None:
        """Resets the subgraph's variable tensors. Raises `RuntimeError` before they have memory."""
        if self._program is not None:
            self._session.reset(self._program.variables.values())
        elif any(t.is_variable for t in self.catalog.tensors):
            raise RuntimeError(f"{texts.NO_VARIABLES}\nRun allocate_tensors() first")

    def close(self) -> None:
        self._ready = self._promised = False
        self._drop_programs()
        if self._delegated is not None:
            self._delegated.close()

    def part(self) -> None:
        """Drops references to other subgraphs after `close`. They would form cycles."""
        self._session.subgraphs = None
        self._program = None

    def add_delegate(self, delegate: Delegate) -> None:
        """Adds a delegate, or raises `DelegateError` or `RuntimeError` and changes nothing."""
        self._check_indexes()
        try:
            model = self._shaped()
        except COMPILE_ERRORS as error:
            raise RuntimeError(self._reason(error)) from error
        graph = self._delegated
        if graph is None:
            graph = self._session.delegated(self._index, model)
        graph.at(model)
        graph.add(delegate)
        self._delegated = graph
        self._promised = self._promised or not graph.takes_dynamic_shapes
        self.forget_steps()

    def can_take(self, delegate: Delegate) -> bool:
        """Whether a delegate can be added at the shapes that the subgraph has now."""
        from penstock.delegates.graph import refuses

        try:
            return not refuses(self._shaped(), delegate)
        except COMPILE_ERRORS:
            return False

    def forget_steps(self) -> None:
        """Makes the next `allocate` compile again: subgraphs that this one enters changed."""
        self._promised = self._promised or self._ready
        self._ready = False
        self._drop_programs()

    def remove_delegate(self) -> None:
        if self._delegated is not None:
            self._delegated.remove_last()
            self._ready = False
            self._drop_programs()

    def set_buffer_handle(self, index: int, handle: int, delegate: object) -> None:
        """Moves a tensor to a delegate's buffer. Raises `ValueError` if it cannot be there."""
        tensor = self.tensor(index)
        graph = self._delegated
        if graph is None or not any(delegate is d for d in graph.delegates):
            raise InputError("a buffer belongs to a delegate that was added to this interpreter")
        if tensor.is_variable:
            raise InputError(f"tensor {index} is a variable, which the interpreter keeps itself")
        fed = all(index not in operator.outputs for operator in self.catalog.operators)
        known = next(d for d in graph.delegates if d is delegate)
        own = [k.node for k in graph.kernels if k.delegate is known]
        if not fed and not any(index in (*node.inputs, *node.outputs) for node in own):
            raise InputError(
                f"tensor {index} ({tensor.name}) is computed, and no kernel of that delegate reads "
                "or writes it"
            )
        graph.tensors.bind(index, handle, known, fed=fed)

    def make_readable(self, index: int) -> None:
        """Copies a stale tensor to host memory. Raises `DelegateError` if that fails."""
        self.tensor(index)
        if self._delegated is not None:
            self._allocate_if_promised()
            self._delegated.tensors.make_readable(index)

    @property
    def entered(self) -> tuple[int, ...]:
        """The subgraphs of branches and loops outside delegates; none without a delegate."""
        return () if self._delegated is None else self._delegated.entered

    @property
    def delegate_nodes(self) -> list[Kernel]:
        """The delegates' nodes, in order of creation."""
        return [] if self._delegated is None else self._delegated.kernels

    def _drop_programs(self) -> None:
        self._bound = None
        self.direct.clear()
        while self._programs:
            self._programs.popitem()[1].compiled.close()

    def _allocate_if_promised(self) -> None:
        """Allocates a graph with a new delegate on first use. LiteRT does it immediately."""
        if self._promised and not self._ready:
            self.allocate()

    def _value(self, index: int) -> NDArray:
        tensor = self.tensor(index)
        if tensor.data is not None:
            return tensor.constant(self._session.catalog.pool)
        if self._delegated is not None:
            self._allocate_if_promised()
            self._delegated.tensors.make_readable(index)
        memory, program = self._memory(index), self._program
        if memory is None and program is not None and self._session.preserve:
            # Another tensor, or a dense constant, holds the value of this one.
            if index in program.holders.dense:
                memory = program.dense_constant(program.holders.dense[index])
            elif index in program.holders.tensors:
                memory = self._value(program.holders.tensors[index])
        if memory is None and 0 in self.shapes[index]:
            with suppress(MemoryError):  # not even an empty value can have some shapes
                memory = blank(tensor.dtype, self.shapes[index])
        if memory is None:
            outer = index in self.catalog.inputs or index in self.catalog.outputs
            raise ValueError(NOT_KEPT if self._ready and not outer else texts.NO_DATA)
        return memory

    def _memory(self, index: int) -> NDArray | None:
        """The tensor's memory, or None. Memory outside the program is allocated on demand."""
        program = self._program
        if program is not None and index in program.variables:
            state = self._session.state_for(program)
            return None if state is None else state.get(program.variables[index])
        found = self._values.get(index)
        tensor = self.catalog.tensors[index]
        if found is None and self._ready and tensor.is_variable:
            found = self._values[index] = blank(tensor.dtype, self.shapes[index])
        if found is None and self._delegated is not None and self.runs:
            found = self._delegated.tensors.memory(index)
        return found

    def _check_indexes(self) -> None:
        count = len(self.catalog.tensors)
        for kind, indexes in (("inputs", self.catalog.inputs), ("outputs", self.catalog.outputs)):
            for index in indexes:
                if not 0 <= index < count:
                    raise RuntimeError(
                        f"Invalid tensor index {index} in {kind}. The subgraph has {count} "
                        f"tensors\n{texts.INCONSISTENT}"
                    )

    def _compile_again(self) -> None:
        """Compiles again in a forked child: the parent's models do not work there. Values stay."""
        self._process = os.getpid()
        self.direct.clear()
        self._programs.clear()
        self._bound = None
        self._session.after_fork()
        if self._delegated is not None:
            self._delegated.after_fork()
        if self._ready:
            try:
                self._program = self._compiled()
            except COMPILE_ERRORS as error:
                raise RuntimeError(self._reason(error)) from error

    def _key(self) -> tuple[tuple[int, ...], ...]:
        """The present shapes of the model's inputs, in order."""
        entered = self._session.model.subgraphs[self._index]
        inputs = given_tensors(self.catalog, len(entered.ordinary_inputs))
        return tuple(self.shapes[i] for i in inputs)

    def _shaped(self) -> Model:
        """The model with the present shapes; the same object until they change."""
        key = self._key()
        if self._model is None or self._model[0] != key:
            self._model = key, self._session.shaped(self._index, dict(enumerate(key)))
        return self._model[1]

    def _compile(self) -> CompiledModel | DelegatedModel:
        graph = self._delegated
        if graph is None:
            return self._session.compile(self._shaped())
        from penstock.delegates.steps import DelegatedModel

        # Kernels are prepared for one set of shapes, and a delegate may have been removed.
        self._drop_programs()
        graph.at(self._shaped())
        return DelegatedModel(graph, self._session.compile)

    def _compiled(self) -> Program:
        key = self._key()
        program = self._programs.get(key)
        if program is None:
            compiled = self._compile()
            try:
                program = Program(compiled, self.catalog, self._index)
            except ModelError:
                compiled.close()
                raise
            self._programs[key] = program
            if len(self._programs) > MAX_PROGRAMS:
                self._programs.popitem(last=False)[1].compiled.close()
        self._programs.move_to_end(key)
        return program

    def _bind(self, program: Program) -> None:
        """Allocates memory for every input and output. Memory that has the right shape is kept."""
        self._bound = None
        self.direct.clear()
        for tensor, known in program.shapes.items():
            if tensor not in program.inputs:
                self.shapes[tensor] = known
        self._types = program.types
        given = ((i, self.shapes[i]) for i in program.inputs)
        computed = zip(program.outputs, program.static, strict=True)
        needed = sum(
            math.prod(shape) * stored_type(self.tensor(i).dtype).itemsize
            for i, shape in chain(given, computed)
            if i is not None and shape is not None
        )
        check_bytes(needed, "the memory of the inputs and outputs")
        self._given = [self._sized(i, self.shapes[i]) for i in program.inputs]
        out: list[NDArray | None] = []
        self._late = []
        for position, (output, shape) in enumerate(
            zip(program.outputs, program.static, strict=True)
        ):
            memory = None
            if output is not None:
                if shape is None:
                    self._values.pop(output, None)
                else:
                    memory = self._sized(output, shape)
                if memory is None or position >= program.own:
                    self._late.append((position, output))
                    memory = None
            out.append(memory)
        self._out = out if any(a is not None for a in out) else None
        if self._delegated is not None:
            self._bound = program.bind(self._given, self._out)
        else:
            self._list_direct(program, out)

    def _list_direct(self, program: Program, out: Sequence[NDArray | None]) -> None:
        """Fills `direct`."""
        own = (
            *zip(program.inputs, self._given, strict=True),
            *zip(program.outputs, out, strict=True),
        )
        for tensor, memory in own:
            if tensor is None or memory is None or tensor in program.variables or not memory.ndim:
                continue
            entry = self.tensor(tensor)
            if entry.data is None and entry.dtype not in values.SHOWN_AS:
                self.direct[tensor] = memory

    def _sized(self, tensor: int, shape: Sequence[int]) -> NDArray:
        known = self._values.get(tensor)
        if known is None or known.shape != tuple(shape):
            known = self._values[tensor] = blank(self.tensor(tensor).dtype, shape)
        return known

    def _reason(self, error: Exception) -> str:
        return self._session.reason(error, self._index)
