"""Subgraphs with state. Each tracks which operand has each piece of state after each operator."""

from __future__ import annotations

from typing import Final, Protocol

from msgspec.structs import replace

from penstock import errors
from penstock.export.tflite.state import RANDOM_INPUTS
from penstock.ir.operand import Lifetime, Operand
from penstock.ir.operation import Attributes
from penstock.ir.subgraph import StatePort, Subgraph
from penstock.ir.types import DType
from penstock.loaders.tflite.body import Body, duplicate_writer
from penstock.loaders.tflite.calls import (
    CALLS,
    ENTERED_ANEW,
    LOOPS,
    RANDOM_OPERATORS,
    StateUse,
    handle_of,
    random_state,
    state_inputs,
    table_state,
    tensor_state,
    value_of,
)
from penstock.loaders.tflite.operators import BRANCHES, Key, RawOperator, RawSubgraph

CONTROL_FLOW: Final = CALLS | BRANCHES | LOOPS
"""Operators that pass values to subgraphs, and therefore state."""


class FileState(Protocol):
    """The state of all subgraphs of a file, as one of them sees it (`states.StateLowering`).

    *roles* says how each subgraph is entered, *use* which state it touches. *folded* has the values
    that a CALL_ONCE of constants assigns, by subgraph.
    """

    raw: list[RawSubgraph]
    use: StateUse
    roles: list[str]
    folded: dict[int, dict[Key, Operand]]

    def state_operand(self, key: Key) -> Operand:
        """A temporary of the type of the state *key*."""
        ...

    def variable(self, key: Key) -> int:
        """The index of the variable for *key*."""
        ...

    def skip_subgraph(self, init: int) -> int:
        """The index of a subgraph that returns unchanged the state that *init* touches."""
        ...

    def choice(self, types: tuple[DType, DType], second: bool) -> int:
        """The index of a subgraph that takes two pairs of vectors and returns one of the pairs."""
        ...


class StateBody(Body):
    """Lowers one subgraph with state. *current* maps each piece of state to the operand that has
    its value.
    """

    def __init__(self, lowering: FileState, raw: RawSubgraph) -> None:
        super().__init__(raw)
        self.lowering = lowering
        self.inputs = frozenset(raw.inputs)
        self.current: dict[Key, int] = {}
        self.state_in: dict[Key, int] = {}
        self.changed: dict[Key, None] = {}

    @property
    def is_entry(self) -> bool:
        return self.lowering.roles[self.raw.index] == "entry"

    def lower(self) -> Subgraph:
        raw = self.raw
        use = self.lowering.use
        if not self.is_entry:
            for key in use.touched[raw.index]:
                self.value(key)
        for operator in raw.operators:
            self.operator(operator)
        inputs = self.listed_inputs()
        outputs = [self.read(o) for o in raw.outputs if o not in raw.handles]
        self.renamed.update({o: self.read(o) for o in raw.outputs if o in raw.variables})
        states: list[StatePort] = []
        if self.is_entry:
            states = self.ports()
            inputs += [p.input for p in states if p.input is not None]
            outputs += [p.output for p in states if p.output is not None]
        else:
            inputs += self.state_in.values()
            outputs += [
                self.current[k] for k in self.carried(raw.index, self.lowering.roles[raw.index])
            ]
        self.lifetimes(inputs, outputs)
        return Subgraph(
            tuple(self.operands),
            tuple(self.operations),
            tuple(inputs),
            tuple(outputs),
            tuple(states),
            raw.name,
        )

    def listed_inputs(self) -> list[int]:
        """The inputs that have values.

        A tensor that an entry subgraph lists several times is one input. If an operation passes the
        values, the tensor gets the last of them (LiteRT), and the others are not read.
        """
        inputs = [i for i in self.raw.inputs if i not in self.raw.handles]
        if len(set(inputs)) == len(inputs):
            return inputs
        if self.is_entry:
            return list(dict.fromkeys(inputs))
        return [
            self.add(replace(self.operands[i], origin=None)) if i in inputs[place + 1 :] else i
            for place, i in enumerate(inputs)
        ]

    def carried(self, index: int, role: str) -> list[Key]:
        """The state that a subgraph returns to the operation that entered it."""
        use = self.lowering.use
        if role == "cond":
            return []
        return list(use.touched[index] if role == "body" else use.written[index])

    def ports(self) -> list[StatePort]:
        """State ports: resource variables that are read, variable tensors, then state that is only
        written.
        """
        keys = sorted(self.state_in, key=lambda k: k.kind == "tensor")
        keys += [k for k in self.changed if k not in self.state_in]
        return [
            StatePort(
                self.lowering.variable(key),
                self.state_in.get(key),
                self.current[key] if key in self.changed else None,
            )
            for key in keys
        ]

    def operator(self, operator: RawOperator) -> None:
        match operator.type:
            case "VAR_HANDLE":
                return
            case "READ_VARIABLE":
                self.read_variable(operator)
            case "ASSIGN_VARIABLE":
                key = handle_of(self.raw, operator)
                self.current[key] = self.read(value_of(operator))
                self.changed[key] = None
            case "CALL_ONCE":
                self.call_once(operator)
            case "HASHTABLE_IMPORT":
                self.import_table(operator)
            case "HASHTABLE_FIND" | "HASHTABLE_SIZE" if operator.inputs[0] in self.raw.handles:
                self.look_up(operator)
            case kind if kind in RANDOM_OPERATORS:
                self.random(operator)
            case _:
                super().operator(operator)

    def ordinary(self, operator: RawOperator) -> None:
        inputs = [self.read(i) for i in operator.inputs if i not in self.raw.handles]
        after = [operator.inputs[i] for i in state_inputs(operator)]
        carried: list[Key] = []
        if operator.type in CONTROL_FLOW and operator.targets:
            target = operator.targets[-1]
            inputs += [self.entering(k) for k in self.lowering.use.touched[target]]
            carried = self.carried(target, "body" if operator.type in LOOPS else "branch")
        outputs = [self.write(o, operator) for o in operator.outputs if o not in self.raw.handles]
        outputs += [self.leaving(key) for key in carried]
        outputs += [self.next_state(tensor) for tensor in after]
        self.emit(operator.type, inputs, outputs, operator)

    def entering(self, key: Key) -> int:
        """The operand that passes *key* to a subgraph: the value of the state, or for a generator
        the start of its sequence.
        """
        if key.kind == "random":
            return self.add(Operand(DType.INT64, (), Lifetime.CONSTANT_COPY, value=bytes(8)))
        return self.value(key)

    def leaving(self, key: Key) -> int:
        """The operand that returns *key* from a subgraph. Generators and variable tensors restart
        at each entry of a subgraph (LiteRT), so the values that they return are not read.
        """
        if key.kind in ENTERED_ANEW:
            return self.add(self.lowering.state_operand(key))
        return self.update(key)

    def look_up(self, operator: RawOperator) -> None:
        """HASHTABLE_FIND or HASHTABLE_SIZE of a table with state as its content."""
        keys, values, _ = table_state(handle_of(self.raw, operator))
        held = (keys, values) if operator.type == "HASHTABLE_FIND" else (keys,)
        inputs = [self.value(k) for k in held] + [self.read(i) for i in operator.inputs[1:]]
        outputs = [self.write(o, operator) for o in operator.outputs]
        self.emit(operator.type, inputs, outputs, operator)

    def import_table(self, operator: RawOperator) -> None:
        keys, values, filled = table_state(handle_of(self.raw, operator))
        held = [self.value(filled), self.value(keys), self.value(values)]
        brought = [self.read(i) for i in operator.inputs[1:]]
        types = self.operands[held[1]].dtype, self.operands[held[2]].dtype
        first, second = (self.lowering.choice(types, second=s) for s in (False, True))
        outputs = [self.update(k) for k in (keys, values)]
        self.branch([*held, *brought], outputs, first, second, operator)
        self.set_true(filled)

    def branch(
        self,
        inputs: list[int],
        outputs: list[int],
        first: int,
        second: int,
        operator: RawOperator,
    ) -> None:
        """Appends an IF in place of *operator*."""
        attributes = Attributes(then_subgraph_index=first, else_subgraph_index=second)
        self.append("IF", inputs, outputs, attributes, operator.origin)

    def random(self, operator: RawOperator) -> None:
        """A random operator. If its generator's position is state, it is an additional input and
        output.
        """
        if len(operator.inputs) != RANDOM_INPUTS[operator.type] or len(operator.outputs) != 1:
            raise errors.InvalidOperation(
                f"has {len(operator.inputs)} inputs and {len(operator.outputs)} outputs",
                where=operator.place,
            )
        key = random_state(self.raw.index, operator)
        inputs = [self.read(i) for i in operator.inputs]
        outputs = [self.write(o, operator) for o in operator.outputs]
        if self.raw.index in self.lowering.use.restarted:
            role = self.lowering.roles[self.raw.index]
            if role == "cond" and any(operator.attributes[k] for k in ("seed", "seed2")):
                raise errors.InvalidOperation(
                    "draws from a seeded sequence in the condition of a loop", where=operator.place
                )
            self.emit(operator.type, inputs, outputs, operator)
            return
        self.emit(operator.type, [*inputs, self.value(key)], [*outputs, self.update(key)], operator)

    def set_true(self, key: Key) -> None:
        """Sets the boolean state *key*."""
        self.current[key] = self.add(Operand(DType.BOOL, (), Lifetime.CONSTANT_COPY, value=b"\1"))
        self.changed[key] = None

    def read(self, tensor: int) -> int:
        """The current operand of tensor *tensor*."""
        if tensor in self.raw.variables:
            return self.value(tensor_state(self.raw, tensor))
        return super().read(tensor)

    def write(self, tensor: int, operator: RawOperator) -> int:
        """The operand that an operation writes for tensor *tensor*."""
        if tensor in self.raw.variables:
            return self.update(tensor_state(self.raw, tensor))
        return super().write(tensor, operator)

    def next_state(self, tensor: int) -> int:
        """The extra output with the new value of *tensor*, the state of a recurrent operation."""
        if tensor in self.raw.variables:
            return self.update(tensor_state(self.raw, tensor))
        like = self.operands[tensor] if tensor >= 0 else Operand(DType.FLOAT32, None)
        return self.add(Operand(like.dtype, like.shape, quantization=like.quantization))

    def value(self, key: Key) -> int:
        """The operand with the state *key*: its state input, unless it was changed."""
        if key not in self.current:
            own = key.kind == "tensor" and key.subgraph == self.raw.index
            if own and key.number < len(self.raw.operands):
                index = key.number
            else:
                index = self.add(self.lowering.state_operand(key))
            self.current[key] = self.state_in[key] = index
        return self.current[key]

    def update(self, key: Key) -> int:
        """A new operand for the state *key*."""
        index = self.add(self.lowering.state_operand(key))
        self.current[key] = index
        self.changed[key] = None
        return index

    def read_variable(self, operator: RawOperator) -> None:
        key, tensor = handle_of(self.raw, operator), value_of(operator)
        index = self.value(key)
        held, wanted = self.operands[index], self.operands[tensor]
        if held.quantization != wanted.quantization:
            raise errors.InvalidQuantization(
                "reads a variable with other quantisation than the value it holds",
                where=operator.place,
            )
        if wanted.is_constant or any(
            tensor in known for known in (self.written, self.renamed, self.inputs)
        ):
            raise duplicate_writer(tensor, operator)
        self.renamed[tensor] = index

    def call_once(self, operator: RawOperator) -> None:
        if len(operator.targets) != 1 or operator.inputs or operator.outputs:
            raise errors.InvalidOperation("takes no inputs and no outputs", where=operator.place)
        (init,) = operator.targets
        if self.lowering.raw[init].inputs or self.lowering.raw[init].outputs:
            raise errors.InvalidOperation(
                f"its subgraph {init} has inputs or outputs", where=operator.place
            )
        touched = list(self.lowering.use.touched[init])
        if init in self.lowering.folded or not touched:
            return
        once = Key("once", subgraph=init)
        inputs = [self.value(once), *(self.value(k) for k in touched)]
        outputs = [self.leaving(k) for k in self.carried(init, "once")]
        skip = self.lowering.skip_subgraph(init)
        self.branch(inputs, outputs, skip, init, operator)
        self.set_true(once)
