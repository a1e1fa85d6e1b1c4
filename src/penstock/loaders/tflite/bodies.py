"""One subgraph of a file that has state: its operators in turn, and what holds each piece of state
after each.
"""

from __future__ import annotations

from typing import Final, Protocol

from msgspec.structs import replace

from penstock.errors import (
    DuplicateWriter,
    InvalidOperation,
    InvalidQuantization,
)
from penstock.export.tflite.state import RANDOM_INPUTS
from penstock.ir.operand import Lifetime, Operand
from penstock.ir.operation import Attributes, Operation
from penstock.ir.subgraph import StatePort, Subgraph
from penstock.ir.types import DType
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
    value_of,
)
from penstock.loaders.tflite.lowering import Body
from penstock.loaders.tflite.operators import BRANCHES, Key, RawOperator, RawSubgraph

CONTROL_FLOW: Final = CALLS | BRANCHES | LOOPS
"""Operators that hand values, and so state, to subgraphs."""


class FileState(Protocol):
    """The state of all subgraphs of a file, as one of them sees it (`states.StateLowering`).

    *roles* say of each subgraph how it is entered, *use* what it touches; *folded* are the values
    that a CALL_ONCE of constants leaves, by its subgraph.
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
        """The index of a subgraph that passes on unchanged what *init* touches."""
        ...

    def choice(self, types: tuple[DType, DType], second: bool) -> int:
        """The index of a subgraph of two pairs of vectors of these types that gives one of the
        pairs.
        """
        ...


class StateBody(Body):
    """Lowers one subgraph. *current* is the operand that holds each piece of state now."""

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
        """The inputs that hold values. A tensor listed more than once is one input of an entry
        subgraph; where an operation hands the values over, it takes the last of them (LiteRT), and
        nobody reads the others.
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
        """The state that a subgraph hands back to the operation that entered it."""
        use = self.lowering.use
        if role == "cond":
            return []
        return list(use.touched[index] if role == "body" else use.written[index])

    def ports(self) -> list[StatePort]:
        """State ports: resource variables first read, then variable tensors, then what is only
        written.
        """
        keys = [k for k in self.state_in if k.kind != "tensor"] + [
            k for k in self.state_in if k.kind == "tensor"
        ]
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
        kind = operator.type
        if kind == "VAR_HANDLE":
            return
        if kind == "READ_VARIABLE":
            self.read_variable(operator)
        elif kind == "ASSIGN_VARIABLE":
            key = handle_of(self.raw, operator)
            self.current[key] = self.read(value_of(operator))
            self.changed[key] = None
        elif kind == "CALL_ONCE":
            self.call_once(operator)
        elif kind == "HASHTABLE_IMPORT":
            self.import_table(operator)
        elif (
            kind in ("HASHTABLE_FIND", "HASHTABLE_SIZE") and operator.inputs[0] in self.raw.handles
        ):
            self.look_up(operator)
        elif kind in RANDOM_OPERATORS:
            self.random(operator)
        else:
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
        """What brings *key* to a subgraph: its value, which for variable tensors is the initial
        one; for a generator the beginning of its sequence.
        """
        if key.kind == "random":
            return self.add(Operand(DType.INT64, (), Lifetime.CONSTANT_COPY, value=bytes(8)))
        return self.value(key)

    def leaving(self, key: Key) -> int:
        """What takes *key* from a subgraph; nobody reads how far a generator came, nor what a
        variable tensor holds in the end: both begin anew wherever the subgraph is entered (LiteRT).
        """
        if key.kind in ENTERED_ANEW:
            return self.add(self.lowering.state_operand(key))
        return self.update(key)

    def look_up(self, operator: RawOperator) -> None:
        """HASHTABLE_FIND or HASHTABLE_SIZE of a table whose content is state."""
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
        attributes = Attributes(
            then_subgraph_index=self.lowering.choice(types, second=False),
            else_subgraph_index=self.lowering.choice(types, second=True),
        )
        outputs = tuple(self.update(k) for k in (keys, values))
        self.operations.append(
            Operation("IF", (*held, *brought), outputs, attributes, operator.origin)
        )
        self.written.update(outputs)
        self.set_true(filled)

    def random(self, operator: RawOperator) -> None:
        """A random operator with its generator's position before and after it, where that is kept."""
        if len(operator.inputs) != RANDOM_INPUTS[operator.type] or len(operator.outputs) != 1:
            raise InvalidOperation(
                f"has {len(operator.inputs)} inputs and {len(operator.outputs)} outputs",
                where=operator.place,
            )
        key = random_state(self.raw.index, operator)
        inputs = [self.read(i) for i in operator.inputs]
        outputs = [self.write(o, operator) for o in operator.outputs]
        if self.raw.index in self.lowering.use.restarted:
            role = self.lowering.roles[self.raw.index]
            if role == "cond" and any(operator.attributes[k] for k in ("seed", "seed2")):
                raise InvalidOperation(
                    "draws from a seeded sequence in the condition of a loop", where=operator.place
                )
            self.emit(operator.type, inputs, outputs, operator)
            return
        self.emit(operator.type, [*inputs, self.value(key)], [*outputs, self.update(key)], operator)

    def set_true(self, key: Key) -> None:
        """From now on the boolean state *key* is true."""
        self.current[key] = self.add(Operand(DType.BOOL, (), Lifetime.CONSTANT_COPY, value=b"\1"))
        self.changed[key] = None

    def key(self, tensor: int) -> Key:
        """The state that variable tensor *tensor* stands for."""
        return Key("tensor", subgraph=self.raw.index, number=tensor)

    def read(self, tensor: int) -> int:
        """The operand that holds tensor *tensor* now."""
        return (
            self.value(self.key(tensor)) if tensor in self.raw.variables else super().read(tensor)
        )

    def write(self, tensor: int, operator: RawOperator) -> int:
        """The operand that an operation writes for tensor *tensor*."""
        if tensor in self.raw.variables:
            return self.update(self.key(tensor))
        return super().write(tensor, operator)

    def next_state(self, tensor: int) -> int:
        """The extra output that carries what a recurrent operation leaves in *tensor*."""
        if tensor in self.raw.variables:
            return self.update(self.key(tensor))
        like = self.operands[tensor] if tensor >= 0 else Operand(DType.FLOAT32, None)
        return self.add(Operand(like.dtype, like.shape, quantization=like.quantization))

    def value(self, key: Key) -> int:
        """The operand that holds the state *key* now: its state input unless it was changed."""
        if key not in self.current:
            own = key.kind == "tensor" and key.subgraph == self.raw.index
            if own and key.number < len(self.raw.operands):
                index = key.number
            else:
                index = self.add(self.lowering.state_operand(key))
            self.current[key] = self.state_in[key] = index
        return self.current[key]

    def update(self, key: Key) -> int:
        """A new operand that holds the state *key* from now on."""
        index = self.add(self.lowering.state_operand(key))
        self.current[key] = index
        self.changed[key] = None
        return index

    def read_variable(self, operator: RawOperator) -> None:
        key, tensor = handle_of(self.raw, operator), value_of(operator)
        index = self.value(key)
        held, wanted = self.operands[index], self.operands[tensor]
        if held.quantization != wanted.quantization:
            raise InvalidQuantization(
                "reads a variable with other quantisation than the value it holds",
                where=operator.place,
            )
        if (
            tensor in self.written
            or tensor in self.renamed
            or tensor in self.inputs
            or wanted.is_constant
        ):
            raise DuplicateWriter(
                f"writes tensor {tensor}, which has another writer", where=operator.place
            )
        self.renamed[tensor] = index

    def call_once(self, operator: RawOperator) -> None:
        if len(operator.targets) != 1 or operator.inputs or operator.outputs:
            raise InvalidOperation("takes no inputs and no outputs", where=operator.place)
        (init,) = operator.targets
        if self.raw_of(init).inputs or self.raw_of(init).outputs:
            raise InvalidOperation(
                f"its subgraph {init} has inputs or outputs", where=operator.place
            )
        touched = list(self.lowering.use.touched[init])
        if init in self.lowering.folded or not touched:
            return
        once = Key("once", subgraph=init)
        inputs = [self.value(once), *(self.value(k) for k in touched)]
        outputs = [self.leaving(k) for k in self.carried(init, "once")]
        skip = self.lowering.skip_subgraph(init)
        attributes = Attributes(then_subgraph_index=skip, else_subgraph_index=init)
        self.operations.append(
            Operation("IF", tuple(inputs), tuple(outputs), attributes, operator.origin)
        )
        self.written.update(outputs)
        self.set_true(once)

    def raw_of(self, index: int) -> RawSubgraph:
        return self.lowering.raw[index]
