from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from penstock import errors, loaders
from penstock.ir import DType, Model, StatePort
from penstock.ir.subgraph import constant_array
from tests.support_runs import assert_same_runs
from tests.unit.loaders import files


def load(file: files.FileBuilder) -> Model:
    return loaders.load(file.encode())


def types(model: Model, subgraph: int = 0) -> list[str]:
    return [o.type for o in model.subgraphs[subgraph].operations]


def test_reads_and_assigns_become_state_ports() -> None:
    model = load(files.accumulator())
    entry = model.entry
    assert types(model) == ["ADD"]
    (port,) = entry.states
    assert port.variable == 0
    assert entry.operations[0].inputs == (entry.inputs[0], port.input)
    assert entry.operations[0].outputs == (port.output,)
    assert len(model.inputs) == len(model.outputs) == 1


def test_call_once_of_constants_gives_the_initial_value() -> None:
    model = load(files.accumulator())
    (variable,) = model.variables
    assert (variable.name, variable.dtype, variable.shape) == ("total", DType.FLOAT32, (2,))
    assert constant_array(model.pools, variable).tolist() == [1, 2]


def test_zeros_as_initial_value_are_no_value() -> None:
    file = files.accumulator()
    file.buffers[-1]["data"] = bytes(8)
    assert load(file).variables[0].value is None


def test_call_once_that_computes_becomes_an_if() -> None:
    file = files.accumulator()
    seven = file.tensor("seven", [2], value=np.full(2, 7, np.float32))
    computed = file.tensor("computed", [2])
    file.graph["operators"][1]["inputs"] = [0, computed]
    file.operator("ADD", [seven, 1], [computed])
    file.graph["operators"].insert(1, file.graph["operators"].pop())
    model = load(file)
    assert types(model) == ["IF", "ADD"]
    assert [v.dtype for v in model.variables] == [DType.BOOL, DType.FLOAT32]
    assert all(v.value is None for v in model.variables)
    once, total = model.entry.states
    condition = model.entry.operations[0]
    assert condition.inputs == (once.input, total.input)
    assert once.output is not None
    assert model.constant(model.operands[once.output]).item() is True
    skip, init = (
        condition.attributes.integer(n) for n in ("then_subgraph_index", "else_subgraph_index")
    )
    assert model.subgraphs[skip].outputs == model.subgraphs[skip].inputs
    assert types(model, init) == ["ADD"]


def test_call_once_after_a_read_is_not_an_initial_value() -> None:
    file = files.accumulator()
    operators = file.subgraphs[0]["operators"]
    operators.insert(2, operators.pop(0))
    model = load(file)
    assert types(model) == ["IF", "ADD"]


def test_a_loop_carries_the_state_it_touches() -> None:
    model = load(files.counting_loop())
    loop = model.entry.operations[0]
    assert loop.type == "WHILE"
    assert len(loop.inputs) == len(loop.outputs) == 2
    cond, body = model.subgraphs[1], model.subgraphs[2]
    assert len(cond.inputs) == 2
    assert len(cond.outputs) == 1
    assert len(body.inputs) == len(body.outputs) == 2
    (port,) = model.entry.states
    assert port == StatePort(0, loop.inputs[1], loop.outputs[1])
    assert model.entry.ordinary_outputs == (loop.outputs[0], loop.outputs[1])


def test_resources_passed_into_a_subgraph_are_followed() -> None:
    file = files.counting_loop()
    main, cond, body = file.subgraphs
    main["operators"][2]["inputs"] = [1, 0]
    main["tensors"].append(dict(main["tensors"][0], name="after loop"))
    main["operators"][2]["outputs"] = [2, len(main["tensors"]) - 1]
    cond["tensors"].append(dict(main["tensors"][0], name="unused"))
    cond["inputs"].append(len(cond["tensors"]) - 1)
    del body["operators"][0]
    body["inputs"].append(3)
    body["outputs"].append(3)
    model = load(file)
    assert model == load(files.counting_loop())


def test_a_variable_tensor_becomes_a_port_and_the_operation_gives_its_new_value() -> None:
    model = load(files.svdf())
    (operation,) = model.operations
    (port,) = model.entry.states
    assert operation.inputs[4] == port.input
    assert operation.outputs[1] == port.output
    (variable,) = model.variables
    assert (variable.name, variable.shape, variable.value) == ("state", (1, 12), None)
    assert len(model.inputs) == len(model.outputs) == 1


def test_an_int8_variable_tensor_starts_at_its_zero_point() -> None:
    file = files.svdf()
    for tensor in file.graph["tensors"]:
        tensor["type"] = 9
        tensor.pop("buffer", None)
    file.graph["tensors"][4]["quantization"] = files.quantization([0.5], [-3])
    file.graph["inputs"] = [0, 2, 3]
    model = load(file)
    assert model.variables[0].value == b"\xfd" * 12


def test_initial_values_that_the_file_does_not_hold_are_bounded() -> None:
    file = files.svdf()
    for tensor in file.graph["tensors"]:
        tensor["type"] = 9
        tensor.pop("buffer", None)
    state = file.graph["tensors"][4]
    state["quantization"], state["shape"] = files.quantization([0.5], [-3]), [2**20, 2**11]
    with pytest.raises(errors.LimitExceeded, match="initial value"):
        load(file)


def test_a_variable_tensor_that_an_ordinary_operation_writes() -> None:
    file = files.FileBuilder()
    x, s, y = file.tensor("x", [2]), file.tensor("s", [2], is_variable=True), file.tensor("y", [2])
    file.operator("ADD", [x, s], [y])
    file.operator("RELU", [y], [s])
    file.end([x], [y, s])
    model = load(file)
    (port,) = model.entry.states
    add, relu = model.operations
    assert add.inputs[1] == port.input == s
    assert relu.outputs == (port.output,)
    assert model.entry.ordinary_outputs == (y, port.output)


def test_two_entries_share_a_variable() -> None:
    file = files.accumulator()
    file.begin("reader")
    handle, value = file.tensor("h", [], "RESOURCE"), file.tensor("v", [2])
    file.operator("VAR_HANDLE", [], [handle], {"container": "", "shared_name": "total"})
    file.operator("READ_VARIABLE", [handle], [value])
    file.end([], [value])
    file.root["signature_defs"] = [
        {
            "signature_key": "add",
            "subgraph_index": 0,
            "inputs": [{"name": "x", "tensor_index": 1}],
            "outputs": [],
        },
        {
            "signature_key": "read",
            "subgraph_index": 2,
            "inputs": [],
            "outputs": [{"name": "v", "tensor_index": value}],
        },
    ]
    model = load(file)
    ports = [model.subgraphs[i].states for i in (0, 2)]
    assert ports[0][1].variable == ports[1][0].variable
    assert ports[1][0].output is None
    reader = model.signatures["read"]
    assert reader.outputs == (("v", ports[1][0].input),)
    assert model.subgraphs[2].operations == ()
    # The second entry does not run CALL_ONCE first, so that the order of runs matters.
    assert types(model) == ["IF", "ADD"]


def test_a_table_of_constants_is_looked_up_without_state() -> None:
    model = load(files.hash_table())
    (find,) = model.operations
    keys, values, query, default = (model.operands[i] for i in find.inputs)
    assert model.constant(keys).tolist() == [5, 6, 7]
    assert model.constant(values).tolist() == [b"a", b"bb", b"ccc"]
    assert query.name == "query"
    assert model.constant(default).item() == b"?"
    assert not model.variables


def test_a_table_without_an_importer_is_named() -> None:
    file = files.hash_table()
    del file.graph["operators"][1]
    with pytest.raises(errors.InvalidOperation, match="HASHTABLE"):
        load(file)


def unknown_handle(file: files.FileBuilder) -> None:
    del file.subgraphs[0]["operators"][1]


def two_dtypes(file: files.FileBuilder) -> None:
    file.graph["tensors"][1].update(type=2)


def read_twice_into_one(file: files.FileBuilder) -> None:
    operators = file.subgraphs[0]["operators"]
    operators.insert(3, operators[2])


def read_into_an_input(file: files.FileBuilder) -> None:
    file.subgraphs[0]["operators"][2]["outputs"] = [1]


def other_quantisation(file: files.FileBuilder) -> None:
    file.subgraphs[0]["operators"].append(dict(file.subgraphs[0]["operators"][2], outputs=[4]))
    file.subgraphs[0]["tensors"].append(
        {"name": "again", "shape": [2], "type": 0, "quantization": files.quantization([0.5])}
    )


def init_with_inputs(file: files.FileBuilder) -> None:
    file.graph["inputs"] = [1]


def assign_without_value(file: files.FileBuilder) -> None:
    file.graph["operators"][1]["inputs"] = [0]


def init_enters_itself(file: files.FileBuilder) -> None:
    file.operator("CALL_ONCE", [], [], {"init_subgraph_index": 1})


@pytest.mark.parametrize(("change", "error"), [
    (unknown_handle, errors.InvalidOperation),
    (two_dtypes, errors.InvalidOperand),
    (read_twice_into_one, errors.DuplicateWriter),
    (read_into_an_input, errors.DuplicateWriter),
    (other_quantisation, errors.InvalidQuantization),
    (init_with_inputs, errors.InvalidOperation),
    (assign_without_value, errors.InvalidOperation),
    (init_enters_itself, errors.CyclicModel),
])  # fmt: skip
def test_broken_variables_are_named(
    change: Callable[[files.FileBuilder], None], error: type[errors.ModelError]
) -> None:
    file = files.accumulator()
    change(file)
    with pytest.raises(error, match="subgraph"):
        load(file)


def test_a_condition_that_changes_state_is_named() -> None:
    file = files.counting_loop()
    handle = file.subgraphs[2]["tensors"][3]
    cond = file.subgraphs[1]
    cond["tensors"].append(handle)
    cond["operators"] += [file.subgraphs[0]["operators"][0] | {"outputs": [3]}]
    cond["operators"] += [file.subgraphs[2]["operators"][3] | {"inputs": [3, 0]}]
    with pytest.raises(errors.InvalidOperation, match="condition of a loop"):
        load(file)


def test_a_resource_without_a_maker_is_named() -> None:
    file = files.FileBuilder()
    handle, value = file.tensor("h", [], "RESOURCE"), file.tensor("v", [2])
    file.operator("READ_VARIABLE", [handle], [value])
    with pytest.raises(errors.InvalidOperation, match="VAR_HANDLE"):
        loaders.load(file.finish([handle], [value]))


def basic_lstm() -> files.FileBuilder:
    file = files.FileBuilder()
    x = file.tensor("x", [1, 2])
    activation = file.tensor("activation", [1, 3], is_variable=True)
    weights = file.tensor("weights", [12, 5], value=np.ones((12, 5), np.float32))
    bias = file.tensor("bias", [12], value=np.zeros(12, np.float32))
    cell = file.tensor("cell", [1, 3], is_variable=True)
    outputs = [
        file.tensor(n, [1, s]) for n, s in (("out", 3), ("state", 3), ("joined", 5), ("gates", 12))
    ]
    file.operator(
        "LSTM",
        [x, activation, weights, bias, cell],
        outputs,
        {"kernel_type": 1, "fused_activation_function": 4},
    )
    file.end([x], outputs[:1])
    return file


def test_a_basic_lstm_changes_its_activation_and_its_cell() -> None:
    model = load(basic_lstm())
    (lstm,) = model.operations
    activation, cell = model.entry.states
    assert (lstm.inputs[1], lstm.inputs[4]) == (activation.input, cell.input)
    assert lstm.outputs[4:] == (activation.output, cell.output)


def test_inputs_that_a_custom_operator_changes_are_state() -> None:
    file = files.FileBuilder()
    x, s, y = file.tensor("x", [1]), file.tensor("s", [4], is_variable=True), file.tensor("y", [1])
    file.operator("CUSTOM:step", [x, s], [y], mutating_variable_inputs=[False, True])
    model = loaders.load(file.finish([x], [y]))
    (port,) = model.entry.states
    assert model.operations[0].outputs == (y, port.output)


def test_the_signature_of_a_model_leaves_resources_out() -> None:
    file = files.accumulator()
    inputs = [{"name": "x", "tensor_index": 1}, {"name": "h", "tensor_index": 0}]
    file.root["signature_defs"] = [{"signature_key": "go", "inputs": inputs, "outputs": []}]
    assert [n for n, _ in load(file).signatures["go"].inputs] == ["x"]


def test_one_table_may_be_asked_twice() -> None:
    file = files.hash_table()
    size = file.tensor("size", [1], "INT64")
    file.operator("HASHTABLE_SIZE", [0], [size])
    model = load(file)
    find, count = model.operations
    assert count.inputs == find.inputs[:1]


def test_state_that_too_many_branches_would_carry_is_refused() -> None:
    file = files.FileBuilder()
    c = file.tensor("c", [1], "BOOL")
    for _ in range(150):
        file.operator("IF", [c], [], {"then_subgraph_index": 1, "else_subgraph_index": 1})
    file.end([c], [])
    file.begin()
    for index in range(150):
        handle, value = file.tensor("h", [], "RESOURCE"), file.tensor("v", [1])
        file.operator("VAR_HANDLE", [], [handle], {"container": "", "shared_name": str(index)})
        file.operator("READ_VARIABLE", [handle], [value])
    file.end([], [])
    with pytest.raises(errors.LimitExceeded, match="values of state"):
        load(file)


def test_state_that_spreads_too_far_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.loaders.tflite.calls.MAX_PASSES", 1)
    with pytest.raises(errors.LimitExceeded, match="levels"):
        load(files.counting_loop())


def second_initialiser(file: files.FileBuilder) -> int:
    file.subgraphs.append(dict(file.subgraphs[1], name="second"))
    file.subgraphs[0]["operators"].insert(
        1, file.subgraphs[0]["operators"][0] | {"builtin_options": {"init_subgraph_index": 2}}
    )
    return 2


def test_two_initialisers_of_one_variable_run_in_order() -> None:
    file = files.accumulator()
    second_initialiser(file)
    model = load(file)
    assert types(model) == ["IF", "IF", "ADD"]
    assert len(model.variables) == 3


def branch(file: files.FileBuilder, target: int) -> None:
    """Adds IF over subgraph *target* to the main subgraph."""
    main = file.subgraphs[0]
    condition = len(main["tensors"])
    main["tensors"].append({"name": "c", "shape": [1], "type": 6})
    main["inputs"].append(condition)
    current, file.subgraphs[-1:] = file.subgraphs[-1], [main]
    file.operator(
        "IF", [condition], [], {"then_subgraph_index": target, "else_subgraph_index": target}
    )
    file.subgraphs[-1] = current


def main_entered_by_another(file: files.FileBuilder) -> None:
    file.subgraphs[0]["operators"].pop(0)
    file.subgraphs[0]["inputs"], file.subgraphs[0]["outputs"] = [], []
    file.subgraphs[0]["tensors"][1]["is_variable"] = True
    file.operator("CALL_ONCE", [], [], {"init_subgraph_index": 0})


def initialiser_as_branch(file: files.FileBuilder) -> None:
    branch(file, 1)


def call_once_with_inputs(file: files.FileBuilder) -> None:
    file.subgraphs[0]["operators"][0]["inputs"] = [1]


def state_in_a_composite(file: files.FileBuilder) -> None:
    options = {"name": "c", "decomposition_subgraph_index": 0}
    file.begin()
    x, y = file.tensor("x", [2]), file.tensor("y", [2])
    file.operator("STABLEHLO_COMPOSITE", [x], [y], options)
    file.end([x], [y])


def written_after_it_was_read_into(file: files.FileBuilder) -> None:
    file.subgraphs[0]["operators"].insert(
        3, {"opcode_index": file.code("RELU"), "inputs": [1], "outputs": [2]}
    )


@pytest.mark.parametrize(("change", "error"), [
    (main_entered_by_another, errors.InvalidOperation),
    (initialiser_as_branch, errors.InvalidOperation),
    (call_once_with_inputs, errors.InvalidOperation),
    (state_in_a_composite, errors.InvalidOperation),
    (written_after_it_was_read_into, errors.DuplicateWriter),
])  # fmt: skip
def test_state_that_cannot_be_lowered_is_named(
    change: Callable[[files.FileBuilder], None], error: type[errors.ModelError]
) -> None:
    file = files.accumulator()
    change(file)
    with pytest.raises(error, match="subgraph"):
        load(file)


def test_an_int8_variable_tensor_of_open_signature_starts_at_its_zero_point() -> None:
    file = files.svdf()
    for tensor in file.graph["tensors"]:
        tensor["type"] = 9
        tensor.pop("buffer", None)
    state = file.graph["tensors"][4]
    file.graph["inputs"] = [0, 2, 3]
    state["quantization"], state["shape_signature"] = files.quantization([0.5], [-3]), [-1, 12]
    assert load(file).variables[0].value == bytes([256 - 3]) * 12


def test_branches_take_and_give_their_variables_in_one_order() -> None:
    file = files.FileBuilder()
    c, x, y = file.tensor("c", [], "BOOL"), file.tensor("x", [2]), file.tensor("y", [2])
    file.operator("IF", [c, x], [y], {"then_subgraph_index": 1, "else_subgraph_index": 2})
    file.end([c, x], [y])
    for names in (("a", "b"), ("b", "a")):
        file.begin()
        x, y = file.tensor("x", [2]), file.tensor("y", [2])
        for name in names:
            handle = file.tensor(name, [], "RESOURCE")
            file.operator("VAR_HANDLE", [], [handle], {"container": "", "shared_name": name})
            file.operator("ASSIGN_VARIABLE", [handle, x], [])
        file.operator("NEG", [x], [y])
        file.end([x], [y])
    file.subgraphs[1]["operators"][3]["inputs"][1] = file.subgraphs[1]["outputs"][0]
    file.subgraphs[1]["operators"].insert(0, file.subgraphs[1]["operators"].pop())
    model = load(file)
    assert [v.name for v in model.variables] == ["a", "b"]
    then, otherwise = model.subgraphs[1:3]
    # The then branch gives x to a and -x to b, the other one x to both.
    x, negated = then.inputs[0], then.outputs[0]
    assert then.outputs == (negated, x, negated)
    assert otherwise.outputs[1:] == (otherwise.inputs[0],) * 2


def test_composite_passes_state_through() -> None:
    file = files.accumulator()
    file.subgraphs.insert(0, {"tensors": [], "operators": [], "name": "main"})
    for subgraph in file.subgraphs[1:]:
        for operator in subgraph["operators"]:
            if "init_subgraph_index" in operator.get("builtin_options", {}):
                operator["builtin_options"]["init_subgraph_index"] = 2
    main = file.subgraphs.pop(0)
    file.subgraphs.append(main)
    x, y = file.tensor("x", [2]), file.tensor("y", [2])
    options = {"name": "sum", "decomposition_subgraph_index": 1, "version": 1}
    file.operator("STABLEHLO_COMPOSITE", [x], [y], options)
    file.end([x], [y])
    file.subgraphs.insert(0, file.subgraphs.pop())
    model = load(file)
    (composite,) = model.operations
    ports = model.entry.states
    assert {model.variables[p.variable].dtype for p in ports} == {DType.FLOAT32, DType.BOOL}
    assert composite.inputs[1:] == tuple(p.input for p in ports)
    assert composite.outputs[1:] == tuple(p.output for p in ports)
    assert [o.type for o in model.subgraphs[1].operations] == ["IF", "ADD"]


def with_open_state(kind: str) -> files.FileBuilder:
    """One operator with its state in a variable tensor whose `shape_signature` leaves the batch
    open.
    """
    file = files.svdf() if kind == "SVDF" else files.FileBuilder()
    if kind == "SVDF":
        file.graph["tensors"][-1]["shape_signature"] = [-1, 12]
    elif kind == "ADD":
        x, y = file.tensor("x", [1, 2]), file.tensor("y", [1, 2])
        state = file.tensor("state", [1, 2], is_variable=True, shape_signature=[-1, 2])
        file.operator("ADD", [x, state], [y], {})
        file.end([x], [y])
    else:
        x, y = file.tensor("x", [1, 3, 2]), file.tensor("y", [1, 3, 4])
        weights = file.tensor("weights", [4, 2], value=np.ones((4, 2), np.float32))
        recurrent = file.tensor("recurrent", [4, 4], value=np.eye(4, dtype=np.float32))
        bias = file.tensor("bias", [4], value=np.zeros(4, np.float32))
        state = file.tensor("state", [1, 4], is_variable=True, shape_signature=[-1, 4])
        file.operator(kind, [x, weights, recurrent, bias, state], [y], {})
        file.end([x], [y])
    return file


@pytest.mark.parametrize("kind", ["SVDF", "ADD", "UNIDIRECTIONAL_SEQUENCE_RNN"])
def test_variable_tensor_of_open_batch_has_batch_1(kind: str) -> None:
    (variable,) = load(with_open_state(kind)).variables
    assert variable.shape is not None
    assert variable.shape[0] == 1
    content = with_open_state(kind).encode()
    size = (1, 3, 2) if kind == "UNIDIRECTIONAL_SEQUENCE_RNN" else (1, 2)
    runs = [[np.full(size, at + 1, np.float32)] for at in range(3)]
    assert_same_runs(content, runs)
