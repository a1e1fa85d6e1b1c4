"""The memory of one execution: inputs laid out one after the other, and room for the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.closing import Closing
from penstock.errors import PenstockError
from penstock.hal import ExecutionResult, HostMemory, PoolArgument, Request, RequestArgument
from penstock.ir import DataLocation, Model, NDArray
from penstock.ir.types import static_shape
from penstock.memory import MemoryPool

ALIGNMENT: Final = 64
UNWRITTEN: Final = 0x5A
"""What outputs are filled with: a device that writes nothing shall not pass for one that writes
zeros.
"""


class Layout(Closing):
    """The arguments of one execution of *model*, in memory of the caller or in one shared pool.

    *room* has the bytes for each output whose shape *model* does not tell; *alignment*, of each
    argument, asks for a pool. Closing frees the pool.
    """

    def __init__(
        self, model: Model, inputs: Sequence[NDArray], room: Sequence[int], alignment: int | None
    ) -> None:
        self._operands = [model.entry.operands[i] for i in model.entry.outputs]
        self._shapes = [static_shape(o.shape) for o in self._operands]
        given = [np.ascontiguousarray(a) for a in inputs]
        sizes = [
            spare if shape is None else _nbytes(shape, operand.dtype.numpy)
            for operand, shape, spare in zip(self._operands, self._shapes, room, strict=True)
        ]
        self._lengths = [a.nbytes for a in given] + sizes
        step = max(ALIGNMENT, alignment or 0)
        self._offsets = [0]
        for length in self._lengths:
            self._offsets.append(self._offsets[-1] + -(-length // step) * step)
        total = self._offsets.pop()
        self._pool = MemoryPool.anonymous(max(total, step)) if alignment is not None else None
        memory = (
            np.empty(total, np.uint8) if self._pool is None else self._pool.view(np.uint8, total)
        )
        self._places = [
            memory[o : o + n] for o, n in zip(self._offsets, self._lengths, strict=True)
        ]
        for place, array in zip(self._places, given, strict=False):
            place[:] = array.reshape(-1).view(np.uint8)
        self._outputs = self._places[len(given) :]
        for place in self._outputs:
            place[:] = UNWRITTEN
        kinds = [(a.dtype, a.shape) for a in given]
        wanted = [(o.dtype.numpy, s) for o, s in zip(self._operands, self._shapes, strict=True)]
        arguments = [self._argument(at, *kind) for at, kind in enumerate([*kinds, *wanted])]
        self.request = Request(
            tuple(arguments[: len(given)]),
            tuple(arguments[len(given) :]),
            () if self._pool is None else (self._pool.memory,),
        )

    def _argument(
        self, at: int, dtype: np.dtype[np.generic], shape: tuple[int, ...] | None
    ) -> RequestArgument:
        place = self._places[at]
        if self._pool is not None:
            location = DataLocation(0, self._offsets[at], self._lengths[at])
            output = at >= len(self._places) - len(self._outputs)
            return PoolArgument(location, () if output or shape is None else shape)
        return HostMemory(place if shape is None else place.view(dtype).reshape(shape))

    def results(self, result: ExecutionResult) -> list[NDArray]:
        """Copies of the outputs, in the shapes that the device reports or the model tells."""
        found: list[NDArray] = []
        for at, (operand, place) in enumerate(zip(self._operands, self._outputs, strict=True)):
            reported = result.output_shapes[at].dimensions if result.output_shapes else None
            shape = self._shapes[at] if reported is None else reported
            if shape is None:
                raise PenstockError(f"the shape of output {at} was unknown and is not reported")
            nbytes = _nbytes(shape, operand.dtype.numpy)
            if nbytes > len(place):
                raise PenstockError(f"output {at} is reported larger than its memory: {shape}")
            found.append(place[:nbytes].copy().view(operand.dtype.numpy).reshape(shape))
        return found

    def close(self) -> None:
        """Frees the pool."""
        if self._pool is not None:
            self._pool.close()


def _nbytes(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
