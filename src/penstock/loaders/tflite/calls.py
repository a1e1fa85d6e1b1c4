"""The calls between subgraphs, and the network state that each subgraph reads and writes.

State in a TFLite file is in variable tensors and in resource variables (named by VAR_HANDLE). This
module follows it through control flow. Then `states` makes it explicit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import InvalidOperand, InvalidOperation, LimitExceeded
from penstock.export.tflite.fields import RANDOM_INPUTS, state_positions
from penstock.ir.operand import Operand
from penstock.ir.operations.control_flow import meet
from penstock.ir.validate import MAX_DEPTH, callees_first
from penstock.loaders.tflite.operators import BRANCHES, Key, RawOperator, RawSubgraph

LOOPS: Final = frozenset({"WHILE", "STABLEHLO_WHILE"})
"""Operators that enter a condition and a body in turn."""

CALLS: Final = frozenset({"CALL", "STABLEHLO_COMPOSITE"})
"""Operators that enter one subgraph, once."""

ENTERED_ANEW: Final = frozenset({"random", "tensor"})
"""Kinds of state that restart from the initial value at each entry of a subgraph."""

MAX_PASSES: Final = 2 * MAX_DEPTH
STATE_PER_OPERAND: Final = 8
STATE_ALLOWANCE: Final = 4096


def state_inputs(operator: RawOperator) -> tuple[int, ...]:
    """Positions of the inputs that *operator* changes in place."""
    if operator.type == "CUSTOM":
        return tuple(sorted(i for i in operator.mutated if i < len(operator.inputs)))
    positions = state_positions(operator.type, operator.attributes)
    return tuple(i for i in positions if i < len(operator.inputs))


def call_order(subgraphs: list[RawSubgraph]) -> list[int]:
    """Subgraphs, callers before callees. Raises as `callees_first`."""
    calls = [sorted({t for o in s.operators for t in o.targets}) for s in subgraphs]
    return callees_first(calls)[::-1]


def resolve_handles(subgraphs: list[RawSubgraph], order: list[int]) -> None:
    """Fills `handles`: follows resource tensors from VAR_HANDLE and HASHTABLE into subgraphs."""
    for index in order:
        subgraph = subgraphs[index]
        for operator in subgraph.operators:
            if operator.type in ("VAR_HANDLE", "HASHTABLE"):
                _bind(subgraph, operator, operator.outputs, [_resource(operator)])
            elif operator.targets and operator.type != "CALL_ONCE":
                arguments = operator.inputs[1:] if operator.type in BRANCHES else operator.inputs
                keys = [subgraph.handles.get(i) for i in arguments]
                if any(k is not None for k in keys):
                    for target in operator.targets:
                        _bind(subgraphs[target], operator, subgraphs[target].inputs, keys)
                    if operator.type in LOOPS:
                        _bind(subgraph, operator, operator.outputs, keys)


def _resource(operator: RawOperator) -> Key:
    """The variable or table whose handle *operator* makes."""
    if operator.type == "HASHTABLE":
        number = operator.attributes["table_id"]
        return Key("table", number=number if isinstance(number, int) else 0)
    container, name = (operator.attributes[k] for k in ("container", "shared_name"))
    return Key("resource", str(container), str(name))


def _bind(
    subgraph: RawSubgraph, operator: RawOperator, tensors: Iterable[int], keys: Sequence[Key | None]
) -> None:
    for tensor, key in zip(tensors, keys, strict=False):
        if key is not None and subgraph.handles.setdefault(tensor, key) != key:
            raise InvalidOperation(
                "a resource tensor refers to two resources", where=operator.place
            )


def handle_of(subgraph: RawSubgraph, operator: RawOperator) -> Key:
    """The state that the operator's first input refers to."""
    if not operator.inputs or operator.inputs[0] not in subgraph.handles:
        raise InvalidOperation(
            "its resource is not made by VAR_HANDLE or HASHTABLE", where=operator.place
        )
    return subgraph.handles[operator.inputs[0]]


def random_state(subgraph: int, operator: RawOperator) -> Key:
    """The position of the generator of a random operator of subgraph number *subgraph*."""
    return Key("random", subgraph=subgraph, number=operator.origin.index)


def tensor_state(subgraph: RawSubgraph, tensor: int) -> Key:
    """The state of a variable tensor."""
    return Key("tensor", subgraph=subgraph.index, number=tensor)


def table_state(table: Key) -> tuple[Key, Key, Key]:
    """The keys and values of a table that is filled at run time, and whether they are imported."""
    return replace(table, kind="keys"), replace(table, kind="values"), replace(table, kind="filled")


class StateUse(Struct):
    """The state that each subgraph touches and writes, directly or through subgraphs that it
    enters. All are in one order.
    """

    touched: list[dict[Key, None]]
    written: list[dict[Key, None]]
    restarted: frozenset[int]
    """Subgraphs whose random operators restart at each entry.

    Random operators in a loop's body continue from round to round, those in an entry subgraph from
    run to run.
    """


def find_state(subgraphs: list[RawSubgraph], order: list[int]) -> StateUse:
    """The state of every subgraph. Subgraphs that one operation may enter touch the same state."""
    use = StateUse([{} for _ in subgraphs], [{} for _ in subgraphs], _restarted(subgraphs))
    for subgraph in subgraphs:
        _local(subgraph, use)
    if not any(use.touched):
        return use
    allowed = STATE_ALLOWANCE + STATE_PER_OPERAND * sum(len(s.operands) for s in subgraphs)
    for _ in range(MAX_PASSES):
        carried = 0
        before = sum(map(len, use.touched)) + sum(map(len, use.written))
        for index in reversed(order):
            for operator in subgraphs[index].operators:
                if operator.targets:
                    carried += _spread(use, index, operator)
                    if carried > allowed:
                        raise LimitExceeded(
                            f"control flow would carry more than {allowed} values of state",
                            where=operator.place,
                        )
        if before == sum(map(len, use.touched)) + sum(map(len, use.written)):
            _put_in_order(use)
            return use
    raise LimitExceeded(
        f"network state passes through more than {MAX_PASSES} levels of shared subgraphs"
    )


def _restarted(subgraphs: list[RawSubgraph]) -> frozenset[int]:
    entered: set[int] = set()
    for subgraph in subgraphs:
        for operator in subgraph.operators:
            entered.update(operator.targets[:1] if operator.type in LOOPS else operator.targets)
    return frozenset(entered)


def _put_in_order(use: StateUse) -> None:
    """Subgraphs that one operation enters must receive and return their state in the same order."""
    places: dict[Key, int] = {}
    for touched in use.touched:
        for key in touched:
            places.setdefault(key, len(places))
    for keys in (use.touched, use.written):
        keys[:] = [dict.fromkeys(sorted(k, key=places.__getitem__)) for k in keys]


def _local(subgraph: RawSubgraph, use: StateUse) -> None:
    touched, written = use.touched[subgraph.index], use.written[subgraph.index]
    for operator in subgraph.operators:
        reads, changes = _state_of(subgraph, operator)
        if operator.type in RANDOM_INPUTS and subgraph.index not in use.restarted:
            changes = (random_state(subgraph.index, operator),)
        touched.update(dict.fromkeys((*reads, *changes)))
        written.update(dict.fromkeys(changes))
        if not subgraph.variables:
            continue
        for tensor in (*operator.inputs, *operator.outputs):
            if tensor in subgraph.variables:
                touched[tensor_state(subgraph, tensor)] = None
        changed = {operator.inputs[i] for i in state_inputs(operator)} | set(operator.outputs)
        own = sorted(changed & subgraph.variables)
        written.update((tensor_state(subgraph, tensor), None) for tensor in own)
    for tensor in subgraph.outputs:
        if tensor in subgraph.variables:
            touched[tensor_state(subgraph, tensor)] = None


def _state_of(
    subgraph: RawSubgraph, operator: RawOperator
) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
    """The variables and tables that *operator* reads, and those it changes, apart from variable
    tensors.
    """
    match operator.type:
        case "READ_VARIABLE":
            return (handle_of(subgraph, operator),), ()
        case "ASSIGN_VARIABLE":
            return (), (handle_of(subgraph, operator),)
        case "HASHTABLE_IMPORT":
            return (), table_state(handle_of(subgraph, operator))
        # Operators on a table with constant content were given constants for its handle.
        case "HASHTABLE_FIND" | "HASHTABLE_SIZE" if {*operator.inputs[:1]} & {*subgraph.handles}:
            keys, values, _ = table_state(handle_of(subgraph, operator))
            return ((keys, values) if operator.type == "HASHTABLE_FIND" else (keys,)), ()
    return (), ()


def _spread(use: StateUse, caller: int, operator: RawOperator) -> int:
    """Propagates state over one operator. Returns the number of state values that it will pass."""
    touched: dict[Key, None] = {}
    written: dict[Key, None] = {}
    for target in operator.targets:
        touched |= use.touched[target]
        written |= use.written[target]
    if operator.type in BRANCHES:
        for target in operator.targets:
            use.touched[target] |= touched
            use.written[target] |= written
    elif operator.type in LOOPS:
        for target in operator.targets:
            use.touched[target] |= touched
        if use.written[operator.targets[0]]:
            raise InvalidOperation(
                "the condition of a loop changes network state", where=operator.place
            )
    elif operator.type == "CALL_ONCE":
        if touched:
            once = Key("once", subgraph=operator.targets[0])
            touched[once] = None
            written[once] = None
    elif touched and operator.type not in CALLS:
        raise InvalidOperation(
            "network state inside what it calls cannot be lowered", where=operator.place
        )
    use.touched[caller].update((k, None) for k in touched if k.kind != "random")
    use.written[caller].update((k, None) for k in written if k.kind not in ENTERED_ANEW)
    return len(touched)


def state_types(subgraphs: list[RawSubgraph]) -> dict[Key, Operand]:
    """One operand for each resource variable, with the type that is read, or else assigned. Also
    operands for the keys and values of each table with unknown content.

    Dimensions that differ between readers and writers are unknown.
    """
    types: dict[Key, Operand] = {}
    read: set[Key] = set()
    for subgraph in subgraphs:
        for operator in subgraph.operators:
            if operator.type == "HASHTABLE_IMPORT":
                keys, values, _ = table_state(handle_of(subgraph, operator))
                for key, tensor in zip((keys, values), operator.inputs[1:], strict=True):
                    operand = Operand(subgraph.operands[tensor].dtype, (None,))
                    _agree(types, key, operand, operator)
            elif operator.type in ("READ_VARIABLE", "ASSIGN_VARIABLE"):
                key = handle_of(subgraph, operator)
                operand = subgraph.operands[value_of(operator)]
                known = _agree(types, key, operand, operator)
                shape = meet(known.shape, operand.shape)
                if operator.type == "READ_VARIABLE" and key not in read:
                    read.add(key)
                    known = operand
                types[key] = replace(known, shape=shape)
    return types


def _agree(types: dict[Key, Operand], key: Key, operand: Operand, operator: RawOperator) -> Operand:
    """The first operand for *key*. Raises `InvalidOperand` if *operand* has another type."""
    known = types.setdefault(key, operand)
    if known.dtype is not operand.dtype:
        what = "a variable" if key.kind == "resource" else "a table"
        raise InvalidOperand(
            f"{what} is {known.dtype.value} elsewhere and {operand.dtype.value} here",
            where=operator.place,
        )
    return known


def value_of(operator: RawOperator) -> int:
    """The tensor that READ_VARIABLE writes or ASSIGN_VARIABLE stores."""
    inputs, outputs = operator.inputs, operator.outputs
    if operator.type == "READ_VARIABLE" and len(inputs) == len(outputs) == 1:
        return outputs[0]
    if operator.type == "ASSIGN_VARIABLE" and len(inputs) == 2 and inputs[1] >= 0:
        return inputs[1]
    raise InvalidOperation(
        "a variable is read or assigned with the wrong number of operands", where=operator.place
    )


Table: TypeAlias = "tuple[Operand, Operand]"
"""Keys and values, both constants."""


def lower_tables(subgraphs: list[RawSubgraph]) -> None:
    """Rewrites the operators of hash tables with constant content; `resolve_handles` has run.

    TFLite imports keys and values once. Later imports have no effect, and no other operator changes
    a table. A table with a constant import is therefore a pair of constants: HASHTABLE_FIND takes
    keys, values, query and default, HASHTABLE_SIZE the keys. Other tables are state.
    """
    kinds = ("HASHTABLE_IMPORT", "HASHTABLE_FIND", "HASHTABLE_SIZE")
    users = [(s, o) for s in subgraphs for o in s.operators if o.type in kinds]
    tables: dict[Key, Table | None] = {}
    for subgraph, operator in users:
        if operator.type == "HASHTABLE_IMPORT":
            key, content = handle_of(subgraph, operator), _content(subgraph, operator)
            if tables.setdefault(key, content) != content:
                tables[key] = None
    # The index of the keys in each subgraph that uses a table; the values follow them.
    copies: dict[tuple[int, Key], int] = {}
    for subgraph, operator in users:
        key = handle_of(subgraph, operator)
        if key not in tables:
            raise InvalidOperation("its table is never imported", where=operator.place)
        table = tables[key]
        if operator.type != "HASHTABLE_IMPORT" and table is not None:
            if (subgraph.index, key) not in copies:
                copies[subgraph.index, key] = len(subgraph.operands)
                subgraph.operands += [replace(o, origin=None) for o in table]
            keys = copies[subgraph.index, key]
            given = (keys, keys + 1) if operator.type == "HASHTABLE_FIND" else (keys,)
            operator.inputs = (*given, *operator.inputs[1:])
    for subgraph in subgraphs:
        subgraph.operators = [
            o
            for o in subgraph.operators
            if o.type != "HASHTABLE"
            and not (o.type == "HASHTABLE_IMPORT" and tables[handle_of(subgraph, o)] is not None)
        ]


def _content(subgraph: RawSubgraph, operator: RawOperator) -> Table | None:
    """The keys and values of an import, if both are constants."""
    if len(operator.inputs) != 3 or min(operator.inputs) < 0:
        raise InvalidOperation("needs a table, keys and values", where=operator.place)
    keys, values = (subgraph.operands[i] for i in operator.inputs[1:])
    return (keys, values) if keys.is_constant and values.is_constant else None
