"""One LiteRT interpreter of one segment, used by one run at a time."""

# ruff: noqa: SLF001  # the interpreter's own views and its invoke without a check of each reference to them

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock.drivers.xnnpack.engine import Kernels, make_interpreter, runners, told
from penstock.drivers.xnnpack.neighbours import ALIGNMENT, Neighbours
from penstock.drivers.xnnpack.segments import Segment
from penstock.errors import GeneralFailure, ResourceExhaustedTransient
from penstock.ir import NDArray


class File:
    """A segment as it is given to LiteRT: *content*, by *kernels*, with *threads*."""

    def __init__(self, segment: Segment, content: bytes, threads: int, *, steady: bool) -> None:
        self.segment, self.content, self.threads, self.steady = segment, content, threads, steady
        self.kernels: Kernels = segment.kernels

    def open(self) -> Runner:
        """A new interpreter of it. Raises `GeneralFailure` with LiteRT's words."""
        return SteadyRunner(self) if self.steady else Runner(self)


class Runner:
    """An interpreter whose tensors may move: each is looked for when it is written or read."""

    inputs: Sequence[NDArray] = ()
    """Where they stay, views of the tensors of `Segment.given` and `Segment.made`, and LiteRT's
    invoke.
    """
    outputs: Sequence[NDArray] = ()
    sides: tuple[Neighbours, Neighbours] | None = None
    """Those of `inputs` and of `outputs` that hold a state, once somebody has asked for them
    together.
    """
    invoke: Callable[[], object]

    def __init__(self, file: File) -> None:
        segment = file.segment
        self.segment = segment
        interpreter = make_interpreter(file.content, file.kernels, file.threads)
        # LiteRT reads the file's bytes as long as it lives.
        self._content = file.content
        # LiteRT's own object: `Interpreter` asks before each call whether somebody holds a view.
        self._wrapper: Any = interpreter._interpreter
        runners.add(self)
        self.invoke = self._wrapper.Invoke
        self._inputs = [int(i) for i in self._wrapper.InputIndices()]
        self._outputs = [int(i) for i in self._wrapper.OutputIndices()]
        self._shapes: list[tuple[int, ...]] | None = None
        named = _tensors_by_name(self._wrapper, {s.name for s in segment.states})
        self._states = [named[s.name] for s in segment.states]

    def run(self, values: Mapping[int, NDArray]) -> dict[int, NDArray]:
        """The outputs and new states by operand, as views that hold until the next run."""
        segment = self.segment
        try:
            self._resize([values[i].shape for i in segment.inputs])
            for tensor, index in zip(self._inputs, segment.inputs, strict=True):
                self._write(tensor, values[index])
            for tensor, state in zip(self._states, segment.states, strict=True):
                self._write(tensor, values[state.given])
            self.invoke()
            found = {
                index: self._read(tensor)
                for tensor, index in zip(self._outputs, segment.outputs, strict=True)
            }
            for tensor, state in zip(self._states, segment.states, strict=True):
                found[state.made] = self._read(tensor)
        except MemoryError as error:
            raise ResourceExhaustedTransient("LiteRT found no memory for its tensors") from error
        except (RuntimeError, ValueError) as error:
            raise failed(error) from error
        return found

    def _resize(self, shapes: list[tuple[int, ...]]) -> None:
        if shapes == self._shapes:
            return
        # Where this fails the interpreter is of no shape at all.
        self._shapes = None
        for tensor, shape in zip(self._inputs, shapes, strict=True):
            self._wrapper.ResizeInputTensor(tensor, np.array(shape, np.int32), False, 0)
        self._wrapper.AllocateTensors()
        self._shapes = shapes

    def _write(self, tensor: int, value: NDArray) -> None:
        if not value.ndim:
            # Of a scalar LiteRT gives no view.
            self._wrapper.SetTensor(tensor, value)
        elif value.size:
            np.copyto(self._wrapper.tensor(self._wrapper, tensor, 0), value)

    def _read(self, tensor: int) -> NDArray:
        shape = tuple(int(d) for d in self._wrapper.TensorSize(tensor, 0))
        if 0 in shape:
            return np.empty(shape, self._wrapper.TensorType(tensor, 0))
        return np.asarray(self._wrapper.tensor(self._wrapper, tensor, 0))


class SteadyRunner(Runner):
    """An interpreter whose tensors stay where they are."""

    def __init__(self, file: File) -> None:
        super().__init__(file)
        wrapper = self._wrapper
        try:
            wrapper.AllocateTensors()
            # Of a scalar LiteRT gives no view: it has a place here.
            scalars = scalar_places(
                {
                    t: np.dtype(wrapper.TensorType(t, 0))
                    for t in (*self._inputs, *self._outputs, *self._states)
                    if not len(wrapper.TensorSize(t, 0))
                }
            )
            places = {
                t: scalars[t] if t in scalars else wrapper.tensor(wrapper, t, 0)
                for t in (*self._inputs, *self._outputs, *self._states)
            }
        except (RuntimeError, ValueError, MemoryError) as error:
            raise GeneralFailure(f"LiteRT did not prepare the model: {told(error)}") from error
        self.inputs = [places[t] for t in (*self._inputs, *self._states)]
        self.outputs = [places[t] for t in (*self._outputs, *self._states)]
        if scalars:
            put = [(t, scalars[t]) for t in (*self._inputs, *self._states) if t in scalars]
            fetched = [(t, scalars[t]) for t in (*self._outputs, *self._states) if t in scalars]
            # Not of this object: it would be gone only with the next garbage collection.
            self.invoke = partial(_invoke_with_scalars, wrapper, put, fetched)
        self._given = self.segment.given
        self._found: dict[int, NDArray] = dict(zip(self.segment.made, self.outputs, strict=True))

    def run(self, values: Mapping[int, NDArray]) -> dict[int, NDArray]:
        for view, index in zip(self.inputs, self._given, strict=True):
            view[...] = values[index]
        try:
            self.invoke()
        except (RuntimeError, ValueError) as error:
            raise failed(error) from error
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
    """A place for each, by the same key, which lies as LiteRT's own tensors do: where it begins and
    behind it.
    """
    content = np.zeros((len(dtypes) + 1) * ALIGNMENT, np.uint8)
    begin = -content.ctypes.data % ALIGNMENT
    starts = range(begin, content.nbytes, ALIGNMENT)
    return {
        key: content[at : at + dtype.itemsize].view(dtype).reshape(())
        for (key, dtype), at in zip(dtypes.items(), starts, strict=False)
    }


def failed(error: Exception) -> GeneralFailure:
    """LiteRT's refusal in the middle of a run."""
    return GeneralFailure(f"LiteRT did not execute the model: {told(error)}")


def _tensors_by_name(wrapper: Any, names: set[str]) -> dict[str, int]:
    if not names:
        return {}
    count = int(wrapper.NumTensors(0))
    found = {wrapper.TensorName(index, 0): index for index in range(count)}
    return {name: found[name] for name in names}
