from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock import ir, loaders
from penstock.errors import InputError, NotExportable
from penstock.export.tflite import write, writer
from penstock.ir.builder import pack
from penstock.ir.operand import Lifetime, Operand
from penstock.ir.operations import OPERATIONS
from tests.unit.loaders import files
from tests.unit.loaders.files import FileBuilder

litert = pytest.importorskip("ai_edge_litert.interpreter")

F32 = ir.DType.FLOAT32


def interpreter(content: bytes) -> Any:
    made = litert.Interpreter(
        model_content=content,
        num_threads=1,
        experimental_op_resolver_type=litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    made.allocate_tensors()
    return made


def run(made: Any, *inputs: Any) -> list[Any]:
    """One run: outputs by position."""
    for detail, value in zip(made.get_input_details(), inputs, strict=True):
        made.set_tensor(detail["index"], value)
    made.invoke()
    return [made.get_tensor(d["index"]).copy() for d in made.get_output_details()]


def addition(**arguments: Any) -> ir.Model:
    """y = relu(x + w)."""
    builder = ir.ModelBuilder()
    x = builder.input(F32, (2, 3), "x")
    w = builder.constant(np.arange(6, dtype=np.float32).reshape(2, 3) - 3, "w")
    (s,) = builder.operation("ADD", [x, w], [(F32, (2, 3))])
    (y,) = builder.operation("RELU", [s], [(F32, (2, 3))])
    return builder.build([y], **arguments)


def test_writing_no_model_is_an_input_error() -> None:
    with pytest.raises(InputError, match="NoneType"):
        write(None)  # type: ignore[arg-type]


def test_a_built_model_runs() -> None:
    x = np.ones((2, 3), np.float32)
    (y,) = run(interpreter(write(addition())), x)
    assert y.tolist() == [[0, 0, 0], [1, 2, 3]]


def test_a_built_model_reads_back_equal() -> None:
    assert loaders.load(write(addition())) == addition()


def test_equal_models_give_equal_bytes() -> None:
    assert write(addition()) == write(addition())


@pytest.mark.parametrize(
    "make", [*files.SAMPLES, lambda: files.sparse_matrix(np.eye(3, dtype=np.float32))]
)
def test_written_model_loads_equal(make: Callable[[], FileBuilder]) -> None:
    model = loaders.load(make().encode())
    again = loaders.load(write(model))
    assert again.digest == model.digest


def test_writer_omits_fields_that_the_file_omitted() -> None:
    file = FileBuilder()
    x, y = file.tensor("x", [2]), file.tensor("y", [])
    file.operator("RELU", [x], [y])
    loaded = loaders.load(file.finish([x], [y]))
    for model in (loaded, ir.infer_shapes(loaded)):
        again = loaders.load(write(model))
        assert again.outputs[0].shape == ()
        assert again.digest == loaded.digest


def test_types_quantisation_and_shapes_read_back() -> None:
    builder = ir.ModelBuilder()
    q = ir.Quantization((0.5,), (3,))
    per_channel = ir.Quantization((0.5, 0.25), (0, 0), 0)
    x = builder.input(ir.DType.INT8, (None, 4), "x", q)
    w = builder.constant(np.ones((2, 4), np.int8), "w", per_channel)
    packed = builder.constant(np.array([[1, -2], [3, 4]], np.int8), "p", per_channel, ir.DType.INT4)
    text = builder.constant(np.array([b"a", b"bc"], object), "t")
    out: list[tuple[ir.DType, ir.Shape, ir.Quantization | None]] = [
        (ir.DType.INT8, (None, 2), q),
        (ir.DType.BFLOAT16, (), None),
        (ir.DType.STRING, (0,), None),
    ]
    y = builder.operation(
        "CUSTOM", [x, w, packed, text, None], out, {"custom_code": "C", "custom_options": b"12"}
    )
    model = builder.build(y)
    again = loaders.load(write(model))
    assert again == model
    assert [o.shape for o in again.outputs] == [(None, 2), (), (0,)]


def test_constants_are_written_once_and_aligned() -> None:
    builder = ir.ModelBuilder()
    x = builder.input(F32, (100,), "x")
    w = builder.constant(np.arange(100, dtype=np.float32))
    (a,) = builder.operation("ADD", [x, w], [(F32, (100,))])
    (b,) = builder.operation("MUL", [a, w], [(F32, (100,))])
    content = write(builder.build([b]))
    data = np.arange(100, dtype=np.float32).tobytes()
    assert content.count(data) == 1
    assert content.index(data) % 16 == 0


def test_outputs_follow_inputs_where_that_is_asked() -> None:
    builder = ir.ModelBuilder()
    x, y = (builder.input(F32, (4,), name) for name in "xy")
    w = builder.constant(np.arange(4, dtype=np.float32))
    (a,) = builder.operation("ADD", [x, w], [(F32, (4,))])
    (b,) = builder.operation("MUL", [a, y], [(F32, (4,))])
    (c,) = builder.operation("SUB", [b, w], [(F32, (4,))])
    model = builder.build([c, a])
    opened = interpreter(writer.write(model, outputs_first=True))
    assert [d["index"] for d in opened.get_output_details()] == [2, 3]
    given = np.full(4, 2, np.float32)
    for found, same in zip(
        run(opened, given, given), run(interpreter(write(model)), given, given), strict=True
    ):
        assert np.array_equal(found, same)


def test_constants_beyond_the_limit_stand_behind_and_litert_finds_them() -> None:
    builder = ir.ModelBuilder()
    x = builder.input(F32, (100,), "x")
    w = builder.constant(np.arange(100, dtype=np.float32))
    (y,) = builder.operation("ADD", [x, w], [(F32, (100,))])
    model = builder.build(
        [y], metadata=ir.Metadata(entries={"note": b"n" * 500}, files={"a.txt": b"hello"})
    )
    content = writer.write(model, inline_limit=300)
    assert content.index(np.arange(100, dtype=np.float32).tobytes()) > len(write(model)) - 1200
    again = loaders.load(content)
    assert again == model
    assert again.metadata.entries == {"note": b"n" * 500}
    assert again.metadata.files == {"a.txt": b"hello"}
    (out,) = run(interpreter(content), np.ones(100, np.float32))
    assert out.tolist() == list(range(1, 101))


def test_signatures_and_metadata_read_back() -> None:
    signature = ir.Signature(0, (("in", 0),), (("out", 3),))
    metadata = ir.Metadata(
        entries={"min_runtime_version": b"1.5.0"}, files={"labels.txt": b"cat\n"}
    )
    content = write(addition(signatures={"go": signature}, metadata=metadata))
    model = loaders.load(content)
    assert [n for n, _ in model.signatures["go"].inputs] == ["in"]
    assert model.metadata.entries == metadata.entries
    assert model.metadata.files == metadata.files
    runner = interpreter(content).get_signature_runner("go")
    assert runner(**{"in": np.full((2, 3), 3, np.float32)})["out"].tolist() == [
        [0, 1, 2],
        [3, 4, 5],
    ]


def test_variables_keep_their_value_between_runs() -> None:
    content = write(loaders.load(files.accumulator().encode()))
    made, one = interpreter(content), np.ones(2, np.float32)
    assert [run(made, one)[0].tolist() for _ in range(3)] == [[2, 3], [3, 4], [4, 5]]


def test_variables_that_start_at_zero_are_initialised() -> None:
    builder = ir.ModelBuilder()
    x = builder.input(F32, (2,), "x")
    before = builder.operand(loaders.load(files.relu([2]).encode()).operands[0])
    (after,) = builder.operation("ADD", [x, before], [(F32, (2,))])
    builder.state(builder.variable("v", F32, (2,)), before, after)
    model = builder.build([after])
    content = write(model)
    assert loaders.load(content) == model
    made, one = interpreter(content), np.ones(2, np.float32)
    assert [run(made, one)[0].tolist() for _ in range(2)] == [[1, 1], [2, 2]]


def test_recurrent_state_is_a_variable_tensor() -> None:
    original = files.svdf().encode()
    content = write(loaders.load(original))
    x = np.array([[1, 2]], np.float32)
    ours, theirs = interpreter(content), interpreter(original)
    for _ in range(3):
        assert run(ours, x)[0].tolist() == run(theirs, x)[0].tolist()


def test_state_inside_a_loop() -> None:
    content = write(loaders.load(files.counting_loop().encode()))
    made = interpreter(content)
    assert [int(v) for v in run(made, np.int32(2))] == [5, 2 + 3 + 4]
    assert [int(v) for v in run(made, np.int32(2))] == [5, 2 * (2 + 3 + 4)]


def test_a_table_is_written_as_one() -> None:
    content = write(loaders.load(files.hash_table().encode()))
    made = interpreter(content)
    (found,) = run(made, np.array([7, 1], np.int64))
    assert found.tolist() == [b"ccc", b"?"]


def test_subgraphs_are_renumbered_from_the_main_one() -> None:
    model = loaders.load(files.counting_loop().encode())
    body = ir.Model(model.subgraphs, model.pools, model.variables, main=2)
    again = loaders.load(write(body))
    assert again == body
    assert len(again.subgraphs) == 1


@pytest.mark.parametrize("name", [n for n in OPERATIONS if OPERATIONS[n].vocabulary == "nnapi"])
def test_an_operation_without_a_twin_is_named(name: str) -> None:
    row = OPERATIONS[name]
    builder = ir.ModelBuilder()
    required = [p for p in row.inputs if not p.optional and not p.variadic]
    inputs = [builder.input(_some(p.types), (1, 1, 1, 1)) for p in required]
    kinds = {
        p.var: builder._operands[i].dtype for p, i in zip(required, inputs, strict=True) if p.var
    }
    outputs = [(kinds.get(p.var) or _some(p.types), None) for p in row.outputs if not p.optional]
    try:
        made = builder.operation(name, inputs, outputs, {a.name: _value(a) for a in row.attributes})
        model = builder.build(made)
    except ValueError:
        pytest.skip(f"no instance of {name} made from its row alone is valid")
    with pytest.raises(NotExportable, match=name):
        write(model)


def _some(types: frozenset[ir.DType] | None) -> ir.DType:
    if types is None or F32 in types:
        return F32
    return min(types, key=lambda t: t.value)


def _value(attribute: Any) -> Any:
    if attribute.default is not None:
        return attribute.default
    kinds = {
        "int": 0,
        "float": 0.0,
        "bool": False,
        "str": "",
        "bytes": b"",
        "ints": (),
        "floats": (),
        "subgraph": 0,
    }
    return attribute.choices[0] if attribute.kind == "enum" else kinds[attribute.kind]


def test_new_state_that_is_used_elsewhere_is_not_exportable() -> None:
    file = files.svdf()
    model = loaders.load(file.encode())
    new_state = model.operations[0].outputs[1]
    entry = model.entry
    changed = type(entry)(
        entry.operands,
        entry.operations,
        entry.inputs,
        (new_state, *entry.outputs),
        entry.states,
        entry.name,
    )
    with pytest.raises(NotExportable, match=r"operation 0 \(SVDF\)"):
        write(ir.Model((changed,), model.pools, model.variables))


def test_a_computed_table_is_not_exportable() -> None:
    builder = ir.ModelBuilder()
    keys, values = builder.input(ir.DType.INT64, (3,)), builder.input(ir.DType.INT64, (3,))
    query, default = builder.input(ir.DType.INT64, (1,)), builder.input(ir.DType.INT64, ())
    made = builder.operation(
        "HASHTABLE_FIND", [keys, values, query, default], [(ir.DType.INT64, (1,))]
    )
    with pytest.raises(NotExportable, match="HASHTABLE_FIND"):
        write(builder.build(made))


def test_packed_values_are_written_packed() -> None:
    values = np.array([1, -2, 3], np.int8)
    builder = ir.ModelBuilder()
    p = builder.constant(values, "p", ir.Quantization((1.0,), (0,)), ir.DType.INT4)
    (y,) = builder.operation("CUSTOM", [p], [(F32, (1,))], {"custom_code": "C"})
    again = loaders.load(write(builder.build([y])))
    assert again.operands[0].value == pack(values, ir.DType.INT4)[0]


def test_a_variable_without_elements_needs_no_initial_value() -> None:
    file = files.accumulator()
    for tensor in [*file.subgraphs[0]["tensors"][1:], file.subgraphs[1]["tensors"][1]]:
        tensor["shape"] = [0]
    file.subgraphs[1]["tensors"][1]["buffer"] = 0
    model = loaders.load(file.encode())
    assert loaders.load(write(model)) == model


def lstm_with_state(initial: Any) -> ir.Model:
    """An SVDF whose state starts at *initial*."""
    builder = ir.ModelBuilder()
    x = builder.input(F32, (1, 2), "x")
    feature, time = (builder.constant(np.ones(s, np.float32)) for s in ((3, 2), (3, 4)))
    state = builder.operand(Operand(F32, (1, 12), Lifetime.SUBGRAPH_INPUT, "state"))
    y, new = builder.operation(
        "SVDF", [x, feature, time, None, state], [(F32, (1, 3)), (F32, (1, 12))], {"rank": 1}
    )
    builder.state(builder.variable("state", F32, (1, 12), initial=initial), state, new)
    return builder.build([y])


def test_recurrent_state_must_start_at_zero() -> None:
    assert loaders.load(write(lstm_with_state(None))) == lstm_with_state(None)
    with pytest.raises(NotExportable, match="from zeros on"):
        write(lstm_with_state(np.ones((1, 12), np.float32)))


def test_recurrent_state_must_be_the_models_own() -> None:
    builder = ir.ModelBuilder()
    x, state = builder.input(F32, (1, 2), "x"), builder.input(F32, (1, 12), "state")
    feature, time = (builder.constant(np.ones(s, np.float32)) for s in ((3, 2), (3, 4)))
    inputs = [x, feature, time, None, state]
    y, new = builder.operation("SVDF", inputs, [(F32, (1, 3)), (F32, (1, 12))], {"rank": 1})
    with pytest.raises(NotExportable, match="SVDF"):
        write(builder.build([y, new]))
    stateless = ir.ModelBuilder()
    x, state = stateless.input(F32, (1, 2), "x"), stateless.input(F32, (1, 12), "state")
    feature, time = (stateless.constant(np.ones(s, np.float32)) for s in ((3, 2), (3, 4)))
    (y,) = stateless.operation(
        "SVDF", [x, feature, time, None, state], [(F32, (1, 3))], {"rank": 1}
    )
    with pytest.raises(NotExportable, match="0 new states"):
        write(stateless.build([y]))


def test_a_variable_of_unknown_rank_has_no_form() -> None:
    builder = ir.ModelBuilder()
    variable = builder.variable("memory", ir.DType.FLOAT32, None)
    before = builder.operand(Operand(ir.DType.FLOAT32, None, Lifetime.SUBGRAPH_INPUT, "before"))
    (after,) = builder.operation("ABS", [before], [(ir.DType.FLOAT32, None)])
    builder.state(variable, before, after)
    with pytest.raises(NotExportable, match="'memory' has no known rank"):
        write(builder.build([after]))


def test_zeros_of_unknown_size_have_no_form() -> None:
    builder = ir.ModelBuilder()
    shape = (None, 3)
    variable = builder.variable("memory", ir.DType.FLOAT32, shape)
    before = builder.operand(Operand(ir.DType.FLOAT32, shape, Lifetime.SUBGRAPH_INPUT, "before"))
    (after,) = builder.operation("ABS", [before], [(ir.DType.FLOAT32, shape)])
    builder.state(variable, before, after)
    with pytest.raises(NotExportable, match="'memory' starts at zeros of unknown size"):
        write(builder.build([]))
