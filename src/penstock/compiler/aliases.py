"""Removes aliases that have the shape of their tensor: kernels access the tensor itself, and can be
fused across it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from penstock.compiler.program import Access, Kernel, Program


def fold_aliases(program: Program) -> Program:
    """*program* without aliases of the same shape."""
    names = {alias: program.root(alias) for alias in program.aliases if _is_same(program, alias)}
    if not names:
        return program
    tensors = list(program.tensors)
    for alias, root in names.items():
        if not tensors[root].name:
            tensors[root] = replace(tensors[root], name=tensors[alias].name)
    aliases = {a: names.get(s, s) for a, s in program.aliases.items() if a not in names}
    return replace(
        program,
        tensors=tuple(tensors),
        kernels=tuple(_renamed(kernel, names) for kernel in program.kernels),
        outputs=tuple(names.get(t, t) for t in program.outputs),
        aliases=aliases,
    )


def _is_same(program: Program, alias: int) -> bool:
    """Whether *alias* differs from its tensor in nothing but its name."""
    one, other = program.tensors[alias], program.tensors[program.root(alias)]
    return (one.shape, one.is_complex) == (other.shape, other.is_complex)


def _renamed(kernel: Kernel, names: Mapping[int, int]) -> Kernel:
    routine = kernel.routine
    if routine is not None:
        routine = replace(routine, reads=tuple(names.get(t, t) for t in routine.reads))
    return replace(
        kernel,
        reads=tuple(_moved(a, names) for a in kernel.reads),
        extras=tuple(_moved(a, names) for a in kernel.extras),
        write=_moved(kernel.write, names),
        routine=routine,
    )


def _moved(access: Access, names: Mapping[int, int]) -> Access:
    axes = tuple(
        p if p.through is None else replace(p, through=names.get(p.through, p.through))
        for p in access.axes
    )
    return replace(access, tensor=names.get(access.tensor, access.tensor), axes=axes)
