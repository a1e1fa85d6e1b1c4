"""The raw form: partitions, the order of calls, several delegates, failures, ends."""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

import numpy as np
import pytest

from penstock import tflite
from penstock.delegates import (
    BuiltinOperator,
    Delegate,
    DelegateContext,
    DelegateFlags,
    DelegateParams,
    DelegateRegistration,
    DelegateTensor,
    DriverDelegate,
)
from penstock.errors import DelegateError, InputError, StateError
from penstock.export.tflite.fields import TFLITE
from penstock.ir import NDArray
from penstock.partitioning.policy import Policy
from tests.support_forks import in_child
from tests.unit.delegates import graphs
from tests.unit.delegates.recorder import Recorder
from tests.unit.loaders.files import FileBuilder, accumulator, svdf
from tests.unit.tflite import models

X = np.array([-1.5, 2], np.float32)


def opened(content: bytes, *delegates: Delegate, **options: Any) -> tflite.Interpreter:
    options.setdefault("devices", ["reference"])
    interpreter = tflite.Interpreter(
        model_content=content, experimental_delegates=list(delegates), cache=False, **options
    )
    interpreter.allocate_tensors()
    return interpreter


def run(interpreter: tflite.Interpreter, *inputs: NDArray) -> list[Any]:
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def same(content: bytes, *inputs: NDArray, interpreter: tflite.Interpreter) -> None:
    """Asserts that *interpreter* gives what one without delegates gives."""
    wanted = run(opened(content), *inputs)
    for got, expected in zip(run(interpreter, *inputs), wanted, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_codes_are_those_of_the_schema() -> None:
    assert {c.name: c.value for c in BuiltinOperator} == dict(TFLITE.numbers("BuiltinOperator"))


class TestPartitions:
    def test_neighbours_become_one_node_and_others_two(self) -> None:
        delegate = Recorder("NEG")
        content = graphs.chain("NEG", "NEG", "ABS", "NEG")
        same(content, X, interpreter=opened(content, delegate))
        assert delegate.names("init") == [(0, 1), (3,)]
        assert delegate.plans == [(4, 2, 5)]

    def test_subsets_are_as_few_as_dependencies_allow(self) -> None:
        delegate = Recorder("NEG")
        content = graphs.diamond()
        same(content, X, interpreter=opened(content, delegate))
        assert delegate.names("init") == [(2, 5)]

    def test_the_whole_graph_is_one_node(self) -> None:
        delegate = Recorder("NEG", "ABS", "RELU", "ADD")
        content = graphs.diamond()
        interpreter = opened(content, delegate)
        same(content, X, interpreter=interpreter)
        assert delegate.plans == [(6,)]

    def test_without_clustering_the_order_stays(self) -> None:
        delegate = Recorder("NEG")
        content = graphs.diamond()
        interpreter = opened(content, delegate, experimental_disable_delegate_clustering=True)
        same(content, X, interpreter=interpreter)
        assert delegate.names("init") == [(2,), (5,)]

    def test_without_fusion_each_node_has_its_kernel(self) -> None:
        delegate = Recorder("NEG")
        content = graphs.chain("NEG", "NEG", "ABS")
        interpreter = opened(content, delegate, experimental_disable_delegate_node_fusion=True)
        same(content, X, interpreter=interpreter)
        assert delegate.names("init") == [(0,), (1,)]

    def test_parameters_name_what_crosses_the_boundary(self) -> None:
        seen: list[DelegateParams] = []

        class Looking(Recorder):
            def prepare(self, context: DelegateContext) -> None:
                seen.extend(context.preview_delegate_partitioning(self.chosen(context)))
                super().prepare(context)

        content = graphs.convolved("ABS")
        opened(content, Looking("ABS"))
        assert seen == [DelegateParams((1,), (4,), (5,))]
        seen.clear()
        opened(models.chain(), Looking("ADD"))
        assert seen == [DelegateParams((0,), (0, 3), (1,))]

    def test_nodes_have_the_files_numbers(self) -> None:
        class Looking(Recorder):
            def prepare(self, context: DelegateContext) -> None:
                node, registration = context.node_and_registration(0)
                assert registration.builtin_code is BuiltinOperator.CONV_2D
                assert (registration.builtin_name, registration.custom_name) == ("CONV_2D", "")
                assert (node.inputs, node.outputs) == ((0, 1, 2), (4,))
                assert node.attributes["stride_w"] == 2
                filters = context.tensor(1)
                assert (filters.name, filters.shape) == ("filters", (3, 3, 3, 2))
                assert np.dtype(np.float32) == filters.dtype
                assert filters.data.shape == filters.shape
                assert filters.is_constant
                assert not filters.data.flags.writeable
                with pytest.raises(StateError, match="no data now"):
                    _ = context.tensor(0).data
                with pytest.raises(InputError, match="no tensor 99"):
                    context.tensor(99)
                with pytest.raises(InputError, match="no node 9"):
                    context.node_and_registration(9)
                self.events.append(("looked",))

        looking = Looking()
        opened(graphs.convolved("ABS"), looking)
        assert looking.events == [("looked",)]

    def test_delegate_nodes_are_seen_by_the_next_delegate(self) -> None:
        class Looking(Recorder):
            def prepare(self, context: DelegateContext) -> None:
                self.plans.append(context.execution_plan)
                node, registration = context.node_and_registration(2)
                assert registration.builtin_code is BuiltinOperator.DELEGATE
                assert registration.custom_name == "recorder kernel"
                assert (node.inputs, node.outputs) == ((0,), (1,))
                assert "recorder" in context.reason_kept(2)

        looking = Looking()
        interpreter = opened(graphs.chain("NEG", "ABS"), Recorder("NEG"), looking)
        assert looking.plans == [(2, 1)]
        assert [o["op_name"] for o in interpreter._get_ops_details()] == ["NEG", "ABS", "DELEGATE"]

    def test_several_delegates_take_in_order(self) -> None:
        first, second = Recorder("NEG"), Recorder("NEG", "ABS")
        content = graphs.chain("NEG", "ABS", "NEG", "RELU", "ABS")
        same(content, X, interpreter=opened(content, first, second))
        assert first.names("init") == [(0,), (2,)]
        assert second.names("init") == [(1,), (4,)]

    def test_delegate_that_takes_nothing_changes_nothing(self) -> None:
        delegate = Recorder()
        content = graphs.chain("NEG")
        same(content, X, interpreter=opened(content, delegate))
        assert delegate.events == []


class TestOrder:
    def test_raw_delegate_is_called_in_order(self) -> None:
        delegate = Recorder("NEG")
        with opened(graphs.chain("NEG", "ABS", "NEG"), delegate) as interpreter:
            interpreter.allocate_tensors()
            run(interpreter, X)
            run(interpreter, X)
        assert [e[:2] for e in delegate.events] == [
            ("init", (0,)),
            ("init", (2,)),
            ("kernel prepare", (0,)),
            ("kernel prepare", (2,)),
            *[("invoke", (0,)), ("invoke", (2,))] * 2,
            ("free", (0,)),
            ("free", (2,)),
        ]

    def test_a_static_delegate_leaves_the_graph_ready(self) -> None:
        interpreter = tflite.Interpreter(
            model_content=graphs.chain("NEG", "ABS"), experimental_delegates=[Recorder("NEG")]
        )
        np.testing.assert_array_equal(run(interpreter, X)[0], np.abs(X))

    def test_delegate_may_be_added_after_construction(self) -> None:
        delegate = Recorder("ABS", flags=DelegateFlags.ALLOW_DYNAMIC_TENSORS)
        interpreter = opened(graphs.chain("NEG", "ABS"))
        run(interpreter, X)
        interpreter.modify_graph_with_delegate(delegate)
        np.testing.assert_array_equal(run(interpreter, X)[0], np.abs(X))
        assert delegate.names("invoke") == [(1,)]

    def test_a_static_delegate_is_added_anew_after_a_resize(self) -> None:
        delegate = Recorder("NEG")
        interpreter = opened(graphs.chain("NEG", "ABS"), delegate)
        interpreter.resize_tensor_input(0, [3])
        interpreter.allocate_tensors()
        np.testing.assert_array_equal(run(interpreter, np.ones(3, np.float32))[0], [1, 1, 1])
        assert [e[0] for e in delegate.events] == [
            *("init", "kernel prepare", "free"),
            *("init", "kernel prepare", "invoke"),
        ]

    def test_a_dynamic_delegate_is_prepared_again_after_a_resize(self) -> None:
        delegate = Recorder("NEG", flags=DelegateFlags.ALLOW_DYNAMIC_TENSORS)
        interpreter = opened(graphs.chain("NEG", "ABS"), delegate)
        for size in (3, 2):
            interpreter.resize_tensor_input(0, [size])
            interpreter.allocate_tensors()
            run(interpreter, np.ones(size, np.float32))
        assert [e[0] for e in delegate.events] == [
            *("init", "kernel prepare"),
            *("kernel prepare", "invoke") * 2,
        ]
        assert [e[2] for e in delegate.names("kernel prepare", "")] == [(2,), (3,), (2,)]

    def test_one_delegate_serves_two_interpreters(self) -> None:
        delegate = Recorder("NEG")
        first, second = (opened(graphs.chain("NEG"), delegate) for _ in range(2))
        first.close()
        np.testing.assert_array_equal(run(second, X)[0], -X)
        assert len(delegate.names("free")) == 1

    def test_data_attribute_is_free_for_the_author(self) -> None:
        delegate, mine = Recorder("NEG"), object()
        assert delegate.data is None
        delegate.data = mine
        with opened(graphs.chain("NEG"), delegate) as interpreter:
            run(interpreter, X)
        assert delegate.data is mine

    def test_every_entry_point_is_given_to_it(self) -> None:
        delegate = Recorder("NEG")
        interpreter = opened(models.signed(), delegate)
        answer = interpreter.get_signature_runner("negate")(x=X)
        np.testing.assert_array_equal(answer["y"], np.maximum(-X, 0))
        assert delegate.names("invoke") == [(0,)]


FAILURES = {
    "prepare": "prepare",
    "none 0": "init",
    "none 1": "init",
    "init": "init",
    "init 1": "init",
    "kernel prepare": "prepare",
}


class TestFailures:
    @pytest.mark.parametrize("fail", FAILURES)
    def test_a_delegate_that_fails_is_named_and_leaves_the_graph_as_it_was(self, fail: str) -> None:
        content = graphs.chain("NEG", "ABS", "NEG")
        other, delegate = Recorder("ABS", name="other"), Recorder("NEG", fail=fail)
        interpreter = opened(content, other)
        run(interpreter, X)
        with pytest.raises(DelegateError, match="recorder") as caught:
            interpreter.modify_graph_with_delegate(delegate)
        assert (caught.value.delegate, caught.value.stage) == ("recorder", FAILURES[fail])
        made = delegate.names("init")[: delegate.made]
        assert delegate.names("free") == made
        np.testing.assert_array_equal(run(interpreter, X)[0], -np.abs(X))
        assert other.names("init", "free") == [("init", (1,))]
        assert len(interpreter._get_ops_details()) == 4

    @pytest.mark.parametrize("fail", FAILURES)
    def test_constructor_raises_the_delegates_error(self, fail: str) -> None:
        first, delegate = Recorder("ABS"), Recorder("NEG", fail=fail)
        with pytest.raises(RuntimeError, match="recorder"):
            opened(graphs.chain("NEG", "ABS", "NEG"), first, delegate)
        assert first.names("free") == [(1,)]

    def test_a_failed_run_names_the_delegate_and_keeps_the_state(self) -> None:
        class Failing(Recorder):
            pass

        delegate = Failing("ADD")
        interpreter = opened(accumulator().encode(), delegate)
        np.testing.assert_array_equal(run(interpreter, np.ones(2, np.float32))[0], [2, 3])
        delegate.fail = "invoke"
        for _ in range(2):
            with pytest.raises(DelegateError, match=r"recorder.*told to fail") as caught:
                interpreter.invoke()
            assert caught.value.stage == "invoke"
        delegate.fail = ""
        np.testing.assert_array_equal(run(interpreter, np.ones(2, np.float32))[0], [3, 4])

    def test_a_failure_that_prepare_passes_over_counts_all_the_same(self) -> None:
        class Swallowing(Recorder):
            def prepare(self, context: DelegateContext) -> None:
                try:
                    super().prepare(context)
                except DelegateError:
                    self.events.append(("swallowed",))

        delegate = Swallowing("NEG", fail="init")
        with pytest.raises(DelegateError, match="init"):
            opened(graphs.chain("NEG"), delegate)
        assert ("swallowed",) in delegate.events

    def test_without_copy_from_buffer_handle_it_is_refused(self) -> None:
        class Lacking(Delegate):
            def prepare(self, context: DelegateContext) -> None:
                raise AssertionError("it is never asked")

        interpreter = opened(graphs.chain("NEG"))
        with pytest.raises(DelegateError, match="copy_from_buffer_handle"):
            interpreter.modify_graph_with_delegate(Lacking())
        np.testing.assert_array_equal(run(interpreter, X)[0], -X)

    def test_delegate_is_added_once(self) -> None:
        delegate = Recorder("NEG")
        interpreter = opened(graphs.chain("NEG"), delegate)
        with pytest.raises(DelegateError, match="already"):
            interpreter.modify_graph_with_delegate(delegate)
        np.testing.assert_array_equal(run(interpreter, X)[0], -X)

    def test_held_views_are_in_the_way(self) -> None:
        interpreter = opened(graphs.chain("NEG"))
        view = interpreter.tensor(0)()
        with pytest.raises(RuntimeError, match="reference to internal data"):
            interpreter.modify_graph_with_delegate(Recorder("NEG"))
        del view

    @pytest.mark.parametrize("nodes", [[0, 7], [True], ["0"]])
    def test_replacing_unknown_nodes_is_rejected(self, nodes: list[Any]) -> None:
        class Wrong(Recorder):
            def chosen(self, context: DelegateContext) -> list[int]:
                return nodes

        with pytest.raises(DelegateError, match="there is no node"):
            opened(graphs.chain("NEG"), Wrong())

    def test_a_node_is_replaced_once(self) -> None:
        class Twice(Recorder):
            def prepare(self, context: DelegateContext) -> None:
                super().prepare(context)
                registration = DelegateRegistration("again", invoke=print)
                context.replace_node_subsets_with_delegate_kernels(registration, [0], self)

        delegate = Twice("NEG")
        with pytest.raises(DelegateError, match=r"node 0 .* cannot be replaced"):
            opened(graphs.chain("NEG"), delegate)
        assert delegate.names("free") == [(0,)]

    def test_nodes_are_replaced_in_prepare_only(self) -> None:
        class Late(Recorder):
            def _invoke(self, context: DelegateContext, node: Any) -> None:
                registration = DelegateRegistration("late", invoke=print)
                context.replace_node_subsets_with_delegate_kernels(registration, [1], self)

        interpreter = opened(graphs.chain("NEG", "ABS"), Late("NEG"))
        with pytest.raises(DelegateError, match="replaced by a delegate's prepare"):
            interpreter.invoke()

    def test_a_registration_without_invoke_is_refused(self) -> None:
        class Idle(Recorder):
            def prepare(self, context: DelegateContext) -> None:
                registration = DelegateRegistration("idle")
                context.replace_node_subsets_with_delegate_kernels(registration, [0], self)

        with pytest.raises(DelegateError, match="no invoke"):
            opened(graphs.chain("NEG"), Idle())

    def test_delegate_that_fails_after_a_resize_is_dropped_at_the_next_allocation(self) -> None:
        delegate = Recorder("NEG")
        interpreter = opened(graphs.chain("NEG", "ABS"), delegate)
        interpreter.resize_tensor_input(0, [3])
        delegate.fail = "kernel prepare"
        with pytest.raises(DelegateError, match="prepare"):
            interpreter.allocate_tensors()
        interpreter.allocate_tensors()
        np.testing.assert_array_equal(run(interpreter, np.ones(3, np.float32))[0], [1, 1, 1])
        assert delegate.names("invoke") == []

    def test_an_error_about_what_is_left_names_the_files_operator(self) -> None:
        policy = Policy(forbid={"NEG": "reference"})
        interpreter = tflite.Interpreter(
            model_content=graphs.chain("ABS", "RELU", "NEG"),
            experimental_delegates=[Recorder("ABS")],
            devices=["reference"],
            policy=policy,
        )
        with pytest.raises(RuntimeError, match=r"Node number 2 \(NEG\)") as caught:
            interpreter.invoke()
        assert "subgraph 0, operation 2 (NEG" in str(caught.value)

    def test_a_kernel_writes_its_outputs_alone(self) -> None:
        class Reaching(Recorder):
            def _invoke(self, context: DelegateContext, node: Any) -> None:
                context.tensor(node.inputs[0]).data[...] = 0

        interpreter = opened(graphs.chain("NEG"), Reaching("NEG"))
        with pytest.raises(DelegateError, match="read-only"):
            interpreter.invoke()


class TestState:
    def test_variables_stay_with_the_interpreter(self) -> None:
        delegate = Recorder("ADD", "READ_VARIABLE")
        with pytest.raises(DelegateError, match=r"READ_VARIABLE.*cannot be replaced"):
            opened(accumulator().encode(), delegate)

    def test_values_of_variables_come_and_go(self) -> None:
        delegate = Recorder("ADD")
        interpreter = opened(accumulator().encode(), delegate)
        one = np.ones(2, np.float32)
        plain = opened(accumulator().encode())
        for _ in range(3):
            np.testing.assert_array_equal(run(interpreter, one)[0], run(plain, one)[0])
        assert len(delegate.names("invoke")) == 3

    def test_a_kernel_changes_variable_tensors_in_place(self) -> None:
        class Counting(Recorder):
            def _invoke(self, context: DelegateContext, node: Any) -> None:
                state = next(t for t in map(context.tensor, node.inputs) if t.is_variable)
                state.data[...] += 1
                context.tensor(node.outputs[0]).data[...] = state.data.flat[0]

        content = svdf().encode()
        interpreter = opened(content, Counting("SVDF"))
        given = np.zeros(interpreter.get_input_details()[0]["shape"], np.float32)
        assert [float(run(interpreter, given)[0].flat[0]) for _ in range(3)] == [1, 2, 3]
        interpreter.reset_all_variables()
        assert float(run(interpreter, given)[0].flat[0]) == 1


class TestShapes:
    def test_a_static_delegate_refuses_shapes_known_at_run_time(self) -> None:
        content = graphs.where_then("NEG")
        interpreter = opened(content)
        with pytest.raises(DelegateError, match="ALLOW_DYNAMIC_TENSORS"):
            interpreter.modify_graph_with_delegate(Recorder("NEG"))
        assert run(interpreter, np.array([1, 0, 0, 1], bool))[0].tolist() == [[0], [-3]]

    @pytest.mark.parametrize("kinds", [["NEG"], ["ABS"], ["NEG", "ABS"]])
    def test_dynamic_delegate_accepts_changing_shapes(self, kinds: list[str]) -> None:
        content = graphs.where_then("NEG", "ABS", "NEG")
        delegate = Recorder(*kinds, flags=DelegateFlags.ALLOW_DYNAMIC_TENSORS)
        interpreter = opened(content, delegate)
        for given in ([1, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]):
            same(content, np.array(given, bool), interpreter=interpreter)

    def test_an_output_must_be_given_its_shape(self) -> None:
        class Silent(Recorder):
            def _write(self, *_: object) -> None: ...

        content = graphs.where_then("NEG")
        interpreter = opened(content, Silent("NEG", flags=DelegateFlags.ALLOW_DYNAMIC_TENSORS))
        with pytest.raises(DelegateError, match="resize_tensor"):
            interpreter.invoke()

    def test_only_outputs_are_resized_and_only_to_what_they_are(self) -> None:
        class Resizing(Recorder):
            def _invoke(self, context: DelegateContext, node: Any) -> None:
                with pytest.raises(StateError, match="not an output"):
                    context.resize_tensor(node.inputs[0], [4])
                with pytest.raises(InputError, match="has the shape"):
                    context.resize_tensor(node.outputs[0], [4])
                self.events.append(("refused",))

        delegate = Resizing("NEG")
        opened(graphs.chain("NEG"), delegate).invoke()
        assert ("refused",) in delegate.events

    def test_a_kernel_has_tensors_of_its_own(self) -> None:
        class Adding(Recorder):
            def _prepare(self, context: DelegateContext, node: Any) -> None:
                index = context.add_tensor(context.tensor(0).dtype, (2,))
                node.temporaries.append(index)
                assert context.tensor(index).name == ""

            def _invoke(self, context: DelegateContext, node: Any) -> None:
                own = context.tensor(node.temporaries[0])
                own.data[...] += 1
                context.tensor(node.outputs[0]).data[...] = own.data

        interpreter = opened(graphs.chain("NEG"), Adding("NEG"))
        assert [run(interpreter, X)[0].tolist() for _ in range(2)] == [[1, 1], [2, 2]]


class TestStrings:
    def test_kernels_read_and_write_strings(self) -> None:
        class Upper(Recorder):
            def _invoke(self, context: DelegateContext, node: Any) -> None:
                given = context.tensor(node.inputs[0]).data
                context.tensor(node.outputs[0]).data[...] = [s.upper() for s in given.ravel()]

        file = FileBuilder()
        x, y, z = (file.tensor(n, [2], "STRING") for n in "xyz")
        target = file.tensor("shape", [1], "INT32", np.array([2], np.int32))
        for given, made in ((x, y), (y, z)):
            file.operator("RESHAPE", [given, target], [made], {"new_shape": [2]})
        content = file.finish([x], [z])
        interpreter = opened(content, Upper("RESHAPE"))
        words = np.array([b"one", b"two"], object)
        first = run(interpreter, words)[0]
        assert first.tolist() == [b"ONE", b"TWO"]
        run(interpreter, np.array([b"", b"x"], object))
        assert first.tolist() == [b"ONE", b"TWO"]


class TestControlFlow:
    A, B = np.array([1, 2], np.float32), np.array([3, 5], np.float32)

    @pytest.mark.parametrize("flags", list(DelegateFlags)[:2])
    def test_nodes_of_branches_are_taken(self, flags: DelegateFlags) -> None:
        delegate = Recorder("ADD", flags=flags)
        interpreter = opened(models.branches(), delegate)
        for choice in (True, False, True):
            same(models.branches(), np.array([choice]), self.A, self.B, interpreter=interpreter)
        assert delegate.names("invoke") == [(0,), (0,)]

    def test_nodes_of_loops_are_taken(self) -> None:
        delegate = Recorder("ADD")
        interpreter = opened(models.doubling(), delegate)
        for start in (3, 60):
            same(models.doubling(), np.array([start], np.int32), interpreter=interpreter)
        assert len(delegate.names("invoke")) == 6 + 1

    def test_a_loop_that_a_delegate_has_taken_is_offered_no_more(self) -> None:
        class Whole(DriverDelegate):
            def is_node_supported(self, registration: Any, *given: Any) -> bool:
                return bool(registration.builtin_name == "WHILE")

        whole, later = Whole("reference", cache=False), Recorder("ADD")
        interpreter = opened(models.doubling(), whole, later)
        same(models.doubling(), np.array([3], np.int32), interpreter=interpreter)
        assert later.events == []

    def test_a_failure_inside_is_named_and_undone(self) -> None:
        delegate = Recorder("ADD", fail="init")
        interpreter = opened(models.doubling())
        with pytest.raises(DelegateError, match="init"):
            interpreter.modify_graph_with_delegate(delegate)
        same(models.doubling(), np.array([3], np.int32), interpreter=interpreter)
        failing = Recorder("ADD", fail="invoke")
        interpreter.modify_graph_with_delegate(failing)
        with pytest.raises(DelegateError, match="invoke"):
            interpreter.invoke()

    def test_closing_frees_kernels_inside_branches(self) -> None:
        delegate = Recorder("ADD")
        opened(models.doubling(), delegate).close()
        assert delegate.names("init") == delegate.names("free") == [(0,)]


class TestEnds:
    def test_closing_frees_once(self) -> None:
        delegate = Recorder("NEG", buffers=True)
        interpreter = opened(graphs.chain("NEG"), delegate)
        run(interpreter, X)
        interpreter.close()
        interpreter.close()
        assert delegate.names("free", "free buffer") == [("free", (0,)), ("free buffer", 101)]

    def test_dropping_the_last_reference_frees_the_kernels(self) -> None:
        delegate = Recorder("NEG", buffers=True)
        run(opened(graphs.chain("NEG"), delegate), X)
        gc.collect()
        assert delegate.names("free", "free buffer") == [("free", (0,)), ("free buffer", 101)]

    def test_the_interpreter_keeps_its_delegates_alive(self) -> None:
        freed: list[str] = []

        class Dying(Recorder):
            def _free(self, context: DelegateContext, user_data: Any) -> None:
                freed.append("kernel")

            def __del__(self) -> None:
                freed.append("delegate")

        interpreter = opened(graphs.chain("NEG"), Dying("NEG"))
        gc.collect()
        assert freed == []
        run(interpreter, X)
        del interpreter
        gc.collect()
        assert freed == ["kernel", "delegate"]

    def test_a_free_that_fails_ends_nothing(self) -> None:
        class Bad(Recorder):
            def _free(self, context: DelegateContext, user_data: Any) -> None:
                super()._free(context, user_data)
                raise RuntimeError("cannot let go")

        delegate = Bad("NEG")
        opened(graphs.chain("NEG", "ABS", "NEG"), delegate).close()
        assert delegate.names("free") == [(0,), (2,)]

    def test_a_removed_delegate_is_let_go(self) -> None:
        delegate = Recorder("NEG", fail="prepare")
        interpreter = opened(graphs.chain("NEG"))
        with pytest.raises(DelegateError):
            interpreter.modify_graph_with_delegate(delegate)
        known = weakref.ref(delegate)
        del delegate
        gc.collect()
        assert known() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_makes_kernels_of_its_own() -> None:
    delegate = Recorder("NEG")
    interpreter = opened(graphs.chain("NEG", "ABS", "NEG"), delegate)
    run(interpreter, X)
    delegate.events.clear()

    def work() -> tuple[list[float], list[str]]:
        answer = run(interpreter, X)[0].tolist()
        return answer, [e[0] for e in delegate.events]

    answer, events = in_child(work)
    assert answer == (-np.abs(X)).tolist()
    assert events == ["init"] * 2 + ["kernel prepare"] * 2 + ["invoke"] * 2
    np.testing.assert_array_equal(run(interpreter, X)[0], -np.abs(X))


class TestTensor:
    def test_kept_tensor_shows_the_present_state(self) -> None:
        kept: list[DelegateTensor] = []

        class Keeping(Recorder):
            def _prepare(self, context: DelegateContext, node: Any) -> None:
                kept.append(context.tensor(node.outputs[0]))

        interpreter = opened(graphs.chain("NEG"), Keeping("NEG"))
        run(interpreter, X)
        (tensor,) = kept
        assert repr(tensor) == "<DelegateTensor 1: 't1', float32 (2,)>"
        np.testing.assert_array_equal(tensor.data, -X)
        assert not tensor.data.flags.writeable
        assert (tensor.quantization, tensor.is_variable, tensor.data_is_stale) == (
            None,
            False,
            False,
        )
        with pytest.raises(StateError, match="only the delegate"):
            tensor.data_is_stale = True


def test_everything_is_preserved_but_what_is_inside_kernels() -> None:
    content = graphs.chain("NEG", "NEG", "ABS", "RELU", "NEG")
    options = {
        "experimental_preserve_all_tensors": True,
        "experimental_op_resolver_type": tflite.OpResolverType.BUILTIN_REF,
    }
    plain, delegated = opened(content, **options), opened(content, Recorder("NEG"), **options)
    for interpreter in (plain, delegated):
        run(interpreter, X)
    for index in (0, 2, 3, 4, 5):
        np.testing.assert_array_equal(delegated.get_tensor(index), plain.get_tensor(index))
    with pytest.raises(ValueError, match="Tensor data is null"):
        delegated.get_tensor(1)
