"""Programs and plans of memory as text, for people: equal programs have equal texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock.compiler.expression import Expression, Number
from penstock.compiler.memory import Plan, nbytes
from penstock.compiler.program import Access, Kernel, Position, Program
from penstock.compiler.rewriting import Uses
from penstock.compiler.routine import OWN, Assign, Block, If, Load, Store, While
from penstock.ir import DType, Model

INFIX: Final = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "less": "<", "less_equal": "<=",
    "equal": "==", "and": "&", "or": "|", "xor": "^", "shift_left": "<<", "shift_right": ">>",
}  # fmt: skip
"""Scalar operations that are written between their operands."""

INNER: Final = "    "
"""One level of indentation."""


def operation_names(model: Model) -> Callable[[int], str]:
    """What prints the operation of an index: its number, type and name in *model*."""
    entry = model.entry
    return lambda i: f"operation {i} ({entry.operations[i].key}, {entry.operation_name(i)!r})"


def show(
    program: Program,
    operation: Callable[[int], str] = "operation {}".format,
    templates: Sequence[str] = (),
) -> str:
    """*program* as text, kernel by kernel. *operation* prints the operation of an index, and
    *templates* has the name of each kernel's template.
    """
    lines = list(_ports(program))
    for index, kernel in enumerate(program.kernels):
        template = templates[index] if templates else ""
        lines += ["", *_kernel(program, index, kernel, operation, template)]
    return "\n".join(lines) + "\n"


def show_plan(plan: Plan) -> str:
    """The place of each tensor in the arena, and the kernels between which it is kept there."""
    program, uses = plan.program, Uses(plan.program)
    lines = [f"arena of {plan.size} bytes"]
    rows = sorted((offset, uses.writers[t][0], t) for t, offset in plan.offsets.items())
    for offset, first, tensor in rows:
        last = max([*uses.writers[tensor], *uses.readers[tensor]])
        end = offset + nbytes(program, tensor)
        lines.append(
            f"{offset:>9} to {end:>9}  kernels {first} to {last}  {_declared(program, tensor)}"
        )
    return "\n".join(lines) + "\n"


def _ports(program: Program) -> Iterator[str]:
    kinds = (("input", program.inputs), ("output", program.results))
    for kind, tensors in kinds:
        for tensor in tensors:
            root = program.root(tensor)
            same = f" = {_name(program, root)}" if root != tensor else ""
            yield f"{kind} {_declared(program, tensor)}{same}"
    for flag, message in zip(program.flags, program.failures, strict=True):
        yield f"flag {_name(program, flag)}: the run fails: {message}"
    used = {t for kernel in program.kernels for t in (*kernel.tensors_read, kernel.write.tensor)}
    for tensor in sorted(used & program.constants.keys()):
        yield f"constant {_declared(program, tensor)}"
    for tensor in sorted(used & program.aliases.keys()):
        yield f"alias {_declared(program, tensor)} = {_name(program, program.root(tensor))}"


def _kernel(
    program: Program, index: int, kernel: Kernel, operation: Callable[[int], str], template: str
) -> Iterator[str]:
    yield f"kernel {index}: {kernel.name}" + (f", by template {template}" if template else "")
    for origin in dict.fromkeys(kernel.origin):
        yield f"{INNER}of {operation(origin)}"
    yield f"{INNER}writes {_declared(program, kernel.write.tensor)}"
    if kernel.border is not None:
        border = kernel.border
        ends = zip(border.before, border.behind, strict=True)
        around = ", ".join(f"{before} + {behind}" for before, behind in ends)
        yield f"{INNER}and {_number(border.value)} in its border of [{around}]"
    pad = INNER
    if kernel.routine is not None:
        yield from (f"{pad}{line}" for line in _block(program, kernel, kernel.routine.body))
        return
    if kernel.loops:
        yield f"{pad}for {_loops(kernel.loops, 0)}:"
        pad += INNER
    inner = pad
    if kernel.reduced:
        inside = _loops(kernel.reduced, len(kernel.loops))
        order = {"any": "", "ordered": ", in order", "fused": ", fused, from e0"}[kernel.order]
        yield f"{pad}{kernel.combine} as {kernel.sums.value}{order} over {inside}:"
        inner += INNER
    names = []
    for number, access in enumerate(kernel.reads):
        names.append(f"x{number}")
        yield f"{inner}{names[-1]} = {_read(program, access)}"
    lines, result = _steps(program, kernel.body, names, "v")
    yield from (f"{inner}{line}" for line in lines)
    if kernel.reduced:
        yield f"{inner}{kernel.combine} {result}"
        result = kernel.combine
    given = [result]
    for number, access in enumerate(kernel.extras):
        given.append(f"e{number}")
        yield f"{pad}{given[-1]} = {_read(program, access)}"
    lines, result = _steps(program, kernel.finish, given, "w")
    yield from (f"{pad}{line}" for line in lines)
    yield f"{pad}{_element(program, kernel.write)} = {result}"


def _block(program: Program, kernel: Kernel, block: Block) -> Iterator[str]:
    """The statements of a routine. Its variables are called v, with their number."""
    for statement in block:
        match statement:
            case Assign(variable, value, arguments):
                inner = f"v{variable}_"
                lines, result = _steps(program, value, [f"v{a}" for a in arguments], inner)
                if lines and lines[-1].startswith(f"{result} = "):
                    result = lines.pop().removeprefix(f"{result} = ")
                yield from lines
                yield f"v{variable} = {result}"
            case Load(variable, source, index):
                tensor = kernel.write.tensor if source == OWN else kernel.tensors_read[source]
                yield f"v{variable} = {_name(program, tensor)}[v{index}]"
            case Store(index, variable):
                yield f"{_name(program, kernel.write.tensor)}[v{index}] = v{variable}"
            case While(before, condition, body):
                yield "loop:"
                yield from (f"{INNER}{line}" for line in _block(program, kernel, before))
                yield f"{INNER}leave unless v{condition}"
                yield from (f"{INNER}{line}" for line in _block(program, kernel, body))
            case If(condition, body):
                yield f"if v{condition}:"
                yield from (f"{INNER}{line}" for line in _block(program, kernel, body))


def _loops(sizes: Sequence[int], first: int) -> str:
    return ", ".join(f"i{first + k} < {size}" for k, size in enumerate(sizes))


def _steps(
    program: Program, expression: Expression, given: Sequence[str], letter: str
) -> tuple[list[str], str]:
    """A line for each step but constants, which stand where they are used, and the result."""
    names, lines = list(given), list[str]()
    for step in expression.steps:
        if step.operation == "constant":
            names.append("?" if step.value is None else _number(step.value))
            continue
        values = [names[a] for a in step.arguments]
        if step.operation in INFIX:
            text = f"{values[0]} {INFIX[step.operation]} {values[1]}"
        elif step.operation == "lookup":
            text = f"{_name(program, int(step.value or 0))}[{values[0]}]"
        elif step.operation == "cast":
            text = f"{step.dtype.value}({values[0]})"
        else:
            text = f"{step.operation}({', '.join(values)})"
        names.append(f"{letter}{len(lines)}")
        lines.append(f"{names[-1]} = {text}")
    return lines, names[expression.result]


def _number(value: Number) -> str:
    return repr(value)


def _read(program: Program, access: Access) -> str:
    outside = "" if access.fill is None else f", or {_number(access.fill)} outside"
    return _element(program, access) + outside


def _element(program: Program, access: Access) -> str:
    places = ", ".join(_position(program, position) for position in access.axes)
    return f"{_name(program, access.tensor)}[{places}]"


def _position(program: Program, position: Position) -> str:
    terms = [f"i{loop}" if step == 1 else f"{step} * i{loop}" for loop, step in position.steps]
    if position.offset or not terms:
        terms.append(str(position.offset))
    text = " + ".join(terms).replace("+ -", "- ")
    return text if position.through is None else f"{_name(program, position.through)}[{text}]"


def _name(program: Program, tensor: int) -> str:
    """The number behind c for a constant, t for another tensor."""
    return f"{'c' if program.root(tensor) in program.constants else 't'}{tensor}"


def _declared(program: Program, tensor: int) -> str:
    value = program.tensors[tensor]
    dtype: DType = value.dtype
    name = f" {value.name!r}" if value.name else ""
    return f"{_name(program, tensor)}: {dtype.value} {list(value.shape)}{name}"
