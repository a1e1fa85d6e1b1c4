from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import errors, tflite
from penstock.delegates import Delegate
from penstock.execution import CompiledModel
from penstock.ir import ConstantPool, NDArray
from penstock.loaders.tflite import catalog
from penstock.partitioning.policy import Policy
from penstock.tflite import loading
from tests.support_caching import CachingDevice
from tests.support_forks import in_child
from tests.unit.execution.fakes import NumpyDevice
from tests.unit.loaders.files import FileBuilder, accumulator, relu, sparse_matrix, svdf
from tests.unit.tflite import models

X = np.array([[1, 2]], np.float32)


def opened(content: bytes, **options: Any) -> tflite.Interpreter:
    interpreter = tflite.Interpreter(model_content=content, **options)
    interpreter.allocate_tensors()
    return interpreter


def preserving(content: bytes) -> tflite.Interpreter:
    return opened(
        content,
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=tflite.OpResolverType.BUILTIN_REF,
    )


def run(interpreter: tflite.Interpreter, *inputs: NDArray) -> list[Any]:
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


class TestOpening:
    def test_a_file_is_read_without_garbage_collections(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[bool] = []
        read = catalog.read_catalog

        def reading(pool: ConstantPool) -> Any:
            seen.append(gc.isenabled())
            return read(pool)

        monkeypatch.setattr(loading, "read_catalog", reading)
        tflite.Interpreter(model_content=models.chain())
        assert seen == [False]
        assert gc.isenabled()

    def test_path_as_text_bytes_and_path(self, tmp_path: Path) -> None:
        file = tmp_path / "net.tflite"
        file.write_bytes(models.chain())
        for path in (str(file), os.fsencode(file), file):
            interpreter = tflite.Interpreter(path)
            interpreter.allocate_tensors()
            np.testing.assert_array_equal(run(interpreter, X)[0], [[-2, -3]])

    def test_a_file_rewritten_is_read_anew(self, tmp_path: Path) -> None:
        file = tmp_path / "net.tflite"
        file.write_bytes(models.chain())
        first = tflite.Interpreter(file)
        file.write_bytes(relu().encode())
        second = tflite.Interpreter(file)
        names = [[d["name"] for d in i.get_tensor_details()] for i in (first, second)]
        assert names == [["x", "total", "y", "one"], ["x", "y"]]

    def test_interpreters_share_what_was_read_and_nothing_else(self) -> None:
        content = models.chain()
        one, other = opened(content), opened(content)
        assert one._core.session.file is other._core.session.file
        one.set_tensor(0, X)
        np.testing.assert_array_equal(other.get_tensor(0), [[0, 0]])

    def test_model_bytes_are_freed_with_the_last_interpreter(self) -> None:
        from penstock.tflite import loading

        content = models.typed("INT64", (5,))
        interpreter = opened(content)
        key = ("content", id(content))
        assert key in loading._opened
        del interpreter
        gc.collect()
        assert key not in loading._opened

    @pytest.mark.parametrize("content", [b"nothing", b"\x1c\0\0\0TFL3" + bytes(8), bytes(64)])
    def test_malformed_model_is_a_value_error_with_its_cause(self, content: bytes) -> None:
        with pytest.raises(ValueError, match="not a valid Flatbuffer buffer\n") as caught:
            tflite.Interpreter(model_content=content)
        assert isinstance(caught.value.__cause__, errors.ModelError)

    def test_a_missing_an_empty_and_an_odd_file(self, tmp_path: Path) -> None:
        empty = tmp_path / "empty"
        empty.touch()
        for path in (tmp_path / "none", tmp_path, empty, "a\0b"):
            with pytest.raises(ValueError, match="model allocation is null/empty"):
                tflite.Interpreter(path)

    def test_exactly_one_model_is_required(self) -> None:
        with pytest.raises(ValueError, match="must be specified"):
            tflite.Interpreter()
        with pytest.raises(ValueError, match="both provide"):
            tflite.Interpreter("net.tflite", b"content")

    def test_a_model_that_only_lowering_refuses_opens_and_does_not_allocate(self) -> None:
        file = relu()
        file.graph["operators"].append(file.graph["operators"][0])
        interpreter = tflite.Interpreter(model_content=file.encode())
        assert interpreter.get_input_details()[0]["name"] == "x"
        causes: list[BaseException | None] = []
        for _ in range(2):
            with pytest.raises(RuntimeError, match="inconsistent model") as caught:
                interpreter.allocate_tensors()
            causes.append(caught.value.__cause__)
            assert isinstance(causes[-1], errors.ModelError)
        assert causes[0] is not causes[1]  # a raised error keeps its frames alive

    def test_mutable_content_is_refused(self) -> None:
        with pytest.raises(TypeError, match="takes bytes"):
            # On purpose.
            tflite.Interpreter(model_content=bytearray(models.chain()))  # type: ignore[arg-type]


class TestMemory:
    def test_addresses_stay_until_a_shape_changes(self) -> None:
        interpreter = opened(models.chain())
        before = [interpreter.tensor(i)().ctypes.data for i in (0, 2)]
        run(interpreter, X)
        interpreter.allocate_tensors()
        run(interpreter, X)
        assert [interpreter.tensor(i)().ctypes.data for i in (0, 2)] == before

    def test_views_write_and_read_the_memory(self) -> None:
        interpreter = opened(models.chain())
        view, result = interpreter.tensor(0), interpreter.tensor(2)
        for value in (3, 4):
            view().fill(value)
            interpreter.invoke()
            np.testing.assert_array_equal(result(), [[-value - 1] * 2])

    @pytest.mark.parametrize("derive", [lambda v: v, lambda v: v[0], lambda v: v.T.reshape(-1)[1:]])
    def test_every_reference_to_tensor_memory_blocks_reallocation(self, derive: Any) -> None:
        interpreter = opened(models.chain())
        kept = derive(interpreter.tensor(0)())
        for call in (
            interpreter.invoke,
            interpreter.allocate_tensors,
            lambda: interpreter.resize_tensor_input(0, [2, 2]),
        ):
            with pytest.raises(RuntimeError, match="at least 1 reference to internal data"):
                call()
        interpreter.set_tensor(0, X)
        assert kept.size
        del kept
        interpreter.invoke()

    def test_a_view_outlives_the_interpreter(self) -> None:
        interpreter = opened(models.chain())
        interpreter.set_tensor(0, X)
        view = interpreter.tensor(0)()
        interpreter.close()
        del interpreter
        gc.collect()
        np.testing.assert_array_equal(view, X)

    def test_constants_are_read_only_views_and_cannot_be_set(self) -> None:
        interpreter = tflite.Interpreter(model_content=models.chain())
        np.testing.assert_array_equal(interpreter.get_tensor(3), [1])
        assert not interpreter.tensor(3)().flags.writeable
        with pytest.raises(ValueError, match="is a constant"):
            interpreter.set_tensor(3, np.ones(1, np.float32))

    def test_set_copies_and_get_copies(self) -> None:
        interpreter = opened(models.chain())
        value = X.copy()
        interpreter.set_tensor(0, value)
        value[:] = 9
        got = interpreter.get_tensor(0)
        np.testing.assert_array_equal(got, X)
        got[:] = 9
        np.testing.assert_array_equal(interpreter.get_tensor(0), X)
        assert got.flags.owndata

    @pytest.mark.parametrize("dtype", ["INT4", "UINT4", "INT2"])
    def test_packed_types_come_and_go_as_bytes(self, dtype: str) -> None:
        kind = np.uint8 if dtype == "UINT4" else np.int8
        interpreter = opened(models.typed(dtype, (2,)))
        value = np.array([0, 1], kind) if dtype == "UINT4" else np.array([-2, 1], kind)
        interpreter.set_tensor(0, value)
        got = interpreter.get_tensor(0)
        assert got.dtype == kind
        np.testing.assert_array_equal(got, value)
        with pytest.raises(ValueError, match="must be between"):
            interpreter.set_tensor(0, np.array([100, 0], kind))

    def test_other_byte_orders_are_converted(self) -> None:
        interpreter = opened(models.chain())
        interpreter.set_tensor(0, X.astype(">f4"))
        np.testing.assert_array_equal(interpreter.get_tensor(0), X)

    def test_sparse_constants_show_what_is_stored(self) -> None:
        dense = np.array([[0, 1, 0], [2, 0, 3]], np.float32)
        interpreter = opened(sparse_matrix(dense).encode())
        np.testing.assert_array_equal(interpreter.get_tensor(0), [1, 2, 3])
        np.testing.assert_array_equal(run(interpreter, dense)[0], 2 * dense)


class TestShapes:
    def test_an_unknown_dimension_has_the_files_size_until_it_is_resized(self) -> None:
        interpreter = opened(models.chain())
        assert interpreter.get_tensor(0).shape == (1, 2)
        interpreter.resize_tensor_input(0, [3, 2], strict=True)
        interpreter.allocate_tensors()
        assert run(interpreter, np.ones((3, 2), np.float32))[0].shape == (3, 2)

    def test_fixed_dimension_can_be_resized(self) -> None:
        interpreter = opened(models.chain())
        with pytest.raises(RuntimeError, match="only allows mutating unknown dimensions"):
            interpreter.resize_tensor_input(0, [1, 5], strict=True)
        interpreter.resize_tensor_input(0, [2, 5])
        interpreter.allocate_tensors()
        details = [d["shape"].tolist() for d in interpreter.get_tensor_details()]
        assert details == [[2, 5], [2, 5], [2, 5], [1]]
        np.testing.assert_array_equal(
            run(interpreter, np.ones((2, 5), np.float32))[0], np.full((2, 5), -2)
        )

    def test_resize_may_change_the_rank(self) -> None:
        interpreter = opened(models.chain())
        interpreter.resize_tensor_input(0, [2, 3, 4])
        interpreter.allocate_tensors()
        assert interpreter.get_tensor(2).shape == (2, 3, 4)

    def test_shapes_that_do_not_fit_fail_at_allocation_and_can_be_undone(self) -> None:
        interpreter = opened(models.per_channel())
        interpreter.resize_tensor_input(0, [1, 7])
        words = r"Node number 0 \(FULLY_CONNECTED\) failed to prepare"
        with pytest.raises(RuntimeError, match=words) as caught:
            interpreter.allocate_tensors()
        assert isinstance(caught.value.__cause__, errors.ModelError | errors.PlacementError)
        with pytest.raises(RuntimeError, match="not ready"):
            interpreter.invoke()
        interpreter.resize_tensor_input(0, [1, 2])
        interpreter.allocate_tensors()
        interpreter.invoke()

    def test_a_shape_seen_before_is_not_compiled_again(self) -> None:
        interpreter = opened(models.chain())
        for batch in (2, 1, 2, 1):
            interpreter.resize_tensor_input(0, [batch, 2])
            interpreter.allocate_tensors()
        assert len(interpreter._core._main._programs) == 2

    def test_models_of_old_shapes_are_closed(self) -> None:
        interpreter = opened(models.chain())
        first = next(iter(interpreter._core._main._programs.values())).compiled
        assert isinstance(first, CompiledModel)
        for batch in range(2, 9):
            interpreter.resize_tensor_input(0, [batch, 2])
            interpreter.allocate_tensors()
        with pytest.raises(errors.ClosedError):
            first.new_state()
        assert run(interpreter, np.ones((8, 2), np.float32))[0].shape == (8, 2)

    def test_an_output_known_at_run_time_only(self) -> None:
        interpreter = opened(models.where())
        with pytest.raises(ValueError, match="Tensor data is null"):
            interpreter.get_tensor(1)
        for held, rows in (([1, 0, 1, 1], [[0], [2], [3]]), ([0, 0, 0, 0], np.zeros((0, 1)))):
            np.testing.assert_array_equal(run(interpreter, np.array(held, bool))[0], rows)
            assert interpreter.get_output_details()[0]["shape"].tolist() == list(np.shape(rows))

    def test_a_shape_that_no_array_has_is_shown_and_has_no_value(self) -> None:
        huge = [0, *[2**31 - 1] * 3]
        interpreter = tflite.Interpreter(model_content=relu(shape=huge).encode())
        assert interpreter.get_input_details()[0]["shape"].tolist() == huge
        with pytest.raises(ValueError, match="Tensor data is null"):
            interpreter.get_tensor(0)
        with pytest.raises(RuntimeError):
            interpreter.allocate_tensors()

    def test_memory_beyond_all_bounds_is_an_error_of_allocation(self) -> None:
        interpreter = opened(models.chain())
        interpreter.resize_tensor_input(0, [2**31 - 1, 2**31 - 1])
        with pytest.raises(RuntimeError):
            interpreter.allocate_tensors()


class TestPreserving:
    def test_every_value_is_there_after_a_run(self) -> None:
        interpreter = preserving(models.chain())
        run(interpreter, X)
        np.testing.assert_array_equal(interpreter.get_tensor(1), X + 1)
        np.testing.assert_array_equal(interpreter.get_tensor(2), -X - 1)

    def test_without_it_they_are_refused_with_the_remedy(self) -> None:
        interpreter = opened(models.chain())
        run(interpreter, X)
        with pytest.raises(ValueError, match="experimental_preserve_all_tensors"):
            interpreter.get_tensor(1)

    def test_preserving_all_tensors_warns_unless_kernels_are_chosen(self) -> None:
        with pytest.warns(UserWarning, match="debugging purposes only"):
            opened(models.chain(), experimental_preserve_all_tensors=True)

    def test_preserved_variable_has_values_before_and_after_a_run(self) -> None:
        interpreter = preserving(accumulator().encode())
        for before in ([1, 2], [2, 3]):
            run(interpreter, np.ones(2, np.float32))
            np.testing.assert_array_equal(interpreter.get_tensor(2), before)
            np.testing.assert_array_equal(interpreter.get_tensor(3), np.add(before, 1))

    def test_a_variable_read_twice_and_read_back(self) -> None:
        file = FileBuilder()
        handle = file.tensor("handle", [], "RESOURCE")
        x, one, two, total, back = (file.tensor(n, [2]) for n in ("x", "one", "two", "s", "back"))
        initial = file.tensor("initial", [2], value=np.array([4, 5], np.float32))
        file.operator("VAR_HANDLE", [], [handle], {"container": "", "shared_name": "v"})
        file.operator("ASSIGN_VARIABLE", [handle, initial], [])
        file.operator("READ_VARIABLE", [handle], [one])
        file.operator("READ_VARIABLE", [handle], [two])
        file.operator("ADD", [x, one], [total], {})
        file.operator("ASSIGN_VARIABLE", [handle, total], [])
        file.operator("READ_VARIABLE", [handle], [back])
        interpreter = preserving(file.finish([x], [total]))
        run(interpreter, np.ones(2, np.float32))
        for tensor, value in ((one, [4, 5]), (two, [4, 5]), (total, [5, 6]), (back, [5, 6])):
            np.testing.assert_array_equal(interpreter.get_tensor(tensor), value)

    def test_dense_form_of_a_sparse_constant_is_preserved(self) -> None:
        dense = np.array([[0, 1, 0], [2, 0, 3]], np.float32)
        interpreter = preserving(sparse_matrix(dense).encode())
        run(interpreter, dense)
        np.testing.assert_array_equal(interpreter.get_tensor(2), dense)

    @pytest.mark.parametrize("choice", [True, False])
    def test_values_inside_a_branch_are_preserved(self, choice: bool) -> None:
        interpreter = preserving(models.branches())
        a, b = np.array([2, 3], np.float32), np.array([4, 5], np.float32)
        run(interpreter, np.array([choice]), a, b)
        taken, other = (1, 2) if choice else (2, 1)
        np.testing.assert_array_equal(interpreter.get_tensor(1, taken), b)
        np.testing.assert_array_equal(interpreter.get_tensor(2, taken), a + b if choice else a * b)
        with pytest.raises(ValueError, match="did not enter"):
            interpreter.get_tensor(2, other)

    def test_inside_a_loop_after_the_last_step(self) -> None:
        interpreter = preserving(models.doubling())
        assert run(interpreter, np.array([7], np.int32))[0] == [112]
        assert interpreter.get_tensor(1, 2) == [112]
        assert interpreter.get_tensor(0, 1) == interpreter.get_tensor(0, 2) == [112]
        assert not interpreter.get_tensor(1, 1)[0]
        assert interpreter.get_tensor(2, 1) == [100]


class TestState:
    def test_variable_tensors_are_seen_set_and_reset(self) -> None:
        interpreter = opened(svdf().encode())
        first = run(interpreter, X)[0]
        assert np.count_nonzero(interpreter.get_tensor(4))
        second = run(interpreter, X)[0]
        assert not np.array_equal(first, second)
        interpreter.reset_all_variables()
        assert not interpreter.get_tensor(4).any()
        np.testing.assert_array_equal(run(interpreter, X)[0], first)
        interpreter.set_tensor(4, np.zeros((1, 12), np.float32))
        np.testing.assert_array_equal(run(interpreter, X)[0], first)
        interpreter.tensor(4)().fill(0)
        np.testing.assert_array_equal(run(interpreter, X)[0], first)

    def test_resource_variables_outlast_a_reset(self) -> None:
        interpreter = opened(accumulator().encode())
        one = np.ones(2, np.float32)
        np.testing.assert_array_equal(run(interpreter, one)[0], [2, 3])
        interpreter.reset_all_variables()
        np.testing.assert_array_equal(run(interpreter, one)[0], [3, 4])

    def test_interpreters_do_not_share_state(self) -> None:
        content = accumulator().encode()
        one = np.ones(2, np.float32)
        a, b = opened(content), opened(content)
        run(a, one)
        np.testing.assert_array_equal(run(b, one)[0], [2, 3])

    def test_reset_before_allocation_fails(self) -> None:
        with pytest.raises(RuntimeError, match="allocate_tensors"):
            tflite.Interpreter(model_content=svdf().encode()).reset_all_variables()
        tflite.Interpreter(model_content=models.chain()).reset_all_variables()


class TestPlacement:
    def test_the_resolver_chooses_devices(self) -> None:
        names = []
        for resolver in tflite.OpResolverType:
            interpreter = opened(models.chain(), experimental_op_resolver_type=resolver)
            program = interpreter._core._main._program
            assert program is not None
            assert isinstance(program.compiled, CompiledModel)
            names.append({p.device for p in program.compiled.plan.operations})
        assert names[2] == {"reference"}

    def test_devices_and_policy_are_those_of_compile(self) -> None:
        device = NumpyDevice()
        interpreter = opened(relu().encode(), devices=[device])
        program = interpreter._core._main._program
        assert program is not None
        assert isinstance(program.compiled, CompiledModel)
        assert program.compiled.plan.operations[0].device == device.name
        with pytest.raises(RuntimeError) as caught:
            opened(
                models.chain(), devices=["reference"], policy=Policy(forbid={"NEG": "reference"})
            )
        assert isinstance(caught.value.__cause__, errors.PlacementError)

    def test_a_cache_directory_is_used(self, tmp_path: Path) -> None:
        device = CachingDevice()
        for method in ("prepare_model with caching", "prepare_model_from_cache"):
            opened(models.chain(), cache=tmp_path, devices=[device])
            assert device.methods[-1] == method

    @pytest.mark.parametrize(
        ("code", "words"),
        [
            ("FlexAdd", "Select TensorFlow op"),
            ("Mystery", "Encountered unresolved custom op: Mystery"),
        ],
    )
    def test_operators_nobody_has_are_named_in_both_tongues(self, code: str, words: str) -> None:
        file = FileBuilder()
        x, y = file.tensor("x", [1]), file.tensor("y", [1])
        file.operator(f"CUSTOM:{code}", [x], [y])
        interpreter = tflite.Interpreter(model_content=file.finish([x], [y]))
        with pytest.raises(RuntimeError, match=words) as caught:
            interpreter.allocate_tensors()
        text = str(caught.value)
        assert f"Node number 0 ({code}) failed to prepare.\n" in text
        assert "no device may run it" in text
        assert isinstance(caught.value.__cause__, errors.PlacementError)

    def test_a_driver_that_fails_at_run_time_is_a_runtime_error(self) -> None:
        file = FileBuilder()
        a, b, y = (file.tensor(n, [1], "INT32") for n in "aby")
        file.operator("DIV", [a, b], [y], {})
        interpreter = opened(file.finish([a, b], [y]))
        with pytest.raises(RuntimeError):
            run(interpreter, np.array([1], np.int32), np.array([0], np.int32))
        assert run(interpreter, np.array([6], np.int32), np.array([2], np.int32))[0] == [3]


class TestLife:
    def test_close_is_final_and_harmless_twice(self) -> None:
        with tflite.Interpreter(model_content=models.chain()) as interpreter:
            interpreter.allocate_tensors()
        interpreter.close()
        calls: tuple[Callable[[], object], ...] = (
            interpreter.invoke,
            interpreter.allocate_tensors,
            interpreter.get_input_details,
            interpreter.get_signature_list,
            interpreter.num_subgraphs,
            interpreter.tensor(0),
            lambda: interpreter.get_tensor(0),
            lambda: interpreter.set_tensor(0, X),
        )
        for call in calls:
            with pytest.raises(errors.ClosedError):
                call()

    def test_last_reference_closes_the_compiled_model(self) -> None:
        device = NumpyDevice()
        interpreter = opened(relu().encode(), devices=[device])
        twin, view = copy.copy(interpreter), interpreter.tensor(0)
        del interpreter, twin
        assert [p.closed for p in device.prepared] == [0]
        assert view().shape == (1, 4)
        del view
        assert [p.closed for p in device.prepared] == [1]

    def test_concurrent_use_from_two_threads_is_refused(self) -> None:
        running, go_on = threading.Event(), threading.Event()

        def wait(*_: object) -> None:
            running.set()
            go_on.wait(10)

        device = NumpyDevice(before=wait)
        interpreter = opened(relu().encode(), devices=[device])
        thread = threading.Thread(target=interpreter.invoke)
        thread.start()
        try:
            assert running.wait(10)
            for call in (
                interpreter.invoke,
                interpreter.tensor(0),
                interpreter.allocate_tensors,
                partial(interpreter.get_tensor, 0),
                partial(interpreter.set_tensor, 0, np.zeros((1, 4), np.float32)),
            ):
                with pytest.raises(errors.StateError, match="another thread"):
                    call()
        finally:
            go_on.set()
            thread.join()
        interpreter.invoke()

    def test_allocated_inputs_and_outputs_are_copied_directly_until_the_graph_changes(self) -> None:
        interpreter = tflite.Interpreter(model_content=relu().encode())
        direct = interpreter._core.direct
        assert direct == {}
        interpreter.allocate_tensors()
        assert sorted(direct) == [0, 1]
        interpreter.set_tensor(0, np.full((1, 4), 3, np.float32))
        interpreter.invoke()
        first = interpreter.get_tensor(1)
        np.testing.assert_array_equal(first, [[3, 3, 3, 3]])
        first[:] = 0
        np.testing.assert_array_equal(interpreter.get_tensor(1), [[3, 3, 3, 3]])
        interpreter.resize_tensor_input(0, [2, 4])
        assert direct == {}
        with pytest.raises(ValueError, match="Cannot set tensor"):
            interpreter.set_tensor(0, np.zeros((2, 4), np.float32))
        interpreter.allocate_tensors()
        assert sorted(direct) == [0, 1]
        interpreter.close()
        assert direct == {}
        with pytest.raises(errors.ClosedError):
            interpreter.get_tensor(1)

    @pytest.mark.parametrize("index", [0.0, np.int64(0), True, "0"])
    def test_an_index_of_another_type_takes_the_checks(self, index: Any) -> None:
        interpreter = opened(relu().encode())
        value = np.zeros((1, 4))
        calls: list[Any] = [interpreter.get_tensor, partial(interpreter.set_tensor, value=value)]
        if isinstance(index, float | str):
            for call in calls:
                with pytest.raises(TypeError, match="incompatible function arguments"):
                    call(index)
        else:
            assert interpreter.get_tensor(index).shape == (1, 4)

    def test_interpreter_does_not_pickle_and_copies_shallowly(self) -> None:
        interpreter = opened(models.chain())
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(interpreter)
        with pytest.raises(TypeError, match="cannot pickle"):
            copy.deepcopy(interpreter)
        interpreter.set_tensor(0, X)
        np.testing.assert_array_equal(copy.copy(interpreter).get_tensor(0), X)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
    @pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
    def test_interpreter_works_in_a_forked_child(self) -> None:
        interpreter = opened(accumulator().encode())
        run(interpreter, np.ones(2, np.float32))
        found = in_child(lambda: run(interpreter, np.ones(2, np.float32)))
        np.testing.assert_array_equal(found[0], [3, 4])
        np.testing.assert_array_equal(run(interpreter, np.ones(2, np.float32))[0], [3, 4])

    def test_object_that_is_no_delegate_is_refused_as_in_litert(self) -> None:
        interpreter = opened(models.chain())
        with pytest.raises(AttributeError):
            interpreter.modify_graph_with_delegate(object())
        with pytest.raises(ValueError, match="added to this interpreter"):
            interpreter.set_buffer_handle(0, 1, object())
        for kind in (ValueError, OSError):
            with pytest.raises(kind, match="Failed to load delegate from"):
                tflite.load_delegate("libthat_is_not_here.so")


def test_details_are_the_callers_own() -> None:
    interpreter = opened(models.chain())
    interpreter.get_input_details()[0]["shape"][:] = 7
    assert interpreter.get_input_details()[0]["shape"].tolist() == [1, 2]


def test_equal_zero_points_are_shown_as_one_where_asked() -> None:
    plain, compressed = (
        tflite.Interpreter(
            model_content=models.per_channel(),
            experimental_compress_quantization_zero_points=compress,
        )
        for compress in (False, True)
    )
    counts = [
        len(i.get_tensor_details()[1]["quantization_parameters"]["zero_points"])
        for i in (plain, compressed)
    ]
    assert counts == [3, 1]
    assert compressed.experimental_compress_quantization_zero_points


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (Delegate(), TypeError, "must be a list of delegates; for one, \\[delegate\\]"),
        (3, TypeError, "'int' object is not iterable: experimental_delegates must be a list"),
        ([3], AttributeError, "'int' object has no attribute .*: int is no delegate; load_deleg"),
        ("x", AttributeError, "'str' object has no attribute .*: str is no delegate; load_deleg"),
    ],
)
def test_wrong_list_of_delegates_is_refused_with_the_remedy(
    given: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        tflite.Interpreter(model_content=models.chain(), experimental_delegates=given)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"devices": ["nope"]}, "no device is named 'nope'"),
        ({"devices": "reference"}, "devices must be a list"),
        ({"policy": 3}, "policy must be a Policy, not int"),
        ({"policy": Policy(forbid={"NEG": "nope"})}, "no device is named 'nope'; there are "),
    ],
)
def test_devices_and_policies_are_checked_at_the_door(argument: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        tflite.Interpreter(model_content=models.chain(), **argument)
