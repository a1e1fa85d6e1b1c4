"""`BrokenProgram`: what a check raises, with the kernel and the tensor by name."""

from __future__ import annotations

from penstock.compiler.program import Program
from penstock.errors import GeneralFailure


class BrokenProgram(GeneralFailure):
    """A program or a plan of its memory breaks an invariant: the pass that made it has a defect."""


def kernel_name(program: Program, index: int) -> str:
    """Kernel *index* in the words of an error: its number, name and operations."""
    kernel = program.kernels[index]
    made = f", of operation {', '.join(map(str, kernel.origin))}" if kernel.origin else ""
    return f"kernel {index} ({kernel.name}{made})"


def tensor_name(program: Program, index: int) -> str:
    """Tensor *index* in the words of an error: its number, name, type and shape."""
    tensor = program.tensors[index]
    name = f" {tensor.name!r}" if tensor.name else ""
    return f"tensor {index}{name} ({tensor.dtype.value} {list(tensor.shape)})"
