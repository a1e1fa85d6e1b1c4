"""Code for routines: statements as they are, on single values.

Variables are values of the function, joined where control flow meets.
"""

from __future__ import annotations

import math
from typing import Final

from penstock.compiler.program import Kernel, Program
from penstock.compiler.routine import Assign, Block, If, Load, Routine, Store, While, assigned
from penstock.drivers.llvm.emit.assembler import SCALARS, Function, Reg
from penstock.drivers.llvm.emit.flat import pointers_of
from penstock.drivers.llvm.emit.scalars import literal, register_type
from penstock.drivers.llvm.emit.writer import Writer
from penstock.drivers.llvm.isa import Instructions, Isa
from penstock.errors import GeneralFailure
from penstock.ir import DType, NDArray

NAME: Final = "routine"


def match(program: Program, kernel: Kernel, isa: Isa) -> Statements | None:
    """The template of a kernel that runs a routine."""
    if kernel.routine is None:
        return None
    return Statements(program, kernel, kernel.routine, isa)


class Statements:
    """A routine: the template of kernels that run one. One thread executes it."""

    name = NAME
    units = 1

    def __init__(self, program: Program, kernel: Kernel, routine: Routine, isa: Isa) -> None:
        self._program, self._routine, self._isa = program, routine, isa
        self._written = kernel.write.tensor
        self.tensors = tuple(pointers_of(program, kernel))

    @property
    def key(self) -> object:
        """Routines are one function where they read tensors of equal types and sizes."""
        routine, tensors = self._routine, self._program.tensors
        read = [
            (self.tensors.index(self._program.root(t)), tensors[t].dtype, tensors[t].shape)
            for t in (self._written, *routine.reads)
        ]
        return repr((routine.variables, routine.body)), tuple(read)

    def constants(self) -> tuple[NDArray, ...]:
        return ()

    def write(self, name: str) -> Function:
        function = Function(name, [f"t{i}" for i in range(len(self.tensors))])
        scalars = Writer(function, 1, Instructions(self._isa), _no_table)
        writing = _Code(self._program, self._routine, self._written, self.tensors, scalars)
        function.share(1, lambda _: writing.block(self._routine.body))
        return function


class _Code:
    """Writes statements. `values` has the value that each variable has at the place that is
    written.
    """

    def __init__(
        self, program: Program, routine: Routine, written: int, tensors: tuple[int, ...],
        scalars: Writer,
    ) -> None:  # fmt: skip
        self._program, self._written = program, written
        self._sources = [*routine.reads, written]
        self._places = {t: f"%t{i}" for i, t in enumerate(tensors)}
        self.scalars, self.f = scalars, scalars.function
        self.values = [Reg(literal(0, d), register_type(d)) for d in routine.variables]

    def block(self, block: Block) -> None:
        f, values = self.f, self.values
        for statement in block:
            match statement:
                case Assign(variable, value, arguments):
                    values[variable] = self.scalars.write(value, [values[a] for a in arguments])
                case Load(variable, source, index):
                    address, dtype = self._address(self._sources[source], values[index])
                    found = f.load(SCALARS[dtype], address)
                    values[variable] = self.scalars.loaded(found, dtype)
                case Store(index, variable):
                    address, dtype = self._address(self._written, values[index])
                    f.store(self.scalars.stored(values[variable], dtype), address)
                case If():
                    self._if(statement)
                case While():
                    self._while(statement)

    def _address(self, tensor: int, index: Reg) -> tuple[str, DType]:
        """The address of an element, within its tensor, and its type."""
        f, value = self.f, self._program.tensors[tensor]
        size = math.prod(value.shape)
        if not index.name.isdigit() or int(index.name) >= size:
            index = self.scalars.clamped(index, 0, size - 1, DType.INT32)
        place = f.value(f"sext {index} to i64", "i64").name
        address = f.at(
            self._places[self._program.root(tensor)], f.mul(place, value.dtype.numpy.itemsize)
        )
        return address, value.dtype

    def _if(self, statement: If) -> None:
        f, before, values = self.f, self.f.block, list(self.values)
        number = f.fresh("b").removeprefix("%")
        condition = self.values[statement.condition]
        f.line(f"br {condition}, label %T{number}, label %E{number}")
        f.label(f"T{number}")
        self.block(statement.body)
        inside = f.block
        f.line(f"br label %E{number}")
        f.label(f"E{number}")
        for variable in assigned(statement.body):
            old, new = values[variable], self.values[variable]
            text = f"phi {new.type} [{old.name}, %{before}], [{new.name}, %{inside}]"
            self.values[variable] = f.value(text, new.type)

    def _while(self, statement: While) -> None:
        f, before = self.f, self.f.block
        number = f.fresh("b").removeprefix("%")
        changed = assigned((*statement.before, *statement.body))
        entered = {v: self.values[v] for v in changed}
        f.line(f"br label %L{number}")
        f.label(f"L{number}")
        fill = f.later()
        for variable in changed:
            self.values[variable] = Reg(f"%{number}_{variable}", self.values[variable].type)
        self.block(statement.before)
        left = list(self.values)
        condition = self.values[statement.condition]
        f.line(f"br {condition}, label %B{number}, label %X{number}")
        f.label(f"B{number}")
        f.poll()
        self.block(statement.body)
        last, end = list(self.values), f.block
        f.line(f"br label %L{number}")
        fill(
            f"%{number}_{v} = phi {old.type} [{old.name}, %{before}], [{last[v].name}, %{end}]"
            for v, old in entered.items()
        )
        f.label(f"X{number}")
        self.values[:] = left


def _no_table(number: int) -> tuple[str, DType]:
    raise GeneralFailure(f"a routine looks up table {number}")


__all__ = ["Statements", "match"]
