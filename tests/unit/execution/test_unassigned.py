"""Variables without an initial value may not be read before a run assigned them."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import penstock
from penstock import loaders
from penstock.errors import InvalidOperand, NotExportable, StateError
from penstock.export.tflite import write
from penstock.ir import DType, Model, Subgraph, Variable
from tests.unit.loaders.files import FileBuilder

X = np.array([1, 2], np.float32)


def handle(file: FileBuilder, name: str = "v") -> int:
    tensor = file.tensor("handle", [], "RESOURCE")
    file.operator("VAR_HANDLE", [], [tensor], {"container": "", "shared_name": name})
    return tensor


def read_then_assign() -> Model:
    file = FileBuilder()
    v = handle(file)
    x, before, after = (file.tensor(n, [2]) for n in ("x", "before", "after"))
    file.operator("READ_VARIABLE", [v], [before])
    file.operator("ADD", [x, before], [after])
    file.operator("ASSIGN_VARIABLE", [v, after], [])
    return loaders.load(file.finish([x], [after]))


def setter_and_getter() -> Model:
    """Two signatures: `set` stores -x, `get` gives what is stored."""
    file = FileBuilder()
    v, x, y = handle(file), file.tensor("x", [2]), file.tensor("y", [2])
    file.operator("NEG", [x], [y])
    file.operator("ASSIGN_VARIABLE", [v, y], [])
    file.end([x], [y])
    file.begin("get")
    v, y = handle(file), file.tensor("y", [2])
    file.operator("READ_VARIABLE", [v], [y])
    file.end([], [y])
    ends = [("set", [("x", 1)], [("y", 2)], 0), ("get", [], [("y", 1)], 1)]
    return loaders.load(
        file.encode(
            signature_defs=[
                {
                    "signature_key": name,
                    "inputs": [{"name": n, "tensor_index": i} for n, i in inputs],
                    "outputs": [{"name": n, "tensor_index": i} for n, i in outputs],
                    "subgraph_index": subgraph,
                }
                for name, inputs, outputs, subgraph in ends
            ]
        )
    )


def assigned_in_a_branch() -> Model:
    """IF c: v = x; then v is read."""
    file = FileBuilder()
    v, c = handle(file), file.tensor("c", [1], "BOOL")
    x, d, y = (file.tensor(n, [2]) for n in "xdy")
    file.operator("IF", [c, x], [d], {"then_subgraph_index": 1, "else_subgraph_index": 2})
    file.operator("READ_VARIABLE", [v], [y])
    file.end([c, x], [y, d])
    for kind in ("NEG", "ABS"):
        file.begin(kind)
        x, y = file.tensor("x", [2]), file.tensor("y", [2])
        if kind == "NEG":
            file.operator("ASSIGN_VARIABLE", [handle(file), x], [])
        file.operator(kind, [x], [y])
        file.end([x], [y])
    return loaders.load(file.encode())


def test_a_variable_read_before_it_is_assigned_is_named() -> None:
    with (
        penstock.compile(read_then_assign(), cache=None) as compiled,
        pytest.raises(StateError, match="variable 'v' is read before any value was assigned"),
    ):
        compiled(X)


def test_another_signature_may_assign_a_variable() -> None:
    model = setter_and_getter()
    with (
        penstock.compile(model, signature="get", cache=None) as getter,
        penstock.compile(model, signature="set", cache=None) as setter,
    ):
        state = setter.new_state()
        with pytest.raises(StateError):
            getter.run([], state=state)
        setter.run([X], state=state)
        assert getter.run([], state=state)[0].tolist() == [-1, -2]
        again = copy.deepcopy(state)
        assert getter.run([], state=again)[0].tolist() == [-1, -2]
        state.reset()
        with pytest.raises(StateError):
            getter.run([], state=state)


def test_branch_may_assign_a_variable() -> None:
    with penstock.compile(assigned_in_a_branch(), cache=None) as compiled:
        assert compiled(np.array([True]), X)[0].tolist() == [1, 2]
        assert compiled(np.array([False]), X * 3)[0].tolist() == [1, 2]


@pytest.mark.parametrize("make", [read_then_assign, setter_and_getter])
def test_writer_leaves_unassigned_variables_without_value(make: object) -> None:
    model = make()  # type: ignore[operator]  # one of the functions above
    assert loaders.load(write(model)) == model


def test_being_unassigned_is_part_of_a_model() -> None:
    model = read_then_assign()
    (variable,) = model.variables
    assert "unassigned" in model.show()
    other = Variable(variable.name, variable.dtype, variable.shape)
    assert Model(model.subgraphs, model.pools, (other,)).digest != model.digest


def test_an_unassigned_variable_has_no_value() -> None:
    variable = Variable("v", DType.INT8, (1,), value=b"\0", assigned=False)
    with pytest.raises(InvalidOperand, match="unassigned variable"):
        Model((Subgraph((), (), (), ()),), variables=(variable,))


def strings(*, is_variable: bool) -> Model:
    """A variable of strings, resource or tensor, that is read and then set."""
    file = FileBuilder()
    x, y = (file.tensor(n, [2], "STRING") for n in "xy")
    places = file.tensor("places", [2], "INT32", np.array([1, 0], np.int32))
    if is_variable:
        kept = file.tensor("kept", [2], "STRING", is_variable=True)
        file.operator("GATHER", [kept, places], [y])
        file.operator("GATHER", [x, places], [kept])
    else:
        kept, v = file.tensor("kept", [2], "STRING"), handle(file)
        file.operator("ASSIGN_VARIABLE", [v, x], [])
        file.operator("READ_VARIABLE", [v], [kept])
        file.operator("GATHER", [kept, places], [y])
    return loaders.load(file.finish([x], [y]))


@pytest.mark.parametrize(("is_variable", "first"), [(True, [b"", b""]), (False, [b"b", b"a"])])
def test_a_variable_may_hold_strings_here(is_variable: bool, first: list[bytes]) -> None:
    model = strings(is_variable=is_variable)
    with penstock.compile(model, cache=None) as compiled:
        assert compiled(["a", "b"])[0].tolist() == first
        assert compiled(["c", "d"])[0].tolist() == ([b"a", b"b"] if is_variable else [b"d", b"c"])
    with pytest.raises(NotExportable, match="holds strings"):
        write(model)
