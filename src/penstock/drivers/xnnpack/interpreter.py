"""LiteRT interpreters of one file. Each is used by one run at a time."""

# ruff: noqa: SLF001  # the interpreter's own views and its invoke without a check of each reference
# to them

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np

from penstock.drivers.xnnpack.engine import forked_away, last_line, make_interpreter
from penstock.drivers.xnnpack.part import Part
from penstock.drivers.xnnpack.state_copies import ALIGNMENT, AdjacentTensors
from penstock.errors import GeneralFailure, ResourceExhaustedTransient
from penstock.ir import NDArray

DEFAULT_THREADS: Final = 1
"""LiteRT's own default."""


class File(msgspec.Struct, frozen=True):
    """The file of *part*, *content*, for *threads* of LiteRT. *static*: its tensors never move."""

    part: Part
    content: bytes
    threads: int
    static: bool

    def open(self) -> Runner:
        """A new interpreter of the file. Raises `GeneralFailure` with LiteRT's message."""
        return StaticRunner(self) if self.static else Runner(self)


class Runner:
    """An interpreter whose tensors may move: each is looked up when it is written or read."""

    inputs: Sequence[NDArray] = ()
    """Views of the tensors of `Part.all_inputs`; empty if tensors may move."""
    outputs: Sequence[NDArray] = ()
    """Views of the tensors of `Part.all_outputs`; empty if tensors may move."""
    state_tensors: tuple[AdjacentTensors, AdjacentTensors] | None = None
    """The tensors of a state among `inputs` and `outputs`; set by `StateCopies`."""
    invoke: Callable[[], object]
    """Runs LiteRT's interpreter."""

    def __init__(self, file: File) -> None:
        part = file.part
        self.part = part
        interpreter = make_interpreter(file.content, part.kernels, file.threads)
        # LiteRT reads the file's bytes as long as the interpreter lives.
        self._content = file.content
        # LiteRT's own object: `Interpreter` refuses calls while a view of a tensor exists.
        self._wrapper: Any = interpreter._interpreter
        forked_away.add(self)
        self.invoke = self._wrapper.Invoke
        self._inputs = [int(i) for i in self._wrapper.InputIndices()]
        self._outputs = [int(i) for i in self._wrapper.OutputIndices()]
        self._shapes: list[tuple[int, ...]] | None = None
        named = _tensors_by_name(self._wrapper, {s.name for s in part.states})
        self._states = [named[s.name] for s in part.states]

    def run(self, values: Mapping[int, NDArray]) -> dict[int, NDArray]:
        """The outputs and new states by operand index, as views for use until the next run."""
        part = self.part
        try:
            self._resize([values[i].shape for i in part.inputs])
            tensors = (*self._inputs, *self._states)
            for tensor, index in zip(tensors, part.all_inputs, strict=True):
                self._write(tensor, values[index])
            self.invoke()
            tensors = (*self._outputs, *self._states)
            pairs = zip(part.all_outputs, tensors, strict=True)
            found = {index: self._read(tensor) for index, tensor in pairs}
        except MemoryError as error:
            raise ResourceExhaustedTransient("LiteRT found no memory for its tensors") from error
        except (RuntimeError, ValueError) as error:
            raise execution_failure(error) from error
        return found

    def _resize(self, shapes: list[tuple[int, ...]]) -> None:
        if shapes == self._shapes:
            return
        # If resizing fails, the interpreter has no valid shapes.
        self._shapes = None
        for tensor, shape in zip(self._inputs, shapes, strict=True):
            self._wrapper.ResizeInputTensor(tensor, np.array(shape, np.int32), False, 0)
        self._wrapper.AllocateTensors()
        self._shapes = shapes

    def _write(self, tensor: int, value: NDArray) -> None:
        if not value.ndim:
            # LiteRT provides no view of a scalar.
            self._wrapper.SetTensor(tensor, value)
        elif value.size:
            np.copyto(self._wrapper.tensor(self._wrapper, tensor, 0), value)

    def _read(self, tensor: int) -> NDArray:
        shape = tuple(int(d) for d in self._wrapper.TensorSize(tensor, 0))
        if 0 in shape:
            return np.empty(shape, self._wrapper.TensorType(tensor, 0))
        return np.asarray(self._wrapper.tensor(self._wrapper, tensor, 0))


class StaticRunner(Runner):
    """An interpreter whose tensors never move."""

    def __init__(self, file: File) -> None:
        super().__init__(file)
        wrapper = self._wrapper
        try:
            wrapper.AllocateTensors()
            # LiteRT provides no view of a scalar, so scalars get memory here.
            tensors = (*self._inputs, *self._outputs, *self._states)
            bare = [t for t in tensors if not len(wrapper.TensorSize(t, 0))]
            scalars = scalar_places({t: np.dtype(wrapper.TensorType(t, 0)) for t in bare})
            places = {
                t: scalars[t] if t in scalars else wrapper.tensor(wrapper, t, 0) for t in tensors
            }
        except (RuntimeError, ValueError, MemoryError) as error:
            raise GeneralFailure(f"LiteRT did not prepare the model: {last_line(error)}") from error
        self.inputs = [places[t] for t in (*self._inputs, *self._states)]
        self.outputs = [places[t] for t in (*self._outputs, *self._states)]
        if scalars:
            put = [(t, scalars[t]) for t in (*self._inputs, *self._states) if t in scalars]
            fetched = [(t, scalars[t]) for t in (*self._outputs, *self._states) if t in scalars]
            # A bound method would make a reference cycle, which only the garbage collector frees.
            self.invoke = partial(_invoke_with_scalars, wrapper, put, fetched)
        self._all_inputs = self.part.all_inputs
        self._found: dict[int, NDArray] = dict(
            zip(self.part.all_outputs, self.outputs, strict=True)
        )

    def run(self, values: Mapping[int, NDArray]) -> dict[int, NDArray]:
        for view, index in zip(self.inputs, self._all_inputs, strict=True):
            view[...] = values[index]
        try:
            self.invoke()
        except (RuntimeError, ValueError) as error:
            raise execution_failure(error) from error
        return self._found


def _invoke_with_scalars(
    wrapper: Any, put: Sequence[tuple[int, NDArray]], fetched: Sequence[tuple[int, NDArray]]
) -> None:
    for tensor, place in put:
        wrapper.SetTensor(tensor, place)
    wrapper.Invoke()
    for tensor, place in fetched:
        place[...] = wrapper.GetTensor(tensor, 0)


def scalar_places(dtypes: Mapping[int, np.dtype[np.generic]]) -> dict[int, NDArray]:
    """Memory for scalars, by the same keys, aligned and padded as LiteRT's own tensors are."""
    content = np.zeros((len(dtypes) + 1) * ALIGNMENT, np.uint8)
    begin = -content.ctypes.data % ALIGNMENT
    starts = range(begin, content.nbytes, ALIGNMENT)
    return {
        key: content[at : at + dtype.itemsize].view(dtype).reshape(())
        for (key, dtype), at in zip(dtypes.items(), starts, strict=False)
    }


def execution_failure(error: Exception) -> GeneralFailure:
    """The error for an exception that LiteRT raised during a run."""
    return GeneralFailure(f"LiteRT did not execute the model: {last_line(error)}")


def _tensors_by_name(wrapper: Any, names: set[str]) -> dict[str, int]:
    if not names:
        return {}
    count = int(wrapper.NumTensors(0))
    found = {wrapper.TensorName(index, 0): index for index in range(count)}
    return {name: found[name] for name in names}
