"""What callers call the inputs and outputs of a compiled model."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import InvalidSignature, UnknownSignature
from penstock.ir import Model, Operand


class Interface(Struct, frozen=True):
    """The caller's inputs and outputs, in order.

    *inputs* and *outputs* are operand descriptions under the caller's names; *input_positions* and
    *output_positions* say which of the model's ordinary inputs and outputs each one is. A signature may have
    several names for one of them.
    """

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    input_positions: tuple[int, ...]
    output_positions: tuple[int, ...]

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.outputs)


def interface_of(model: Model, signature: str | None) -> Interface:
    """The interface of the entry subgraph, under the names of *signature* or, without one, of the operands.

    Raises `UnknownSignature` where the model has none of that name, `InvalidSignature` where it leaves
    an input out.
    """
    if signature is None:
        return Interface(
            model.inputs,
            model.outputs,
            tuple(range(len(model.inputs))),
            tuple(range(len(model.outputs))),
        )
    if signature not in model.signatures:
        raise UnknownSignature(
            f"no signature {signature!r}; the model has {', '.join(map(repr, model.signatures))}"
        )
    chosen, entry = model.signatures[signature], model.entry
    if {i for _, i in chosen.inputs} != set(entry.ordinary_inputs):
        raise InvalidSignature(f"signature {signature!r} does not name every input of its subgraph")
    return Interface(
        tuple(replace(entry.operands[i], name=name) for name, i in chosen.inputs),
        tuple(replace(entry.operands[i], name=name) for name, i in chosen.outputs),
        tuple(entry.ordinary_inputs.index(i) for _, i in chosen.inputs),
        tuple(entry.ordinary_outputs.index(i) for _, i in chosen.outputs),
    )
