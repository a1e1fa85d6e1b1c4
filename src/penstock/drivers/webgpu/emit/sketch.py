"""What is kept of a compiled model so that its kernels of the template `tile` can be printed with
threads of other shapes: without the model, in another process too.
"""

# Annotations are objects here, not text, as in artefact.py.

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from penstock.compiler.expression import Expression, identity
from penstock.compiler.program import Access, Kernel, Program, Tensor
from penstock.drivers.webgpu.calls import ALIGNMENT, Binding, Call
from penstock.drivers.webgpu.emit.form import Form, Shape
from penstock.drivers.webgpu.emit.shader import Printed, Slot, divided
from penstock.drivers.webgpu.emit.sharing import array_of, shared
from penstock.drivers.webgpu.emit.tile import tile
from penstock.errors import GeneralFailure
from penstock.ir import DType


class Drawing(msgspec.Struct, frozen=True, array_like=True):
    """One shader of the template `tile`, and the *calls* that have equal ones. *packs* of its
    bindings are packed constants. *tensors* are those that it reads and writes, by number.
    """

    calls: tuple[int, ...]
    write: Access
    sums: DType
    extras: tuple[Access, ...]
    finish: Expression
    form: Form
    tensors: dict[int, Tensor]
    slots: dict[int, Slot]
    packs: int

    def printed(self, call: Call, form: Form) -> tuple[str, Printed]:
        """The shader of *call*, divided as *form* says."""
        kernel = Kernel(
            "", form.loops, (), identity(self.sums), self.finish, self.write, sums=self.sums,
            extras=self.extras,
        )  # fmt: skip
        count = max(self.tensors, default=-1) + 1
        none = Tensor(DType.BOOL, ())
        tensors = tuple(self.tensors.get(number, none) for number in range(count))
        program = Program(tensors, {}, (), (), (), {})
        made = tile(program, kernel, self.slots, form, self.packs)
        return whole_text(call.bindings, made, self.packs, divides=call.divides), made


class Sketch(msgspec.Struct, frozen=True, array_like=True):
    """The drawings of a model."""

    drawings: tuple[Drawing, ...]


def drawing_of(
    program: Program, kernel: Kernel, form: Form, slots: Mapping[int, Slot], packs: int, call: int
) -> Drawing:
    """The drawing of *kernel*, the number *call* of a model."""
    read = (kernel.write, form.data, form.filters, *kernel.extras)
    through = [p.through for a in read for p in a.axes if p.through is not None]
    numbers = {*(a.tensor for a in read), *through, *kernel.finish.tables}
    tensors = {n: replace(program.tensors[n], name="") for n in sorted(numbers)}
    roots = {n: slots[program.root(n)] for n in tensors if program.root(n) in slots}
    return Drawing(
        (call,), kernel.write, kernel.sums, kernel.extras, kernel.finish, form, tensors, roots,
        packs,
    )  # fmt: skip


def encoded(drawings: Sequence[Drawing]) -> bytes:
    """*drawings* as bytes; none if there are none."""
    if not drawings:
        return b""
    return msgspec.msgpack.Encoder(enc_hook=_number).encode(Sketch(tuple(drawings)))


def decoded(content: bytes, calls: int) -> tuple[Drawing, ...]:
    """The drawings of a model of so many *calls*. Raises `GeneralFailure` for other contents."""
    if not content:
        return ()
    try:
        found = msgspec.msgpack.decode(content, type=Sketch).drawings
    except msgspec.MsgspecError as error:
        raise GeneralFailure(f"the artefact's drawings cannot be read: {error}") from None
    if not all(0 <= call < calls for drawing in found for call in drawing.calls):
        raise GeneralFailure("the artefact has drawings of kernels that it does not have")
    return found


class Printing(msgspec.Struct, frozen=True):
    """The *shaders* of a model, the *calls* of them, and the contents of their uniforms."""

    shaders: tuple[str, ...]
    calls: tuple[Call, ...]
    numbers: bytes


class Printable(Protocol):
    """What a `Printing` and the manifest of a model have in common."""

    @property
    def shaders(self) -> tuple[str, ...]: ...
    @property
    def calls(self) -> tuple[Call, ...]: ...
    @property
    def numbers(self) -> bytes: ...


def reshaped(
    before: Printable, drawings: Sequence[Drawing], shapes: Mapping[int, Shape]
) -> Printing:
    """The shaders of *before* with other *shapes* of the threads of some *drawings*, by number."""
    calls, texts = list(before.calls), dict[int, str]()
    for number, shape in shapes.items():
        drawing = drawings[number]
        form = drawing.form.shaped(shape)
        for at in drawing.calls:
            call = calls[at]
            own = tuple(b for b in call.bindings if b.buffer != "numbers")
            calls[at] = replace(call, bindings=own, threads=form.threads)
        text, made = drawing.printed(calls[drawing.calls[0]], form)
        for at in drawing.calls:
            calls[at] = replace(calls[at], groups=made.groups)
            texts[at] = text
    kept = dict.fromkeys(c.shader for at, c in enumerate(calls) if at not in texts)
    places = {shader: place for place, shader in enumerate(kept)}
    sharing = shared([(text, "none") for text in texts.values()])
    users = dict(zip(texts, sharing.users, strict=True))
    numbers = bytearray()
    for at, call in enumerate(calls):
        if at in users:
            shader, values = users[at]
            contents = array_of(values).tobytes()
            shader, bindings = shader + len(kept), call.bindings
        else:
            shader, bindings = places[call.shader], call.bindings
            read = [b for b in bindings if b.buffer == "numbers"]
            bindings = tuple(b for b in bindings if b.buffer != "numbers")
            contents = b"".join(before.numbers[b.offset : b.offset + b.size] for b in read)
        calls[at] = replace(call, shader=shader, bindings=(*bindings, *numbered(numbers, contents)))
    shaders = (*(before.shaders[shader] for shader in kept), *sharing.shaders)
    return Printing(shaders, tuple(calls), bytes(numbers))


def numbered(numbers: bytearray, contents: bytes) -> tuple[Binding, ...]:
    """Adds *contents* to *numbers*. Returns the binding of a uniform with them; () for none."""
    if not contents:
        return ()
    binding = Binding("numbers", len(numbers), len(contents))
    numbers += contents.ljust(-(-len(contents) // ALIGNMENT) * ALIGNMENT, b"\0")
    return (binding,)


def whole_text(bindings: Sequence[Binding], printed: Printed, packs: int, *, divides: bool) -> str:
    """The text of a shader with the declarations of its *bindings*, the last of which are so many
    packed constants.
    """
    lines, first = [], len(bindings) - packs
    for number, binding in enumerate(bindings):
        access = "read" if binding.buffer == "constants" else "read_write"
        name = f"b{number}" if number < first else f"packed{number - first}"
        word = "atomic<u32>" if name in printed.atomic else "u32"
        word = "vec4<u32>" if name in printed.vectors else word
        word = "vec2<u32>" if name in printed.pairs else word
        lines.append(
            f"@group(0) @binding({number}) var<storage, {access}> {name}: array<{word}>;\n"
        )
    return "".join(lines) + (divided(printed.text) if divides else printed.text)


def _number(value: Any) -> Any:
    """A number of NumPy as one of Python."""
    return value.item()
