"""Buffer handles: who copies what, when, and who frees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.delegates import NULL_BUFFER_HANDLE, DelegateContext, DelegateNode, DelegateTensor
from penstock.errors import DelegateError, InputError
from tests.unit.delegates import graphs
from tests.unit.delegates.recorder import Recorder, Uploading
from tests.unit.delegates.test_delegates import X, opened, run
from tests.unit.loaders.files import accumulator

COPIES = ("copy from", "copy to", "free buffer")


def copies(delegate: Recorder) -> list[tuple[Any, ...]]:
    found = delegate.names(*COPIES)
    delegate.events.clear()
    return found


class TestResults:
    def test_outputs_are_copied_back_after_a_run(self) -> None:
        delegate = Recorder("NEG", buffers=True)
        interpreter = opened(graphs.chain("NEG"), delegate)
        interpreter.set_tensor(0, X)
        interpreter.invoke()
        assert copies(delegate) == [("copy from", 101, 1)]
        np.testing.assert_array_equal(interpreter.get_tensor(1), -X)
        np.testing.assert_array_equal(interpreter.get_tensor(1), -X)
        assert copies(delegate) == []

    def test_outputs_stay_until_they_are_read_where_that_is_allowed(self) -> None:
        delegate = Recorder("NEG", buffers=True)
        interpreter = opened(graphs.chain("NEG"), delegate)
        interpreter.set_allow_buffer_handle_output(True)
        for _ in range(3):
            run_only(interpreter)
        assert copies(delegate) == []
        np.testing.assert_array_equal(interpreter.get_tensor(1), -X)
        assert copies(delegate) == [("copy from", 101, 1)]
        run_only(interpreter)
        interpreter.ensure_tensor_data_is_readable(1)
        interpreter.ensure_tensor_data_is_readable(1)
        interpreter.ensure_tensor_data_is_readable(0)
        assert copies(delegate) == [("copy from", 101, 1)]
        run_only(interpreter)
        view = interpreter.tensor(1)()
        np.testing.assert_array_equal(view, -X)
        del view
        interpreter.set_allow_buffer_handle_output(False)
        run_only(interpreter)
        assert copies(delegate) == [("copy from", 101, 1)] * 2

    def test_values_between_kernels_of_one_delegate_stay_in_buffers(self) -> None:
        delegate = Recorder("NEG", buffers=True)
        content = graphs.chain("NEG", "NEG")
        interpreter = opened(content, delegate, experimental_disable_delegate_node_fusion=True)
        run(interpreter, X)
        assert copies(delegate) == [("copy from", 102, 2)]
        np.testing.assert_array_equal(interpreter.get_tensor(1), -X)
        assert copies(delegate) == [("copy from", 101, 1)]

    @pytest.mark.parametrize("second", [(), ("ABS",)])
    def test_value_read_by_other_kernels_is_copied_once(self, second: tuple[str, ...]) -> None:
        delegate = Recorder("NEG", buffers=True)
        others = [Recorder(*second, name="second")] if second else []
        interpreter = opened(graphs.chain("NEG", "ABS"), delegate, *others)
        np.testing.assert_array_equal(run(interpreter, X)[0], np.abs(X))
        assert copies(delegate) == [("copy from", 101, 1)]

    def test_unread_value_is_not_copied(self) -> None:
        delegate = Recorder("NEG", buffers=True)
        interpreter = opened(graphs.diamond(), delegate)
        interpreter.set_allow_buffer_handle_output(True)
        run_only(interpreter)
        assert copies(delegate) == [("copy from", 103, 3)]

    def test_a_copy_that_fails_is_named_and_tried_again(self) -> None:
        delegate = Recorder("NEG", buffers=True, fail="copy from")
        interpreter = opened(graphs.chain("NEG"), delegate)
        with pytest.raises(DelegateError, match="recorder") as caught:
            run_only(interpreter)
        assert caught.value.stage == "copy_from_buffer_handle"
        with pytest.raises(DelegateError):
            interpreter.get_tensor(1)
        delegate.fail = ""
        np.testing.assert_array_equal(interpreter.get_tensor(1), -X)

    def test_stale_data_in_no_buffer_cannot_be_read(self) -> None:
        class Forgetful(Recorder):
            def _invoke(self, context: DelegateContext, node: Any) -> None:
                context.tensor(node.outputs[0]).data_is_stale = True

        with pytest.raises(DelegateError, match="lies in no buffer"):
            opened(graphs.chain("NEG"), Forgetful("NEG")).invoke()

    def test_a_kernel_may_write_host_memory_in_one_run_and_a_buffer_in_the_next(self) -> None:
        delegate = Uploading("NEG", buffers=True)
        content = graphs.chain("NEG", "NEG")
        interpreter = opened(content, delegate, experimental_disable_delegate_node_fusion=True)
        run(interpreter, X)
        delegate.buffered = False
        copies(delegate)
        np.testing.assert_array_equal(run(interpreter, 2 * X)[0], 2 * X)
        assert copies(delegate) == [("copy to", 101, 1)]


class TestInputs:
    def test_a_buffer_feeds_an_input(self) -> None:
        delegate = Recorder("NEG")
        interpreter = opened(graphs.chain("NEG"), delegate)
        delegate.buffers[7] = X
        interpreter.set_buffer_handle(0, 7, delegate)
        interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(1), -X)
        assert copies(delegate) == []
        np.testing.assert_array_equal(interpreter.get_tensor(0), X)
        assert copies(delegate) == [("copy from", 7, 0)]

    def test_other_kernels_read_a_copy_of_a_buffer(self) -> None:
        delegate = Recorder("NEG")
        interpreter = opened(graphs.chain("ABS", "NEG"), delegate)
        delegate.buffers[7] = X
        interpreter.set_buffer_handle(0, 7, delegate)
        interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(2), -np.abs(X))
        assert copies(delegate) == [("copy from", 7, 0)]

    @pytest.mark.parametrize("by_view", [False, True])
    def test_newer_host_data_goes_to_the_buffer_before_a_kernel_reads_it(
        self, by_view: bool
    ) -> None:
        delegate = Uploading("NEG")
        interpreter = opened(graphs.chain("NEG"), delegate)
        delegate.buffers[7] = np.zeros(2, np.float32)
        interpreter.set_buffer_handle(0, 7, delegate)
        if by_view:
            interpreter.tensor(0)()[:] = X
        else:
            interpreter.set_tensor(0, X)
        assert copies(delegate) == ([("copy from", 7, 0)] if by_view else [])
        interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(1), -X)
        np.testing.assert_array_equal(delegate.buffers[7], X)
        assert copies(delegate) == [("copy to", 7, 0)]
        interpreter.invoke()
        assert copies(delegate) == []

    def test_without_copy_to_a_kernel_reads_host_data(self) -> None:
        class Reading(Recorder):
            def _read(self, tensor: DelegateTensor) -> Any:
                return tensor.data

        delegate = Reading("NEG")
        interpreter = opened(graphs.chain("NEG"), delegate)
        interpreter.set_buffer_handle(0, 7, delegate)
        interpreter.set_tensor(0, X)
        interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(1), -X)
        assert copies(delegate) == []

    def test_runtime_result_is_copied_to_the_buffer(self) -> None:
        class Placing(Uploading):
            def _prepare(self, context: DelegateContext, node: Any) -> None:
                context.tensor(node.inputs[0]).buffer_handle = 50

        delegate = Placing("NEG")
        interpreter = opened(graphs.chain("ABS", "NEG"), delegate)
        np.testing.assert_array_equal(run(interpreter, X)[0], -np.abs(X))
        assert copies(delegate) == [("copy to", 50, 1)]


class TestHandles:
    def test_an_output_is_left_in_the_buffer_that_the_user_names(self) -> None:
        delegate = Recorder("NEG", buffers=True)
        interpreter = opened(graphs.chain("NEG"), delegate)
        interpreter.set_buffer_handle(1, 9, delegate)
        np.testing.assert_array_equal(run(interpreter, X)[0], -X)
        np.testing.assert_array_equal(delegate.buffers[9], -X)
        assert copies(delegate) == [("copy from", 9, 1)]

    def test_a_buffer_is_freed_when_another_takes_its_place_and_at_the_end(self) -> None:
        delegate = Recorder("NEG")
        interpreter = opened(graphs.chain("NEG"), delegate)
        interpreter.set_buffer_handle(0, 7, delegate)
        interpreter.set_buffer_handle(0, 7, delegate)
        interpreter.set_buffer_handle(0, 8, delegate)
        assert copies(delegate) == [("free buffer", 7)]
        interpreter.set_buffer_handle(0, NULL_BUFFER_HANDLE, delegate)
        assert copies(delegate) == [("free buffer", 8)]
        interpreter.set_buffer_handle(0, 9, delegate)
        interpreter.close()
        assert copies(delegate) == [("free buffer", 9)]

    def test_a_resized_input_lets_its_buffer_go(self) -> None:
        delegate = Recorder("NEG")
        interpreter = opened(graphs.chain("NEG", "ABS"), delegate)
        interpreter.set_buffer_handle(0, 7, delegate)
        interpreter.resize_tensor_input(0, [3])
        assert copies(delegate) == [("free buffer", 7)]
        interpreter.allocate_tensors()
        np.testing.assert_array_equal(run(interpreter, np.ones(3, np.float32))[0], [1, 1, 1])

    def test_buffer_of_another_delegate_is_refused(self) -> None:
        first, second = Recorder("NEG"), Recorder("ABS", name="second")
        interpreter = opened(graphs.chain("NEG", "ABS", "RELU"), first, second)
        with pytest.raises(InputError, match="belongs to delegate 'recorder'"):
            interpreter.set_buffer_handle(1, 1, second)
        with pytest.raises(InputError, match="added to this interpreter"):
            interpreter.set_buffer_handle(0, 1, Recorder("NEG"))
        with pytest.raises(InputError, match="whole number"):
            interpreter.set_buffer_handle(0, -5, first)
        with pytest.raises(ValueError, match="Invalid tensor index 9"):
            interpreter.set_buffer_handle(9, 1, first)
        with pytest.raises(ValueError, match="Invalid tensor index 9"):
            interpreter.ensure_tensor_data_is_readable(9)
        constants = opened(graphs.convolved("NEG"), first)
        with pytest.raises(InputError, match="constant"):
            constants.set_buffer_handle(1, 1, first)
        assert copies(first) == []

    def test_foreign_values_get_no_buffer_of_the_delegate(self) -> None:
        delegate = Recorder("NEG")
        interpreter = opened(graphs.chain("ABS", "NEG", "NEG", "RELU", "ABS"), delegate)
        for tensor, name in ((2, "t2"), (4, "t4"), (5, "t5")):
            told = (
                rf"tensor {tensor} \({name}\) is computed, and no kernel of that delegate reads or"
            )
            with pytest.raises(ValueError, match=told):
                interpreter.set_buffer_handle(tensor, 7, delegate)
        for tensor in (0, 1, 3):  # fed; read and written by its kernel
            interpreter.set_buffer_handle(tensor, tensor, delegate)
        interpreter.close()
        assert sorted(copies(delegate)) == [("free buffer", h) for h in (0, 1, 3)]

    def test_a_buffer_of_several_tensors_is_freed_once_none_lies_in_it(self) -> None:
        delegate, other = Recorder("NEG"), Recorder("ABS", name="other")
        interpreter = opened(graphs.chain("NEG", "ABS"), delegate, other)
        interpreter.set_buffer_handle(0, 7, delegate)
        interpreter.set_buffer_handle(1, 7, delegate)
        interpreter.set_buffer_handle(2, 7, other)
        interpreter.set_buffer_handle(0, NULL_BUFFER_HANDLE, delegate)
        assert copies(delegate) == []
        interpreter.set_buffer_handle(1, 8, delegate)
        assert copies(delegate) == [("free buffer", 7)]
        interpreter.set_buffer_handle(0, 8, delegate)
        interpreter.close()
        assert copies(delegate) == [("free buffer", 8)]
        assert copies(other) == [("free buffer", 7)]

    def test_values_in_buffers_reach_variables(self) -> None:
        delegate = Recorder("ADD", buffers=True)
        interpreter = opened(accumulator().encode(), delegate)
        plain = opened(accumulator().encode())
        for _ in range(3):
            got, wanted = (run(i, np.ones(2, np.float32))[0] for i in (interpreter, plain))
            np.testing.assert_array_equal(got, wanted)


def run_only(interpreter: Any) -> None:
    interpreter.set_tensor(0, X)
    interpreter.invoke()


class Moving(Recorder):
    """Leaves its results in a new buffer each time, from number 200 on."""

    def __init__(self, *kinds: str, fail: str = "") -> None:
        super().__init__(*kinds, buffers=True)
        self.late_failure, self.next = fail, 200

    def _write(self, context: DelegateContext, tensor: DelegateTensor, value: Any) -> None:
        tensor.buffer_handle = self.next
        self.next += 1
        super()._write(context, tensor, value)
        if self.late_failure == str(self.next):
            raise RuntimeError("told to fail after its result")


class TestBuffersThatKernelsReplace:
    def test_a_replaced_buffer_is_freed_when_the_kernel_returns(self) -> None:
        delegate = Moving("NEG")
        interpreter = opened(graphs.chain("NEG", "ABS"), delegate)
        for count in range(3):
            np.testing.assert_array_equal(run(interpreter, X)[0], np.abs(X))
            assert delegate.names("free buffer") == [200 + at for at in range(count)]
        interpreter.close()
        assert delegate.names("free buffer") == [200, 201, 202]

    def test_buffer_is_freed_after_the_kernel(self) -> None:
        delegate = Moving("NEG")
        interpreter = opened(graphs.chain("NEG"), delegate)
        run_only(interpreter)
        delegate.events.clear()
        run_only(interpreter)
        names = [e[0] for e in delegate.events]
        assert names.index("invoke") < names.index("free buffer")
        assert delegate.buffers.keys() == {200, 201}

    def test_failed_kernel_has_its_replaced_buffers_freed(self) -> None:
        delegate = Moving("NEG", fail="202")
        interpreter = opened(graphs.chain("NEG", "ABS"), delegate)
        run_only(interpreter)
        with pytest.raises(DelegateError, match="told to fail after"):
            run_only(interpreter)
        assert delegate.names("free buffer") == [200]

    def test_a_buffer_that_another_tensor_takes_over_is_not_freed(self) -> None:
        class Swapping(Recorder):
            """The input and the output change buffers with each other after each run."""

            def _invoke(self, context: DelegateContext, node: DelegateNode) -> None:
                super()._invoke(context, node)
                given, made = (context.tensor(i) for i in (node.inputs[0], node.outputs[0]))
                given.buffer_handle, made.buffer_handle = made.buffer_handle, given.buffer_handle

        delegate = Swapping("NEG")
        interpreter = opened(graphs.chain("NEG"), delegate)
        interpreter.set_buffer_handle(0, 7, delegate)
        interpreter.set_buffer_handle(1, 8, delegate)
        interpreter.set_tensor(0, X)
        for _ in range(2):
            interpreter.invoke()
        assert delegate.names("free buffer") == []
        interpreter.close()
        assert sorted(delegate.names("free buffer")) == [7, 8]

    def test_a_buffer_that_the_user_named_is_freed_when_the_kernel_replaces_it(self) -> None:
        delegate = Moving("NEG")
        interpreter = opened(graphs.chain("NEG", "ABS"), delegate)
        interpreter.set_buffer_handle(1, 9, delegate)
        run_only(interpreter)
        assert delegate.names("free buffer") == [9]

    def test_a_tensor_taken_out_of_its_buffer_frees_it(self) -> None:
        class Leaving(Recorder):
            def _invoke(self, context: DelegateContext, node: DelegateNode) -> None:
                super()._invoke(context, node)
                context.tensor(node.outputs[0]).buffer_handle = NULL_BUFFER_HANDLE

        delegate = Leaving("NEG")
        interpreter = opened(graphs.chain("NEG"), delegate)
        interpreter.set_buffer_handle(1, 9, delegate)
        np.testing.assert_array_equal(run(interpreter, X)[0], -X)
        assert delegate.names("free buffer") == [9]
