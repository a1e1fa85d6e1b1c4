"""The tensors of a delegated subgraph: their data, in host memory or in a delegate's buffer."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from penstock.delegates.api import NULL_BUFFER_HANDLE, Delegate, call, name_of, overrides, release
from penstock.delegates.context import DelegateTensor
from penstock.errors import DelegateError, InputError, StateError
from penstock.ir import DType, Model, NDArray, Operand, Shape
from penstock.ir.operand import Lifetime
from penstock.ir.types import agrees, static_shape
from penstock.memory.limits import check_bytes

if TYPE_CHECKING:
    from penstock.delegates.context import DelegateContext
    from penstock.delegates.graph import DelegatedGraph


@dataclass(slots=True, eq=False)
class Buffered:
    """The buffer of a tensor that a delegate computes or holds.

    *stale*: only the buffer has the present value. *newer*: only host memory has it. *lent*: the
    user of the interpreter set the buffer, not a kernel.
    """

    owner: Delegate | None = None
    handle: int = NULL_BUFFER_HANDLE
    stale: bool = False
    newer: bool = False
    lent: bool = False


_NO_BUFFER: Final = Buffered()


class Tensors:
    """All tensors by index. Tensors that kernels add follow the file's.

    *held* maps a tensor to the operand of the model that has its value, if its number differs.
    *values* are the arrays of operands during a run. *changing* are the variable tensors that the
    present kernel changes.
    """

    def __init__(self, graph: DelegatedGraph, model: Model, held: Mapping[int, int]) -> None:
        # A weak reference: the graph owns its tensors.
        self._graph: Callable[[], DelegatedGraph | None] = weakref.ref(graph)
        self._catalog, self._held = graph.catalog, held
        self.model = model
        self.values: dict[int, NDArray] = {}
        self.changing: dict[int, NDArray] = {}
        self.current: Delegate | None = None
        self._buffered: dict[int, Buffered] = {}
        self._replaced: list[tuple[Delegate, int]] = []
        self._writable: Collection[int] = ()
        self._added: dict[int, tuple[Operand, NDArray]] = {}
        self._next = len(graph.catalog.tensors)

    @property
    def context(self) -> DelegateContext:
        """The delegates' view of the graph. Raises `StateError` if the graph no longer exists."""
        graph = self._graph()
        if graph is None:
            raise StateError("the graph of this tensor is gone")
        return graph.context

    def tensor(self, index: int) -> DelegateTensor:
        """The delegates' view of tensor *index*. Raises `InputError` if it does not exist."""
        if type(index) is not int or not (
            0 <= index < len(self._catalog.tensors) or index in self._added
        ):
            raise InputError(f"there is no tensor {index!r}; the graph has {self._next}")
        return DelegateTensor(self, index)

    def name(self, index: int) -> str:
        return "" if index in self._added else self._catalog.tensors[index].name

    def held(self, index: int) -> Operand:
        """The declaration of the operand with the value of tensor *index*."""
        known = self._added.get(index)
        return self.model.operands[self.operand(index)] if known is None else known[0]

    def shape(self, index: int) -> Shape:
        operand = self.held(index)
        if static_shape(operand.shape) is None:
            value = self.values.get(self.operand(index))
            if value is not None:
                present: Shape = value.shape
                return present
        return operand.shape

    def is_variable(self, index: int) -> bool:
        return index not in self._added and self._catalog.tensors[index].is_variable

    def operand(self, index: int) -> int:
        """The operand with the value of tensor *index*."""
        return self._held.get(index, index)

    def data(self, index: int) -> NDArray:
        """Its memory, up to date, writable for its writer only. `StateError` if it has none."""
        self.make_readable(index)
        array = self.memory(index)
        if array is None:
            raise StateError(f"tensor {index} ({self.name(index)}) has no data now")
        if index in self._writable or index in self._added or not array.flags.writeable:
            return array
        view = array.view()
        view.flags.writeable = False
        return view

    def buffer(self, index: int) -> Buffered:
        """The tensor's buffer, to be read only."""
        return self._buffered.get(index, _NO_BUFFER)

    def set_handle(self, index: int, handle: int) -> None:
        """Sets a tensor's buffer. The old one is freed later, unless it then holds a tensor."""
        buffered = self._own(index)
        number = _checked(handle)
        if buffered.owner is not None and buffered.handle not in (NULL_BUFFER_HANDLE, number):
            self._replaced.append((buffered.owner, buffered.handle))
        buffered.handle, buffered.lent = number, False

    def set_stale(self, index: int, stale: bool) -> None:
        buffered = self._own(index)
        buffered.stale = bool(stale)
        if stale:
            buffered.newer = False

    def claim(self, indexes: Collection[int], delegate: Delegate) -> None:
        """Makes *delegate* the owner of the tensors that its kernels compute."""
        for index in indexes:
            self._at(index).owner = delegate

    def bind(self, index: int, handle: int, delegate: Delegate, *, fed: bool) -> None:
        """Sets a tensor's buffer. *fed*: its content is now the value. Raises `InputError`."""
        number = _checked(handle)
        self.tensor(index)
        if self.held(index).is_constant:
            raise InputError(f"tensor {index} is a constant, which no buffer can hold")
        buffered = self._at(index)
        if buffered.owner is not None and buffered.owner is not delegate:
            raise InputError(
                f"tensor {index} belongs to delegate {name_of(buffered.owner)!r}, "
                f"not to {name_of(delegate)!r}"
            )
        if number != buffered.handle:
            self._free(buffered)
        if number == NULL_BUFFER_HANDLE and fed:
            buffered.owner, buffered.stale, buffered.newer = None, False, False
            return
        buffered.owner, buffered.handle, buffered.lent = delegate, number, True
        buffered.stale, buffered.newer = fed, False

    def make_readable(self, index: int) -> None:
        """Copies a stale tensor to host memory. Raises `DelegateError`, or `StateError`."""
        buffered = self.buffer(index)
        if not buffered.stale:
            return
        owner, stage = buffered.owner, "copy_from_buffer_handle"
        if owner is None or buffered.handle == NULL_BUFFER_HANDLE:
            name = "" if owner is None else name_of(owner)
            raise DelegateError(name, stage, f"tensor {index} is stale and lies in no buffer")
        if self.memory(index) is None:
            raise StateError(f"tensor {index} ({self.name(index)}) has no memory yet")
        buffered.stale = False
        copy, tensor = owner.copy_from_buffer_handle, DelegateTensor(self, index)
        try:
            with self.writing((*self._writable, index)):
                call(owner, stage, copy, self.context, buffered.handle, tensor)
        except BaseException:
            buffered.stale = True
            raise
        buffered.newer = False

    def before_kernel(
        self, inputs: Collection[int], outputs: Collection[int], delegate: Delegate
    ) -> None:
        """Copies a kernel's inputs to the memory that it reads: its buffers, or host memory."""
        stage, copy = "copy_to_buffer_handle", delegate.copy_to_buffer_handle
        copies = overrides(delegate, stage)
        for index in inputs:
            buffered = self.buffer(index)
            if buffered.owner is not delegate:
                self.make_readable(index)
            elif copies and buffered.newer and buffered.handle != NULL_BUFFER_HANDLE:
                tensor = DelegateTensor(self, index)
                call(delegate, stage, copy, self.context, buffered.handle, tensor)
                buffered.newer = False
        for index in outputs:
            if (buffered_output := self._buffered.get(index)) is not None:
                buffered_output.stale = False

    def written(self, index: int) -> None:
        """Records a new value in host memory."""
        buffered = self._buffered.get(index)
        if buffered is not None and not buffered.stale:
            buffered.newer = True

    def overwritten(self, index: int) -> None:
        """Records a new value in host memory that replaces the buffer's."""
        if (buffered := self._buffered.get(index)) is not None:
            buffered.stale = False
            self.written(index)

    def add(self, dtype: DType, shape: Sequence[int]) -> int:
        """Adds a tensor beyond the file's."""
        index, self._next = self._next, self._next + 1
        value = blank(dtype, shape)
        self._added[index] = Operand(dtype, value.shape, Lifetime.TEMPORARY_VARIABLE), value
        return index

    def resize(self, index: int, shape: Sequence[int]) -> None:
        """Allocates new memory for a tensor that is being written."""
        wanted = tuple(int(d) for d in shape)
        if index in self._added:
            own = self._added[index][0]
            if own.shape != wanted:
                self._added[index] = replace(own, shape=wanted), blank(own.dtype, wanted)
            return
        self.tensor(index)
        if index not in self._writable or self.is_variable(index):
            raise StateError(f"tensor {index} is not an output of the kernel under way")
        operand = self.held(index)
        if not agrees(operand.shape, wanted):
            raise InputError(f"tensor {index} has the shape {operand.shape}, which {wanted} is not")
        known = self.values.get(self.operand(index))
        if known is None or known.shape != wanted:
            self.values[self.operand(index)] = blank(operand.dtype, wanted)

    @contextmanager
    def writing(self, indexes: Collection[int]) -> Iterator[None]:
        """A block in which these tensors may be written."""
        before, self._writable = self._writable, indexes
        try:
            yield
        finally:
            self._writable = before

    @contextmanager
    def acting(self, delegate: Delegate) -> Iterator[None]:
        """A block in which the delegate's code runs. Replaced buffers are freed at its end."""
        before, self.current = self.current, delegate
        try:
            yield
        finally:
            self.current = before
            if before is None:
                replaced, self._replaced = self._replaced, []
                for owner, handle in {(id(o), h): (o, h) for o, h in replaced}.values():
                    self._free_unused(owner, handle)

    def let_go(self, owners: Collection[Delegate], *, lent_too: bool) -> None:
        """Frees the buffers of *owners*; those that the user set only with *lent_too*."""
        for index, buffered in list(self._buffered.items()):
            if buffered.owner is None or not any(buffered.owner is o for o in owners):
                continue
            if buffered.lent and not lent_too:
                continue
            self._free(buffered)
            del self._buffered[index]

    def drop(self, index: int) -> None:
        """Frees the buffer of one tensor, whose memory is about to change."""
        if (buffered := self._buffered.pop(index, None)) is not None:
            self._free(buffered)

    def publish(self, values: dict[int, NDArray]) -> None:
        self.values, self.changing = values, {}

    def forget(self) -> None:
        """Forgets all buffers without freeing them, because they belong to another process."""
        self._buffered.clear()
        self._replaced.clear()

    def _free(self, buffered: Buffered) -> None:
        """Removes a tensor from its buffer, and frees the buffer if it holds no other tensor."""
        owner, handle = buffered.owner, buffered.handle
        buffered.handle = NULL_BUFFER_HANDLE
        if owner is not None and handle != NULL_BUFFER_HANDLE:
            self._free_unused(owner, handle)

    def _free_unused(self, owner: Delegate, handle: int) -> None:
        """Frees a buffer if it holds no tensor."""
        if not any(b.owner is owner and b.handle == handle for b in self._buffered.values()):
            free = owner.free_buffer_handle
            release(owner, "free_buffer_handle", free, self.context, handle)

    def _own(self, index: int) -> Buffered:
        """The buffer of a tensor, for its delegate's code to change."""
        buffered = self._at(index)
        if self.current is None or buffered.owner not in (None, self.current):
            raise StateError(
                f"only the delegate that computes tensor {index} can say where it lies, while its "
                "code runs"
            )
        buffered.owner = self.current
        return buffered

    def _at(self, index: int) -> Buffered:
        self.tensor(index)
        return self._buffered.setdefault(index, Buffered())

    def memory(self, index: int) -> NDArray | None:
        """The array with its present value; None if it has none."""
        if index in self._added:
            return self._added[index][1]
        if index in self.changing:
            return self.changing[index]
        operand = self.held(index)
        if operand.is_constant:
            return self.model.constant(operand)
        return self.values.get(self.operand(index))


def blank(dtype: DType, shape: Sequence[int]) -> NDArray:
    """Zeros, or empty strings. Raises `LimitExceeded` beyond the size of an array."""
    wanted = tuple(int(d) for d in shape)
    if any(d < 0 for d in wanted):
        raise InputError(f"a shape has no negative dimension: {wanted}")
    check_bytes(math.prod(wanted) * dtype.numpy.itemsize, f"a tensor of shape {wanted}")
    if dtype.numpy.hasobject:
        return np.full(wanted, b"" if dtype is DType.STRING else None, object)
    return np.zeros(wanted, dtype.numpy)


def _checked(handle: int) -> int:
    if type(handle) is not int or handle < NULL_BUFFER_HANDLE:
        raise InputError(f"a buffer handle is a whole number, 0 or more, not {handle!r}")
    return handle
