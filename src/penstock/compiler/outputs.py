"""Gives each output of a program memory of its own, which a kernel writes."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.compiler.expression import identity
from penstock.compiler.program import Access, Kernel, Program, along


def with_own_outputs(program: Program) -> Program:
    """*program*, in which no output has the elements of an input, of a constant or of an earlier
    output: such an output becomes a tensor that a kernel copies them to.

    The copies come after every pass: one of them would compute the copy of a constant itself.
    """
    taken = set(program.constants) | {program.root(t) for t in program.inputs}
    tensors, kernels, outputs = list(program.tensors), list(program.kernels), []
    for tensor in program.outputs:
        root, value = program.root(tensor), tensors[tensor]
        if root not in taken:
            taken.add(root)
            outputs.append(tensor)
            continue
        tensors.append(value)
        outputs.append(len(tensors) - 1)
        axes, copied = along(*range(len(value.shape))), identity(value.dtype)
        source, target = Access(tensor, axes), Access(outputs[-1], axes)
        kernels.append(
            Kernel("copy", value.shape, (source,), copied, copied, target, sums=value.dtype)
        )
    return replace(program, tensors=tuple(tensors), kernels=tuple(kernels), outputs=tuple(outputs))
