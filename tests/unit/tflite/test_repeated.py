"""Files that list one tensor more than once: twice an input, twice an output, both, or under two
names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import tflite
from penstock.errors import InputError
from penstock.ir import NDArray
from tests.unit.loaders.files import FileBuilder, described

A, B, C = (np.array(v, np.float32) for v in ([1, 2], [10, 20], [100, 200]))


def addition(inputs: Sequence[int], outputs: Sequence[int], **root: Any) -> bytes:
    """y = x + z; x 0, z 1, y 2."""
    file = FileBuilder()
    x, z, y = (file.tensor(n, [2]) for n in "xzy")
    file.operator("ADD", [x, z], [y], {})
    return file.finish(inputs, outputs, **root)


def signed(
    inputs: Mapping[str, int], outputs: Mapping[str, int], listed: Sequence[int] = (0, 1)
) -> bytes:
    ends = {
        kind: [{"name": n, "tensor_index": i} for n, i in named.items()]
        for kind, named in (("inputs", inputs), ("outputs", outputs))
    }
    signature = {"signature_key": "s", "subgraph_index": 0, **ends}
    return addition(listed, sorted(set(outputs.values())), signature_defs=[signature])


def branches() -> bytes:
    """y, w = p + p (else p * p) twice, p listed as both inputs of the branch, so that b is what it
    holds.
    """
    file = FileBuilder()
    choice = file.tensor("choice", [1], "BOOL")
    a, b, y, w = (file.tensor(n, [2]) for n in "abyw")
    file.operator(
        "IF", [choice, a, b], [y, w], {"then_subgraph_index": 1, "else_subgraph_index": 2}
    )
    file.end([choice, a, b], [y, w])
    for kind in ("ADD", "MUL"):
        file.begin(kind)
        p, r = file.tensor("p", [2]), file.tensor("r", [2])
        file.operator(kind, [p, p], [r], {})
        file.end([p, p], [r, p])
    return file.encode()


def loop() -> bytes:
    """Two values handed round; condition and body list one tensor for both, and take the second."""
    file = FileBuilder()
    i, j, n, m = (file.tensor(name, [1], "INT32") for name in "ijnm")
    file.operator("WHILE", [i, j], [n, m], {"cond_subgraph_index": 1, "body_subgraph_index": 2})
    file.end([i, j], [n, m])
    file.begin("cond")
    i, less = file.tensor("i", [1], "INT32"), file.tensor("less", [1], "BOOL")
    limit = file.tensor("limit", [1], "INT32", np.array([100], np.int32))
    file.operator("LESS", [i, limit], [less])
    file.end([i, i], [less])
    file.begin("body")
    i, j = file.tensor("i", [1], "INT32"), file.tensor("j", [1], "INT32")
    file.operator("ADD", [i, i], [j], {})
    file.end([i, i], [j, j])
    return file.encode()


def run(content: bytes, *given: Any, **options: Any) -> tuple[tflite.Interpreter, list[NDArray]]:
    interpreter = tflite.Interpreter(model_content=content, **options)
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), given, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return interpreter, [
        interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()
    ]


@pytest.mark.parametrize(
    ("inputs", "outputs", "given", "wanted"),
    [
        ([0, 1, 0], [2], [A, B, C], [B + C]),
        ([0, 1], [2, 2], [A, B], [A + B, A + B]),
        ([0, 1], [0, 2], [A, B], [A, A + B]),
        ([0, 1, 0, 1], [2, 0, 0, 2], [A, B, C, A], [A + C, C, C, A + C]),
    ],
    ids=["input_twice", "output_twice", "input_as_output", "everything_twice"],
)
def test_the_interpreter_lists_what_the_file_lists(
    inputs: list[int], outputs: list[int], given: list[NDArray], wanted: list[NDArray]
) -> None:
    interpreter, got = run(addition(inputs, outputs), *given)
    assert [d["index"] for d in interpreter.get_input_details()] == inputs
    assert [d["index"] for d in interpreter.get_output_details()] == outputs
    np.testing.assert_array_equal(got, wanted)


def test_a_repeated_input_is_resized_once() -> None:
    interpreter = tflite.Interpreter(model_content=addition([0, 1, 0], [2]))
    for tensor in (0, 1):
        interpreter.resize_tensor_input(tensor, [3])
    interpreter.allocate_tensors()
    for tensor in (0, 1):
        interpreter.set_tensor(tensor, np.full(3, tensor + 1, np.float32))
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(2), [3, 3, 3])


def test_two_names_of_one_tensor_hold_what_was_given_last() -> None:
    content = signed({"a": 0, "b": 1, "c": 0}, {"y": 2, "w": 2, "v": 0})
    runner = tflite.Interpreter(model_content=content).get_signature_runner("s")
    assert {n: d["index"] for n, d in runner.get_input_details().items()} == {
        "a": 0,
        "b": 1,
        "c": 0,
    }
    got = runner(a=A, b=B, c=C)
    np.testing.assert_array_equal([got["y"], got["w"], got["v"]], [B + C, B + C, C])


@pytest.mark.parametrize("preserve", [False, True])
def test_last_of_repeated_outputs_counts(preserve: bool) -> None:
    reference = tflite.OpResolverType.BUILTIN_REF
    options = {
        "experimental_preserve_all_tensors": preserve,
        "experimental_op_resolver_type": reference,
    }
    interpreter, got = run(branches(), np.array([True]), A, B, **options)
    np.testing.assert_array_equal(got, [B + B, B])
    if preserve:
        np.testing.assert_array_equal(interpreter.get_tensor(0, 1), B)
    got = run(loop(), np.array([1], np.int32), np.array([10], np.int32), **options)[1]
    np.testing.assert_array_equal(got, [[160], [160]])


def test_a_model_has_a_repeated_input_once() -> None:
    model = penstock.load(addition([0, 1, 0], [2, 0]))
    assert [o.name for o in model.inputs] == ["x", "z"]
    with penstock.compile(model) as compiled:
        np.testing.assert_array_equal(list(compiled.run([A, B])), [A + B, A])


class TestSignature:
    @pytest.fixture
    def compiled(self) -> Any:
        content = signed({"a": 0, "b": 1, "c": 0}, {"y": 2, "w": 2}, listed=(0, 1, 0))
        with penstock.compile(content, signature="s") as compiled:
            yield compiled

    def test_repeated_input_accepts_equal_values(self, compiled: penstock.CompiledModel) -> None:
        got = compiled.run({"a": A, "b": B, "c": A.copy()})
        np.testing.assert_array_equal([got["y"], got["w"]], [A + B, A + B])
        assert not np.may_share_memory(got["y"], got["w"])

    def test_repeated_input_rejects_different_values(
        self, compiled: penstock.CompiledModel
    ) -> None:
        with pytest.raises(InputError, match="'a' and 'c' are the same input"):
            compiled.run({"a": A, "b": B, "c": C})

    def test_repeated_input_needs_every_name(self, compiled: penstock.CompiledModel) -> None:
        with pytest.raises(InputError, match="'c' is missing"):
            compiled.run({"a": A, "b": B})

    def test_repeated_output_takes_one_array(self, compiled: penstock.CompiledModel) -> None:
        out = np.empty(2, np.float32)
        got = compiled.run({"a": A, "b": B, "c": A}, out={"w": out})
        np.testing.assert_array_equal([out, got["y"]], [A + B, A + B])
        with pytest.raises(InputError, match="has several names"):
            compiled.run({"a": A, "b": B, "c": A}, out={"y": np.empty(2, np.float32), "w": out})

    def test_repeated_input_has_one_shape_for_all_names(self) -> None:
        content = signed({"a": 0, "b": 1, "c": 0}, {"y": 2})
        with pytest.raises(InputError, match="two shapes"):
            penstock.compile(content, signature="s", shapes={"a": (2,), "c": (3,)})


def test_a_repeated_input_is_described_once() -> None:
    file = FileBuilder()
    x, z, y = (file.tensor(n, [2]) for n in "xzy")
    file.operator("ADD", [x, z], [y], {})
    file.end([x, z, x], [y])
    names = [{"name": n} for n in ("first", "second", "again")]
    main = {"input_tensor_metadata": names, "output_tensor_metadata": []}
    place = file.buffer(described(**main))
    content = file.encode(metadata=[{"name": "TFLITE_METADATA", "buffer": place}])
    assert [t.name for t in penstock.load(content).metadata.inputs] == ["first", "second"]
