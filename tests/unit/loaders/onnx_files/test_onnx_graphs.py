"""Graphs of several nodes: control flow, sequences, functions, layouts, shapes followed before
running.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import NotLowerable
from penstock.ir import NDArray
from penstock.memory import sealed_file
from tests.support_onnx import ML, check, declared, helper, judged, model_of, ours, tensor

F = np.float32
RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Every test draws the same numbers, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(3).bit_generator.state


def f(*shape: int) -> NDArray:
    return RNG.uniform(-2, 2, shape).astype(F)


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return helper.make_node(op, inputs, outputs, name=f"n_{outputs[0]}", **attributes)


def graph(
    nodes: list[Any], outputs: dict[str, NDArray], inputs: dict[str, NDArray] | None = None
) -> Any:
    given = [declared(n, a) for n, a in (inputs or {}).items()]
    return helper.make_graph(nodes, "inner", given, [declared(n, a) for n, a in outputs.items()])


def operations(model: Any) -> Counter[str]:
    loaded = penstock.load(model.SerializeToString())
    return Counter(o.type for s in loaded.subgraphs for o in s.operations)


def test_a_chain_of_convolutions_is_transposed_at_its_ends_only() -> None:
    weights = {f"w{i}": f(4, 4, 3, 3) for i in range(3)} | {
        "s": f(4),
        "b": f(4),
        "m": f(4),
        "v": abs(f(4)) + 1,
    }
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("Conv", ["r", "w1"], ["c"], pads=[1, 1, 1, 1]),
        node("Add", ["c", "r"], ["d"]),
        node("MaxPool", ["d"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Concat", ["p", "p"], ["j"], axis=1),
        node("Split", ["j"], ["k", "l"], axis=1),
        node("Softmax", ["k"], ["o"], axis=1),
        node("Conv", ["o", "w2"], ["q"], pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["q"], ["g"]),
        node("Pad", ["l", "pads"], ["z"]),
        node("Sub", ["z", "g"], ["y"]),
    ]
    model = model_of(
        nodes, {"x": f(1, 4, 8, 8)}, ["y"], weights | {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    )
    check(model, {"x": f(1, 4, 8, 8)})
    assert operations(model)["TRANSPOSE"] == 2


def test_transposes_of_the_file_cancel() -> None:
    nodes = [
        node("Transpose", ["x"], ["a"], perm=[0, 3, 1, 2]),
        node("Conv", ["a", "w"], ["b"]),
        node("Transpose", ["b"], ["y"], perm=[0, 2, 3, 1]),
    ]
    model = model_of(nodes, {"x": f(1, 6, 6, 3)}, ["y"], {"w": f(2, 3, 3, 3)})
    check(model, {"x": f(1, 6, 6, 3)})
    assert operations(model) == {"CONV_2D": 1}


def test_shapes_are_followed_with_the_batch_unknown() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Unsqueeze", ["n", "axis"], ["u"]),
        node("Concat", ["u", "rest"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["r"]),
        node("MatMul", ["r", "w"], ["y"]),
    ]
    constants = {"zero": np.array(0), "axis": np.array([0]), "rest": np.array([12]), "w": f(12, 5)}
    model = model_of(nodes, {"x": f(2, 3, 4)}, ["y"], constants, unknown=True)
    assert operations(model) == {"RESHAPE": 1, "FULLY_CONNECTED": 1}
    for batch in (1, 5):
        check(model, {"x": f(batch, 3, 4)})


def test_arithmetic_on_shapes_leaves_only_the_batch_unknown() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Mul", ["s", "factors"], ["t"]),
        node("Gather", ["t", "last"], ["n"]),
        node("Reshape", ["x", "n"], ["y"]),
    ]
    constants = {"factors": np.array([1, 5, 3]), "last": np.array([0, 2])}
    model = model_of(nodes, {"x": f(2, 3, 4)}, ["y"], constants, unknown=True)
    assert penstock.load(model.SerializeToString()).outputs[0].shape == (None, 12)
    assert operations(model) == {"RESHAPE": 1}
    check(model, {"x": f(5, 3, 4)})


def test_an_input_that_is_an_output_twice_over() -> None:
    nodes = [
        node("Identity", ["x"], ["y"]),
        node("Relu", ["x"], ["z"]),
        node("Identity", ["z"], ["w"]),
    ]
    check(model_of(nodes, {"x": f(2, 3)}, ["y", "z", "w"]), {"x": f(2, 3)})


def test_constants_are_outputs() -> None:
    nodes = [node("Constant", [], ["y"], value=tensor("t", f(3))), node("Shape", ["x"], ["z"])]
    check(model_of(nodes, {"x": f(2, 3)}, ["y", "z"]), {"x": f(2, 3)})


@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_if_runs_the_branch_of_its_condition(truth: bool, known: bool) -> None:
    then = graph([node("Add", ["x", "k"], ["a"]), node("Neg", ["a"], ["p"])], {"p": f(2, 3)})
    other = graph([node("Mul", ["h", "k"], ["q"])], {"q": f(2, 3)})
    nodes = [
        node("Relu", ["x"], ["h"]),
        node("If", ["c"], ["r"], then_branch=then, else_branch=other),
        node("Add", ["r", "h"], ["y"]),
    ]
    x, c = f(2, 3), np.array(truth)
    fed = {"x": x} if known else {"x": x, "c": c}
    constants = {"k": f(3)} | ({"c": c} if known else {})
    model = model_of(nodes, fed, ["y"], constants)
    check(model, fed)
    assert operations(model)["IF"] == (0 if known else 1)


def test_branches_of_different_rank_take_the_rest_with_them() -> None:
    then = graph([node("Squeeze", ["x", "ax"], ["p"])], {"p": f(3)})
    other = graph([node("Identity", ["x"], ["q"])], {"q": f(1, 3)})
    nodes = [
        node("If", ["c"], ["r"], then_branch=then, else_branch=other),
        node("ReduceSum", ["r"], ["t"], keepdims=0),
        node("Mul", ["t", "k"], ["y"]),
    ]
    model = model_of(
        nodes,
        {"x": f(1, 3), "c": np.array(True)},
        ["y"],
        {"ax": np.array([0]), "k": f()},
        unknown=True,
    )
    for truth in (True, False):
        check(model, {"x": f(1, 3), "c": np.array(truth)})


def loop_model(
    limit: NDArray | None, inputs: dict[str, NDArray], step: list[Any], **options: Any
) -> Any:
    body = helper.make_graph(
        step,
        "body",
        [declared("i", np.array(0)), declared("go", np.array(True)), declared("s", f(2))],
        [declared("on", np.array(True)), declared("t", f(2)), declared("out", f(2))],
    )
    nodes = [node("Loop", ["m", "", "x"], ["last", "every"], body=body)]
    constants = {"k": f(2), **({} if limit is None else {"m": limit})}
    return model_of(nodes, inputs, ["last", "every"], constants, **options)


STEP = [
    node("Add", ["s", "k"], ["t"]),
    node("Mul", ["t", "k"], ["out"]),
    node("Identity", ["go"], ["on"]),
]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_loop_with_a_limit(count: int) -> None:
    x = f(2)
    check(loop_model(np.array(count), {"x": x}, STEP), {"x": x})
    m = np.array(count)
    check(loop_model(None, {"x": x, "m": m}, STEP), {"x": x, "m": m})


def test_loop_that_ends_by_its_condition() -> None:
    step = [
        node("Add", ["s", "k"], ["t"]),
        node("Identity", ["t"], ["out"]),
        node("Constant", [], ["two"], value=tensor("v", np.array(2))),
        node("Less", ["i", "two"], ["on"]),
    ]
    x = f(2)
    check(loop_model(np.array(9), {"x": x}, step), {"x": x})


@pytest.mark.parametrize("attributes", [
    {}, {"scan_input_directions": [1]}, {"scan_output_directions": [1]}, {"scan_input_axes": [1]},
    {"scan_output_axes": [1]},
])  # fmt: skip
@pytest.mark.parametrize("unknown", [True, False])
def test_scan_gathers_what_its_body_returns(attributes: dict[str, Any], unknown: bool) -> None:
    axis = attributes.get("scan_input_axes", [0])[0]
    x = f(5, 3) if axis == 0 else f(3, 5)
    body = graph(
        [node("Add", ["s", "e"], ["t"]), node("Mul", ["t", "k"], ["o"])],
        {"t": f(3), "o": f(3)},
        {"s": f(3), "e": f(3)},
    )
    nodes = [
        node("Scan", ["init", "x"], ["last", "every"], body=body, num_scan_inputs=1, **attributes)
    ]
    model = model_of(
        nodes, {"init": f(3), "x": x}, ["last", "every"], {"k": f(3)}, unknown=unknown and axis == 0
    )
    check(model, {"init": f(3), "x": x})


def test_sequences_of_known_length() -> None:
    nodes = [
        node("SplitToSequence", ["x", "parts"], ["s"], axis=0),
        node("SequenceInsert", ["s", "x", "zero"], ["t"]),
        node("SequenceErase", ["t", "one"], ["u"]),
        node("SequenceAt", ["u", "last"], ["y"]),
        node("SequenceLength", ["u"], ["n"]),
        node("ConcatFromSequence", ["u"], ["j"], axis=0),
        node("SequenceConstruct", ["x", "x"], ["p"]),
        node("ConcatFromSequence", ["p"], ["k"], axis=1, new_axis=1),
        node("SequenceEmpty", [], ["e"]),
        node("SequenceInsert", ["e", "x"], ["e1"]),
        node("SequenceAt", ["e1", "zero"], ["z"]),
    ]
    constants = {
        "parts": np.array([1, 2]),
        "zero": np.array(0),
        "one": np.array(1),
        "last": np.array(-1),
    }
    check(model_of(nodes, {"x": f(3, 2)}, ["y", "n", "j", "k", "z"], constants), {"x": f(3, 2)})


def test_functions_of_the_model() -> None:
    inner = [
        helper.make_node("Mul", ["a", "b"], ["c"]),
        helper.make_node("LeakyRelu", ["c"], ["d"]),
    ]
    slope = helper.make_attribute("alpha", 0.1)
    slope.ClearField("f")
    slope.ref_attr_name = "slope"
    inner[1].attribute.append(slope)
    function = helper.make_function(
        "own", "Scaled", ["a", "b"], ["d"], inner, [helper.make_opsetid("", 17)], ["slope"]
    )
    call = helper.make_node("Scaled", ["x", "w"], ["y"], domain="own", slope=0.5)
    model = model_of(
        [call], {"x": f(2, 3)}, ["y"], {"w": f(3)}, functions=[function], domains={"own": 1}
    )
    check(model, {"x": f(2, 3)})


def test_distinct_elements_in_order() -> None:
    nodes = [node("Unique", ["x"], ["y", "", "w"], sorted=0)]
    x = np.array([3, 1, 3, 2, 1])
    check(model_of(nodes, {"x": x}, ["y", "w"]), {"x": x})


def test_scatter_by_its_old_name() -> None:
    nodes = [node("Scatter", ["x", "i", "u"], ["y"], axis=0)]
    fed = {"x": f(3, 2), "u": f(1, 2)}
    check(model_of(nodes, fed, ["y"], {"i": np.array([[2, 0]])}, opset=10), fed)


def test_an_unknown_opset_is_refused() -> None:
    x = f(2, 3)
    for opset, words in ((99, "28 is the newest that is read"), (5, "6 is the oldest")):
        model = model_of([node("Relu", ["x"], ["y"])], {"x": x}, ["y"], opset=opset)
        with pytest.raises(NotLowerable, match=f"of opset {opset}; {words}"):
            ours(model, {"x": x})


def test_opset_6_broadcasts_by_axis() -> None:
    x, w = f(2, 3, 4), f(3)
    nodes = [node("Add", ["x", "w"], ["y"], broadcast=1, axis=1)]
    (got,) = ours(model_of(nodes, {"x": x}, ["y"], {"w": w}, opset=6), {"x": x})
    np.testing.assert_allclose(got, x + w[:, None])


def test_filled_weights_of_one_value_share_their_memory() -> None:
    fill = tensor("v", np.array([0.5], F))
    nodes = [
        node("ConstantOfShape", ["s"], ["w"], value=fill),
        node("ConstantOfShape", ["t"], ["v"], value=fill),
        node("MatMul", ["x", "w"], ["a"]),
        node("MatMul", ["a", "v"], ["y"]),
    ]
    constants = {"s": np.array([64, 256]), "t": np.array([256, 32])}
    model = model_of(nodes, {"x": f(2, 64)}, ["y"], constants)
    check(model, {"x": f(2, 64)})
    loaded = penstock.load(model.SerializeToString())
    assert sum(len(p) for p in loaded.pools) == 64 * 256 * 4


def test_large_constants_lie_in_memory_that_other_processes_can_map() -> None:
    """Several chunks of it, in the order of the file and transposed, and one between them."""
    wide, bias, filters = f(512, 2100), f(2100), f(600, 512, 3, 3)
    nodes = [
        node("Conv", ["x", "filters"], ["a"]),
        node("ReduceMean", ["x"], ["b"], axes=[2, 3], keepdims=0),
        node("MatMul", ["b", "wide"], ["c"]),
        node("Add", ["c", "bias"], ["y"]),
    ]
    constants = {"wide": wide, "bias": bias, "filters": filters}
    inputs = {"x": f(1, 512, 3, 3)}
    model = model_of(nodes, inputs, ["a", "y"], constants)
    loaded = penstock.load(model.SerializeToString())
    (pool,) = loaded.pools
    assert len(pool) >= wide.nbytes + bias.nbytes + filters.nbytes
    assert (pool.kind == "ashmem") is sealed_file.HAS_MEMFD
    found = [loaded.constant(o) for o in loaded.operands if o.is_constant and o.location]
    for array in (wide.T, bias, filters.transpose(0, 2, 3, 1)):
        assert any(a.shape == array.shape and np.array_equal(a, array) for a in found)
    check(model, inputs)


def test_operations_are_named_for_their_nodes() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Exp", ["a"], ["y"])]
    model = penstock.load(model_of(nodes, {"x": f(2)}, ["y"]).SerializeToString())
    assert [model.entry.operation_name(i) for i in range(2)] == ["n_a", "y"]
    assert [o.name for o in (*model.inputs, *model.outputs)] == ["x", "y"]


def test_normalisation_and_activation_go_into_the_layer() -> None:
    constants = {"w": f(4, 3, 3, 3), "c": f(4), "s": f(4), "b": f(4), "m": f(4), "v": abs(f(4)) + 1}
    constants |= {"u": f(4, 5), "k": f(5), "t": np.array(2.5, F)}
    nodes = [
        node("Conv", ["x", "w", "c"], ["a"]),
        node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("GlobalAveragePool", ["r"], ["g"]),
        node("Flatten", ["g"], ["l"]),
        node("MatMul", ["l", "u"], ["d"]),
        node("Add", ["k", "d"], ["e"]),
        node("Mul", ["e", "t"], ["h"]),
        node("Clip", ["h", "zero", "six"], ["y"]),
    ]
    constants |= {"zero": np.array(0, F), "six": np.array(6, F)}
    model = model_of(nodes, {"x": f(2, 3, 6, 6)}, ["y"], constants)
    check(model, {"x": f(2, 3, 6, 6)})
    assert not {"MUL", "ADD", "RELU", "RELU6"} & operations(model).keys()


def test_value_read_twice_keeps_its_activation_separate() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("Add", ["a", "r"], ["y"]),
    ]
    model = model_of(nodes, {"x": f(2, 3)}, ["y", "a"], {"w": f(3, 4)})
    check(model, {"x": f(2, 3)})
    assert operations(model) == {"FULLY_CONNECTED": 1, "RELU": 1, "ADD": 1}


def test_maps_of_classes_are_given_as_a_matrix() -> None:
    nodes = [
        node("Softmax", ["x"], ["p"]),
        node("ZipMap", ["p"], ["y"], domain=ML, classlabels_int64s=[3, 5, 7]),
    ]
    x = f(2, 3)
    (got,) = ours(model_of(nodes, {"x": x}, ["y"]), {"x": x})
    (want,) = judged(model_of(nodes[:1], {"x": x}, ["p"]), {"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_onnx_functions_are_expanded() -> None:
    q, k, v = (f(1, 2, 4, 8) for _ in range(3))
    attention = helper.make_node("Attention", ["q", "k", "v"], ["y"], name="attend", is_causal=1)
    model = model_of([attention], {"q": q, "k": k, "v": v}, ["y"], opset=23)
    (got,) = ours(model, {"q": q, "k": k, "v": v})
    scores = q @ k.swapaxes(2, 3) / np.sqrt(8)
    scores = np.where(np.tril(np.ones((4, 4), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(got, weights / weights.sum(-1, keepdims=True) @ v, rtol=1e-4)


def test_a_loss_that_onnx_defines_by_another() -> None:
    x, labels = f(3, 5), np.array([0, 4, 2])
    loss = node("SoftmaxCrossEntropyLoss", ["x", "t"], ["y"], reduction="none")
    (got,) = ours(model_of([loss], {"x": x, "t": labels}, ["y"]), {"x": x, "t": labels})
    chances = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(got, -np.log(chances[np.arange(3), labels]), rtol=1e-4)


@pytest.mark.parametrize("kind", ["Relu", "Sigmoid", "Neg", "Abs", "Exp", "Add", "Max", "Sum"])
def test_arithmetic_of_strings_is_refused_in_words_of_the_operator(kind: str) -> None:
    from onnx import TensorProto, helper

    inputs = ["x", "x"] if kind in {"Add", "Max", "Sum"} else ["x"]
    ends = [helper.make_tensor_value_info(name, TensorProto.STRING, [2]) for name in "xy"]
    node = helper.make_node(kind, inputs, ["y"], "of words")
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    words = "of words.*computed for numbers only, not for strings"
    with pytest.raises(penstock.errors.NotLowerable, match=words):
        penstock.load(model.SerializeToString())
