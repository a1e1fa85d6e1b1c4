"""ONNX files that nobody vouches for: refused by name, in little memory and time."""

from __future__ import annotations

import io
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import errors, knobs
from penstock.ir import DType
from penstock.loaders.onnx import engine
from tests.soak.onnx_mutation import mutate, samples, trial
from tests.support_onnx import Const, helper, model_of, one_node, onnx, tensor

X = np.zeros((2, 3), np.float32)
COUNT = 500
MIB = 1 << 20


def relu(inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return helper.make_node("Relu", inputs, outputs, name="act", **attributes)


def simple() -> Any:
    return model_of([relu(["x"], ["y"])], {"x": X}, ["y"])


def load(model: Any) -> penstock.Model:
    return penstock.load(model.SerializeToString())


def test_path_bytes_file_and_map_give_one_model(tmp_path: Path) -> None:
    content = simple().SerializeToString()
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    digests = {
        penstock.load(source, **options).digest
        for source, options in (
            (path, {}), (path, {"map": True}), (content, {}), (io.BytesIO(content), {}),
                (memoryview(content), {}),
        )
    }  # fmt: skip
    assert len(digests) == 1


def test_dimensions_of_symbols_are_unknown() -> None:
    model = load(model_of([relu(["x"], ["y"])], {"x": X}, ["y"], unknown=True))
    assert model.inputs[0].shape == (None, 3)
    assert model.outputs[0].shape == (None, 3)
    assert model.inputs[0].dtype is DType.FLOAT32


def with_fields(**fields: Any) -> Any:
    model = simple()
    for name, value in fields.items():
        setattr(model, name, value)
    return model


def huge_tensor() -> Any:
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], {"x": X}, ["y"], {"w": X})
    model.graph.initializer[0].dims[:] = [1 << 40, 1 << 20]
    return model


def negative_tensor() -> Any:
    model = huge_tensor()
    model.graph.initializer[0].dims[:] = [-2, 3]
    return model


def short_tensor() -> Any:
    model = huge_tensor()
    model.graph.initializer[0].dims[:] = [2, 4]
    return model


def listed_tensor() -> Any:
    model = huge_tensor()
    model.graph.initializer[0].CopyFrom(
        onnx.TensorProto(name="w", dims=[1 << 40], data_type=1, float_data=[1.0])
    )
    return model


def unknown_type() -> Any:
    model = huge_tensor()
    model.graph.initializer[0].data_type = 23
    return model


def external() -> Any:
    model = huge_tensor()
    weight = model.graph.initializer[0]
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="/etc/passwd")
    return model


def filled(*dims: int) -> Any:
    fill = helper.make_node(
        "ConstantOfShape", ["s"], ["w"], value=tensor("v", np.ones(1, np.float32))
    )
    nodes = [fill, helper.make_node("Identity", ["w"], ["y"])]
    return model_of(nodes, {"x": X}, ["y"], {"s": np.array(dims, np.int64)})


def cycle() -> Any:
    return model_of([relu(["b"], ["a"]), relu(["a"], ["b"])], {"x": X}, ["b"])


def nested(depth: int) -> Any:
    """If within If, the innermost *depth* graphs inside the main one."""

    def leaf() -> Any:
        return helper.make_graph([relu(["x"], ["r"])], "g", [], [onnx.ValueInfoProto(name="r")])

    inner = leaf()
    for _ in range(depth - 1):
        branch = helper.make_node("If", ["c"], ["r"], then_branch=inner, else_branch=leaf())
        inner = helper.make_graph([branch], "g", [], [onnx.ValueInfoProto(name="r")])
    outer = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=leaf())
    return model_of([outer], {"x": X, "c": np.array(True)}, ["y"])


def uneven(then: list[str], other: list[str]) -> Any:
    """An If whose branches have those outputs."""
    branches = [
        helper.make_graph(
            [relu(["x"], ["a"]), relu(["x"], ["b"])],
            "g",
            [],
            [onnx.ValueInfoProto(name=n) for n in names],
        )
        for names in (then, other)
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    return model_of([node], {"x": X, "c": np.array(True)}, ["y"])


def calls_itself() -> Any:
    call = [
        helper.make_node("Own", ["a"], ["b"], domain="own"),
        helper.make_node("Own", ["b"], ["c"], domain="own"),
    ]
    function = helper.make_function(
        "own", "Own", ["a"], ["c"], call, [helper.make_opsetid("own", 1)]
    )
    node = helper.make_node("Own", ["x"], ["y"], domain="own")
    return model_of([node], {"x": X}, ["y"], functions=[function], domains={"own": 1})


def nested_loops(depth: int) -> Any:
    def body(level: int) -> Any:
        inner = (
            helper.make_node("Loop", ["m", "", f"s{level}"], [f"t{level}"], body=body(level + 1))
            if level < depth
            else relu([f"s{level}"], [f"t{level}"])
        )
        nodes = [inner, helper.make_node("Identity", [f"g{level}"], [f"o{level}"])]
        given = [
            helper.make_tensor_value_info(f"i{level}", 7, []),
            helper.make_tensor_value_info(f"g{level}", 9, []),
            helper.make_tensor_value_info(f"s{level}", 1, [2, 3]),
        ]
        return helper.make_graph(
            nodes,
            "b",
            given,
            [onnx.ValueInfoProto(name=f"o{level}"), onnx.ValueInfoProto(name=f"t{level}")],
        )

    node = helper.make_node("Loop", ["m", "", "x"], ["y"], body=body(0))
    return model_of([node], {"x": X, "m": np.array(2)}, ["y"])


def attacks() -> list[Any]:
    twice = model_of([relu(["x"], ["y"]), relu(["x"], ["y"])], {"x": X}, ["y"])
    over_input = model_of([relu(["x"], ["x"])], {"x": X}, ["x"])
    missing = model_of([relu(["z"], ["y"])], {"x": X}, ["y"])
    no_output = model_of([relu(["x"], ["y"])], {"x": X}, ["q"])
    strange = model_of([helper.make_node("Frobnicate", ["x"], ["y"], name="odd")], {"x": X}, ["y"])
    foreign = model_of(
        [helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")],
        {"x": X},
        ["y"],
        domains={"com.microsoft": 1},
    )
    wrong_kind = one_node("Softmax", [X], {"axis": 1.5})[0]
    far_axis = one_node("Softmax", [X], {"axis": 9})[0]
    no_input = model_of([relu([""], ["y"])], {"x": X}, ["y"])
    old = model_of([relu(["x"], ["y"])], {"x": X}, ["y"], opset=5)
    unranked = simple()
    unranked.graph.input[0].type.tensor_type.ClearField("shape")
    unranked.graph.node[0].op_type = "Transpose"
    sequence = simple()
    sequence.graph.input[0].type.Clear()
    sequence.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = 1
    huge_pads = one_node("Pad", [X, Const([1 << 40, 0, 0, 0], np.int64)], {"mode": "edge"})[0]
    huge_window = one_node(
        "AveragePool",
        [np.zeros((1, 1, 9, 9), np.float32)],
        {"kernel_shape": [1 << 30, 1], "pads": [1 << 30, 0, 1 << 30, 0]},
    )[0]
    huge_holes = one_node(
        "ConvTranspose",
        [np.zeros((1, 1, 4, 4), np.float32), Const(np.zeros((1, 1, 2, 2), np.float32))],
        {"dilations": [1 << 30, 1]},
    )[0]
    huge_resize = one_node(
        "Resize",
        [np.zeros((1, 1, 4, 4), np.float32), None, None, Const([1, 1, 1 << 40, 4], np.int64)],
        {},
    )[0]
    return [
        pytest.param(with_fields(), None, id="nothing is wrong"),
        pytest.param(huge_tensor(), errors.InvalidOperand, id="a tensor of 2**60 elements"),
        pytest.param(negative_tensor(), errors.ShapeOverflow, id="a tensor of negative size"),
        pytest.param(short_tensor(), errors.InvalidOperand, id="a tensor with too few bytes"),
        pytest.param(listed_tensor(), errors.InvalidOperand, id="a tensor with too few numbers"),
        pytest.param(unknown_type(), errors.UnknownType, id="a tensor of an unknown type"),
        pytest.param(external(), errors.NotLowerable, id="a tensor in another file"),
        pytest.param(filled(1 << 20, 1 << 20), errors.LimitExceeded, id="a filled tensor of 4 TiB"),
        pytest.param(
            filled(1 << 40, 1 << 40), (errors.ModelError,), id="a filled tensor of 2**80 elements"
        ),
        pytest.param(filled(-5), (errors.ModelError,), id="a filled tensor of negative size"),
        pytest.param(cycle(), errors.CyclicModel, id="a cycle"),
        pytest.param(twice, errors.DuplicateWriter, id="two writers"),
        pytest.param(over_input, errors.DuplicateWriter, id="an input is written"),
        pytest.param(missing, errors.UnwrittenOperand, id="an unwritten input"),
        pytest.param(no_output, errors.UnwrittenOperand, id="an unwritten output"),
        pytest.param(strange, errors.UnknownOperator, id="an unknown operator"),
        pytest.param(foreign, errors.UnknownOperator, id="an operator of an unknown domain"),
        pytest.param(wrong_kind, errors.InvalidAttribute, id="an attribute of another kind"),
        pytest.param(far_axis, errors.ShapeMismatch, id="an axis outside"),
        pytest.param(no_input, errors.InvalidOperation, id="an input left out"),
        pytest.param(old, errors.NotLowerable, id="an opset too old"),
        pytest.param(unranked, errors.NotLowerable, id="an input of unknown rank"),
        pytest.param(sequence, errors.NotLowerable, id="an input that is a sequence"),
        pytest.param(nested(32), None, id="branches as deep as ONNX Runtime reads them"),
        pytest.param(nested(33), errors.LimitExceeded, id="branches one deeper"),
        pytest.param(
            uneven(["a", "b"], ["a"]), errors.InvalidOperation, id="a branch with one output more"
        ),
        pytest.param(uneven([], ["a"]), errors.InvalidOperation, id="a branch without outputs"),
        pytest.param(calls_itself(), errors.LimitExceeded, id="a function that calls itself"),
        pytest.param(nested_loops(30), None, id="loops 30 deep"),
        pytest.param(huge_pads, (errors.ModelError,), id="pads of 2**40"),
        pytest.param(huge_window, (errors.ModelError,), id="a window of 2**30"),
        pytest.param(huge_holes, (errors.ModelError,), id="a dilation of 2**30"),
        pytest.param(huge_resize, (errors.ModelError,), id="a picture of 2**40 rows"),
    ]


@pytest.mark.parametrize(("model", "error"), attacks())
def test_malformed_files_are_refused_by_class(model: Any, error: Any) -> None:
    content = model.SerializeToString()
    tracemalloc.start()
    try:
        if error is None:
            penstock.load(content)
        else:
            with pytest.raises(error) as caught:
                penstock.load(content)
            assert isinstance(caught.value, errors.ModelError)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * MIB


def test_an_unknown_operator_is_named_with_its_node() -> None:
    strange = model_of([helper.make_node("Frobnicate", ["x"], ["y"], name="odd")], {"x": X}, ["y"])
    with pytest.raises(
        errors.UnknownOperator,
        match=r"node 0 'odd' \(ai.onnx.Frobnicate, opset 17\): .*'Frobnicate'",
    ):
        load(strange)


def test_a_refused_form_is_named_with_its_node() -> None:
    model = one_node(
        "StringNormalizer", [np.array(["a"], object)], {"case_change_action": "LOWER"}
    )[0]
    with pytest.raises(errors.NotLowerable, match=r"the_StringNormalizer.*a change of case"):
        load(model)


def test_bytes_that_are_no_model() -> None:
    content = simple().SerializeToString()
    with pytest.raises(errors.NotAModel, match="ONNX"):
        penstock.load(b"\xff" * 50)
    with pytest.raises((errors.TruncatedModel, errors.NotAModel)):
        penstock.load(content[: len(content) // 2])
    with pytest.raises(errors.NotAModel, match=r"no graph|none of the known formats"):
        penstock.load(onnx.ModelProto(ir_version=8).SerializeToString())
    empty = simple()
    del empty.opset_import[:]
    with pytest.raises(errors.NotAModel, match="opset"):
        load(empty)


def test_many_empty_messages_are_refused_before_they_are_made() -> None:
    # 200,000 nodes of two bytes each: the parser would make an object of each.
    graph = b"\x0a\x00" * 200_000
    length = len(graph)
    varint = bytes([length & 127 | 128, length >> 7 & 127 | 128, length >> 14])
    content = b"\x08\x08" + b"\x3a" + varint + graph
    with pytest.raises(errors.LimitExceeded, match="the knob loading_limit_mib allows more"):
        penstock.load(content)


def test_nodes_of_a_few_bytes_are_counted_for_what_becomes_of_them() -> None:
    """Each of 25 bytes: the memory and time that they would take is refused before it is spent,
    unless it is asked for.
    """
    count = 40_000
    nodes = [helper.make_node("Relu", [f"t{k}"], [f"t{k + 1}"]) for k in range(count)]
    model = model_of(nodes, {"t0": X}, [f"t{count}"]).SerializeToString()
    tracemalloc.start()
    try:
        with pytest.raises(
            errors.LimitExceeded, match="more than 64 MiB: the knob loading_limit_mib"
        ):
            penstock.load(model)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()
    with knobs.override(loading_limit_mib=200):
        assert len(penstock.load(model).operations) == count


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [("DepthToSpace", {"blocksize": 0, "mode": "CRD"}), ("Split", {"num_outputs": 0})],
)
def test_division_by_an_attribute_of_zero_is_a_named_error(
    kind: str, attributes: dict[str, Any]
) -> None:
    node = helper.make_node(kind, ["x"], ["y"], **attributes)
    with pytest.raises(errors.InvalidOperation, match="the node is malformed"):
        load(model_of([node], {"x": np.zeros((1, 4, 2, 2), np.float32)}, ["y"]))


def loaded_peak(model: Any) -> int:
    """The most bytes that loading *model* holds at a time."""
    content = model.SerializeToString()
    tracemalloc.start()
    try:
        penstock.load(content)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_gathering_from_a_repeated_element_does_not_allocate_its_repetitions() -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
        helper.make_node("Gather", ["zeros", "first"], ["taken"]),
        helper.make_node("Add", ["x", "taken"], ["y"]),
    ]
    constants = {"size": np.array([1 << 40]), "first": np.array([0])}
    assert loaded_peak(model_of(nodes, {"x": np.zeros(1, np.float32)}, ["y"], constants)) < 8 * MIB


def constant_of(value: Any) -> Any:
    """The output of a model that only gives the tensor *value*, named c."""
    model = model_of([helper.make_node("Identity", ["c"], ["y"])], {"x": X}, ["y"])
    model.graph.initializer.add().CopyFrom(value)
    loaded = load(model)
    return loaded.constant(loaded.entry.operands[loaded.entry.outputs[0]])


@pytest.mark.parametrize("fields", [{"float_data": [1.5]}, {"raw_data": b"\0\0\xc0\x3f"}])
def test_segment_of_a_tensor_is_ignored(fields: dict[str, Any]) -> None:
    value = onnx.TensorProto(name="c", data_type=1, dims=[1], **fields)
    value.segment.begin, value.segment.end = 0, 1
    assert constant_of(value).tolist() == [1.5]


def test_listed_boolean_other_than_0_is_1_in_memory() -> None:
    value = onnx.TensorProto(name="c", data_type=9, dims=[4], int32_data=[0, 1, 5, 256])
    assert constant_of(value).tobytes() == bytes([0, 1, 1, 1])


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("Range", {"a": np.array(0), "b": np.array(1 << 24), "c": np.array(1)}),
        ("Expand", {"a": np.array([1, 2]), "b": np.array([1 << 23, 2])}),
    ],
    ids=["Range", "Expand"],
)
def test_large_range_and_expand_are_left_to_devices(kind: str, inputs: dict[str, Any]) -> None:
    nodes = [
        helper.make_node(kind, list(inputs), ["made"]),
        helper.make_node("ReduceMax", ["made"], ["most"], keepdims=0),
        helper.make_node("Add", ["x", "most"], ["y"]),
    ]
    model = model_of(nodes, {"x": np.array(1)}, ["y"], inputs)
    assert loaded_peak(model) < 8 * MIB


def test_folded_results_stay_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DENSIFY_LIMIT_MIB", "4")
    many = [helper.make_node("Neg", ["c"], [f"c{i}"]) for i in range(200)]
    nodes = [*many, helper.make_node("Sum", ["x", *(f"c{i}" for i in range(200))], ["y"])]
    constants = {"c": np.arange(1 << 16, dtype=np.float32)}
    model = model_of(nodes, {"x": np.zeros(1 << 16, np.float32)}, ["y"], constants)
    assert loaded_peak(model) < 24 * MIB


def test_functions_that_call_each_other_twice_are_bounded() -> None:
    """30 functions of two calls each would be a thousand million nodes."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]

    def function(at: int) -> Any:
        calls = [
            helper.make_node(f"f{at - 1}" if at else "Relu", [a], [b], domain="local" * bool(at))
            for a, b in (("a", "c"), ("c", "b"))
        ]
        return helper.make_function("local", f"f{at}", ["a"], ["b"], calls, imports)

    call = helper.make_node("f29", ["x"], ["y"], domain="local")
    functions = [function(at) for at in range(30)]
    model = model_of([call], {"x": X}, ["y"], functions=functions, domains={"local": 1})
    with pytest.raises(errors.LimitExceeded, match="bodies and functions are entered too often"):
        load(model)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(errors.NotAvailable, match=r"penstock-nn\[onnx\]"):
        load(simple())
    assert "penstock-nn[onnx]" in engine.MISSING


def test_the_package_is_loaded_for_onnx_files_only() -> None:
    code = "import sys, penstock, penstock.loaders; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_damaged_files_load_or_are_refused_by_name() -> None:
    seeds = samples()
    outcomes = Counter(trial(mutate(seeds, seed)) for seed in range(COUNT))
    assert outcomes.total() == COUNT
    assert len(outcomes) > 10
    assert sum(n for o, n in outcomes.items() if o.startswith("loads")) > 0.05 * COUNT


def test_mutations_are_reproducible() -> None:
    seeds = samples()
    assert [mutate(seeds, n) for n in range(50)] == [mutate(seeds, n) for n in range(50)]
