"""Generates the code of a planned program: a function a kernel, and `run`, which calls them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from penstock.compiler.memory import Plan, nbytes
from penstock.compiler.program import Border, Kernel, Program
from penstock.drivers.llvm.emit import (
    amx,
    borders,
    dense,
    depthwise,
    fault,
    peak,
    routine,
    team,
    transpose,
)
from penstock.drivers.llvm.emit.assembler import Function, Index, Reg, module
from penstock.drivers.llvm.emit.constants import Constants
from penstock.drivers.llvm.emit.cost import LEAST_PROGRAM, LEAST_SHARED, nanoseconds, products
from penstock.drivers.llvm.emit.kernels import Written, write_kernels
from penstock.drivers.llvm.emit.nest import Nest
from penstock.drivers.llvm.emit.rebase import rebased
from penstock.drivers.llvm.emit.team import ALONE, Sleeping
from penstock.drivers.llvm.emit.template import Template
from penstock.drivers.llvm.frame import SLOT_BYTES, Word
from penstock.drivers.llvm.isa import Isa
from penstock.interrupts import polled
from penstock.ir import NDArray

BITS: Final = 64

NO_TABLES: Final = '"no-jump-tables"="true"'
"""A switch as comparisons: tables of addresses would be data that is relocated."""


class Generated(Struct, frozen=True, eq=False):
    """A module's text, the bytes of its constants, and the size of its arena.

    *templates* says by which template each kernel is computed, *called* by which function.
    *estimate_ns* is about how long a run takes on one thread. *shared* says whether threads share
    it, and *images* whether it runs for as many images as its frame says.
    """

    text: str
    constants: memoryview
    arena: int
    functions: int
    templates: tuple[str, ...]
    called: tuple[str, ...] = ()
    estimate_ns: int = 0
    shared: bool = False
    images: bool = False


def template_of(program: Program, kernel: Kernel, isa: Isa) -> Template:
    """The template that computes *kernel*."""
    for family in (routine, amx, dense, depthwise, transpose):
        matched: Template | None = family.match(program, kernel, isa)
        if matched is not None:
            return matched
    return Nest(program, kernel, isa)


class Module:
    """Collects the functions, constants and calls of one module.

    `share(frame, index, threads)` is what one of the *threads* of a run executes. Each kernel that
    is worth it is a group of its own, which threads share; others between them form groups that one
    thread executes.
    """

    def __init__(
        self, plan: Plan, isa: Isa, *, images: bool = False, system: Sleeping | None = None
    ) -> None:
        self.plan, self.program, self.isa = plan, plan.program, isa
        self._written: list[Written] = []
        self._borders: dict[object, Function] = {}
        self.constants = Constants()
        self.estimate_ns = 0.0
        self.slots = 0
        self.called: list[str] = []
        """The name of each kernel's function."""
        self._images, self._system = images, system
        ports = [*self.program.inputs, *self.program.outputs]
        self._ports = {self.program.root(t): k for k, t in reversed(list(enumerate(ports)))}
        numbers = "index", "threads"
        self.entry = Function(
            "share", ["frame"], kernel=False, numbers=numbers, attributes=NO_TABLES
        )
        self._words = {
            word: self._word(word, "ptr")
            for word in (Word.PORTS, Word.ARENA, Word.CONSTANTS, Word.STOP, Word.TIMES)
        }
        self._image: Index = 0
        self._head = self._word(Word.HEAD, "i64")
        self._is_pointer = self.entry.value(f"icmp eq i64 {self._head}, 0", "i1").name
        self._timed = self._first_timed = self._counted = ""

    def generate(self) -> tuple[str, ...]:
        """Writes every kernel and its call. Returns the names of their templates."""
        program = self.program
        relative = [rebased(program, k) for k in program.kernels]
        kernels, moves = [k for k, _ in relative], [m for _, m in relative]
        found = [template_of(program, k, self.isa) for k in polled(kernels)]
        times = [
            nanoseconds(program, k, t.name, self.isa)
            for k, t in zip(program.kernels, found, strict=True)
        ]
        self.estimate_ns = sum(times)
        worth = [t.units > 1 and ns >= LEAST_SHARED for t, ns in zip(found, times, strict=True)]
        gain = sum(ns for ns, good in zip(times, worth, strict=True) if good)
        self.shared = self._system is not None and gain >= LEAST_PROGRAM
        self._written = write_kernels(program, kernels, found)
        self._begin()

        groups = _groups(worth) if self.shared else [range(len(found))]
        self.slots = len(groups)

        def execute(group: range) -> None:
            for number in group:
                self._mark(number)
                self._kernel(number, kernels[number], found[number], moves[number])

        def program_once(image: Index, _: list[Reg]) -> list[Reg]:
            self._image = image
            bodies = [partial(execute, group) for group in groups]
            if self.shared:
                self._claimed(bodies, [worth[group[0]] for group in groups])
            else:
                for body in bodies:
                    body()
            self._counted = self._timed = self._first_timed
            self._mark(len(found))
            return []

        images = self._word(Word.IMAGES, "i64") if self._images else 1
        self.entry.loop(0, images, 1, program_once)
        return tuple(template.name for template in found)

    def _word(self, word: int, type_: str) -> str:
        place = self.entry.at("%frame", 8 * word)
        return self.entry.value(f"load {type_}, ptr {place}, align 8", type_).name

    def _begin(self) -> None:
        """Loads what all groups need."""
        f = self.entry
        self._range = self._word(Word.LOW, "i64"), self._word(Word.HIGH, "i64")
        self._share = self._range
        first = f.value("icmp eq i64 %index, 0", "i1").name
        if self.shared:
            self._team, self._slots = (self._word(w, "ptr") for w in (Word.TEAM, Word.SLOTS))
            self._several = f.value("icmp ugt i64 %threads, 1", "i1").name
        own, other = f.at("%frame", 8 * Word.KERNEL), f.at("%frame", 8 * Word.ELSEWHERE)
        self._marker = f.value(f"select i1 {first}, ptr {own}, ptr {other}", "ptr").name
        self._timed = f.value(f"icmp ne ptr {self._words[Word.TIMES]}, null", "i1").name
        self._first_timed = f.value(f"and i1 {first}, {self._timed}", "i1").name
        self._counted = self._timed

    def _claimed(self, groups: Sequence[Callable[[], None]], worth: Sequence[bool]) -> None:
        """Executes each group if this thread claims it, or a share of it where it is *worth* it,
        until all is finished. What they have in common is written once.
        """
        f, before = self.entry, self.entry.block
        first = f.mul(self._image, self.slots)
        f.line("br label %group")
        f.label("group")
        f.line(f"%place = phi i64 [0, %{before}], [%following, %next]")
        pointer = f.at(self._slots, f.mul(f.add(first, "%place"), SLOT_BYTES))
        is_shared = self._bit("%place", worth)
        index, threads = (
            f.value(f"select {is_shared}, i64 {many}, i64 {one}", "i64").name
            for many, one in (("%index", 0), ("%threads", 1))
        )
        f.line(f"br i1 {self._several}, label %claim, label %body")
        f.label("claim")
        claimed = f.value(f"call i64 @claim(ptr {pointer}, i64 {index}, i64 {threads})", "i64")
        none = f.value(f"icmp slt {claimed}, 0", "i1")
        f.line(f"br {none}, label %rest, label %body")
        f.label("body")
        number = f.value(f"phi i64 [0, %group], [{claimed.name}, %claim]", "i64").name
        (low, high), ends = self._range, []
        size = f.value(f"sub i64 {high}, {low}", "i64").name
        for bound in (number, f.value(f"add i64 {number}, 1", "i64").name):
            part = f.value(f"mul i64 {size}, {bound}", "i64").name
            part = f.value(f"udiv i64 {part}, {threads}", "i64").name
            ends.append(f.value(f"add i64 {low}, {part}", "i64").name)
        self._share = ends[0], ends[1]
        is_first = f.value(f"icmp eq i64 {number}, 0", "i1").name
        self._counted = f.value(f"and i1 {is_first}, {self._timed}", "i1").name
        last = len(groups) - 1
        cases = " ".join(f"i64 {place}, label %g{place}" for place in range(last))
        f.line(f"switch i64 %place, label %g{last} [{cases}]")
        for place, execute in enumerate(groups):
            f.label(f"g{place}")
            execute()
            f.line("br label %ran")
        given = f"ptr %frame, ptr {self._team}, ptr {pointer}, i64 {threads}"
        f.label("ran")
        f.line(f"br i1 {self._several}, label %finish, label %next")
        f.label("finish")
        f.line(f"call void @finish({given})")
        f.line("br label %claim")
        f.label("rest")
        f.line(f"call void @complete({given})")
        f.line("br label %next")
        f.label("next")
        f.line("%following = add nuw nsw i64 %place, 1")
        more = f.value(f"icmp ult i64 %following, {len(groups)}", "i1")
        f.line(f"br {more}, label %group, label %over")
        f.label("over")

    def _bit(self, place: str, bits: Sequence[bool]) -> Reg:
        """The one of *bits* at *place*: constants of code that faults may be anywhere."""
        f, word = self.entry, "0"
        for first in range(0, len(bits), BITS):
            some = sum(bit << at for at, bit in enumerate(bits[first : first + BITS]))
            later = f.value(f"icmp uge i64 {place}, {first}", "i1")
            word = f.value(f"select {later}, i64 {some}, i64 {word}", "i64").name
        within = f.value(f"and i64 {place}, {BITS - 1}", "i64").name
        return f.value(f"trunc i64 {f.value(f'lshr i64 {word}, {within}', 'i64').name} to i1", "i1")

    def _mark(self, number: int) -> None:
        """Stores that kernel *number* begins; the number of kernels: that the last one ended."""
        f, count = self.entry, len(self.program.kernels)
        times = self._words[Word.TIMES]

        def place() -> Index:
            return f.add(f.mul(self._image, count + 1), number)

        if self.shared and number < count:
            given = f"ptr {self._marker}, i64 {number}, i1 {self._counted}, ptr {times}"
            f.line(f"call void @mark({given}, i64 {place()})")
            return
        # Also behind the last kernel: a fault in the next run may come before this thread's mark.
        f.store(Reg(str(number), "i64"), self._marker, 8)
        f.when(self._counted, lambda: f.line(f"call void @stamp(ptr {times}, i64 {place()})"))

    def pointer(self, tensor: int) -> str:
        entry = self.entry
        if tensor in self.program.constants:
            place = self.constants.add(self.program.constants[tensor])
            return entry.at(self._words[Word.CONSTANTS], place)
        if tensor in self._ports:
            slot = entry.at(self._words[Word.PORTS], 8 * self._ports[tensor])
            port = entry.value(f"load ptr, ptr {slot}, align 8", "ptr").name
            inside = entry.value(f"getelementptr i8, ptr {port}, i64 {self._head}", "ptr").name
            chosen = f"select i1 {self._is_pointer}, ptr {slot}, ptr {inside}"
            holder = entry.value(chosen, "ptr").name
            port = entry.value(f"load ptr, ptr {holder}, align 8", "ptr").name
            return entry.at(port, entry.mul(self._image, nbytes(self.program, tensor)))
        return entry.at(self._words[Word.ARENA], self.plan.offsets[tensor])

    def _kernel(
        self, number: int, kernel: Kernel, template: Template, moved: Mapping[int, int]
    ) -> None:
        """Adds the call of *kernel*, whose tensors begin *moved* elements on."""
        pointers = [
            self.entry.at(
                self.pointer(t), moved.get(t, 0) * self.program.tensors[t].dtype.numpy.itemsize
            )
            for t in template.tensors
        ]
        function, table = self._written[number]
        pointers += [self._constant(array) for array in template.constants()]
        self.called.append(function.name)
        if kernel.border is not None:
            self._border(kernel.write.tensor, kernel.border)
        self._call(function, pointers, template.units, table)

    def _constant(self, array: NDArray) -> str:
        return self.entry.at(self._words[Word.CONSTANTS], self.constants.add(array))

    def _call(
        self, function: Function, pointers: list[str], units: int, table: NDArray | None
    ) -> None:
        entry = self.entry
        begin, end = (
            entry.value(f"lshr i64 {entry.mul(bound, units)}, 16", "i64").name
            for bound in self._share
        )
        given = [f"ptr {p}" for p in pointers]
        given += [f"i64 {begin}", f"i64 {end}", f"ptr {self._words[Word.STOP]}"]
        if table is not None:
            given.append(f"ptr {self._constant(table)}")
        entry.line(f"call void @{function.name}({', '.join(given)})")

    def _border(self, tensor: int, border: Border) -> None:
        """Writes a border: whoever executes the first share of the kernel."""
        value, entry = self.program.tensors[tensor], self.entry
        found = tuple(borders.pieces(value, border))
        if found not in self._borders:
            name = f"border{len(self._borders)}"
            self._borders[found] = borders.function(name, found, self.isa.width)
        name, pattern = self._borders[found].name, borders.pattern(value, border)

        def write() -> None:
            entry.line(f"call void @{name}(ptr {self.pointer(tensor)}, i64 {pattern})")

        if self.shared:
            entry.when(entry.value(f"icmp eq i64 {self._share[0]}, 0", "i1").name, write)
        else:
            write()

    def functions(self) -> list[Function]:
        """The functions that the kernels call."""
        return [*dict.fromkeys(f for f, _ in self._written), *self._borders.values()]

    def text(self) -> str:
        """The module."""
        others = [team.ticks(self.isa), fault.handler(self.isa.architecture)]
        system = self._system if self.shared else None
        others.append(ALONE if system is None else team.shared(self.isa, system, self.slots))
        functions = [*self.functions(), self.entry]
        for kind in peak.FUNCTIONS:
            if any(products(k) and k.sums.value == kind for k in self.program.kernels):
                function, entry = peak.loop(kind, self.isa)
                functions.append(function)
                others.append(entry)
        return module(functions, others)


def generate(
    plan: Plan, isa: Isa, *, images: bool = False, packed: Callable[[], None] | None = None
) -> Generated:
    """The code of *plan* for *isa*. `run(frame)` executes it (`penstock.drivers.llvm.frame`).

    With *images* the program treats axis 0 of all its inputs and outputs as separate images, and
    is for one of them; a run computes as many as its frame says. *packed* is called when weights
    were packed, before they are copied side by side.
    """
    made = Module(plan, isa, images=images, system=team.SLEEPING.get(sys.platform))
    templates = made.generate()
    if packed is not None:
        packed()
    return Generated(
        made.text(), made.constants.joined(), plan.size, len(made.functions()), templates,
        tuple(made.called), int(made.estimate_ns), made.shared, images,
    )  # fmt: skip


def _groups(worth: Sequence[bool]) -> list[range]:
    """Each kernel that is worth sharing, and the runs of others between them."""
    groups: list[range] = []
    for number, good in enumerate(worth):
        if groups and not good and not worth[groups[-1][0]]:
            groups[-1] = range(groups[-1].start, number + 1)
        else:
            groups.append(range(number, number + 1))
    return groups
