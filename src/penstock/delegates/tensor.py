"""A tensor as delegates see it: type, shape, memory, and the buffer it may lie in. Experimental
until 1.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.ir import DType, NDArray, Quantization, Shape

if TYPE_CHECKING:
    from penstock.delegates.tensors import Tensors


class DelegateTensor:
    """One tensor of the graph, always as it is now: it may be kept from one call to the next."""

    __slots__ = ("_tensors", "index")

    def __init__(self, tensors: Tensors, index: int) -> None:
        self._tensors = tensors
        self.index = index

    @property
    def name(self) -> str:
        """The file's name of it."""
        return self._tensors.name(self.index)

    @property
    def dtype(self) -> DType:
        """The element type; equal to NumPy's of the same name."""
        return self._tensors.dtype(self.index)

    @property
    def shape(self) -> Shape:
        """The dimensions; while nothing is computed, None in the place of one that is known only at
        run time, and None for an unknown rank.
        """
        return self._tensors.shape(self.index)

    @property
    def quantization(self) -> Quantization | None:
        """How stored values stand for real ones."""
        return self._tensors.quantization(self.index)

    @property
    def is_constant(self) -> bool:
        """Whether the file has its value."""
        return self._tensors.is_constant(self.index)

    @property
    def is_variable(self) -> bool:
        """Whether it keeps its value from run to run; a kernel that reads it changes it in place."""
        return self._tensors.is_variable(self.index)

    @property
    def data(self) -> NDArray:
        """Its memory as an array of `dtype` and `shape`, first brought up to date where it is
        stale.

        Writable where the kernel under way writes the tensor, read-only otherwise. Packed types
        have one element a byte, strings are an array of bytes objects. Constants always have data;
        every other tensor from the run on, and what the graph computes for nobody else never.
        Raises `StateError` where there is none.
        """
        return self._tensors.data(self.index)

    @property
    def buffer_handle(self) -> int:
        """The buffer it lies in, NULL_BUFFER_HANDLE for none. A kernel may set that of a tensor
        which is its delegate's: the buffer that it replaces is freed
        (`Delegate.free_buffer_handle`) when the kernel returns, unless a tensor lies in it then.
        """
        return self._tensors.handle(self.index)

    @buffer_handle.setter
    def buffer_handle(self, handle: int) -> None:
        self._tensors.set_handle(self.index, handle)

    @property
    def data_is_stale(self) -> bool:
        """Whether only the buffer has the present value. A kernel sets it for an output that it
        leaves in its buffer.
        """
        return self._tensors.is_stale(self.index)

    @data_is_stale.setter
    def data_is_stale(self, stale: bool) -> None:
        self._tensors.set_stale(self.index, stale)

    def __repr__(self) -> str:
        return f"<DelegateTensor {self.index}: {self.name!r}, {self.dtype.value} {self.shape}>"
