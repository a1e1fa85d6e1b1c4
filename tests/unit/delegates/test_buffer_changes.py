"""Buffers while the graph around them changes: shapes, forks, other delegates, and values that the
runtime computes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock import delegates
from penstock.errors import DelegateError
from tests.unit.delegates import graphs
from tests.unit.delegates.recorder import Recorder, Uploading
from tests.unit.delegates.test_buffers import copies
from tests.unit.delegates.test_delegates import X, opened, run, same
from tests.unit.loaders.files import FileBuilder

DYNAMIC = delegates.DelegateFlags.ALLOW_DYNAMIC_TENSORS
ONES = np.ones(3, np.float32)


class Placing(Uploading):
    """Takes its first input in buffer 50."""

    def _prepare(self, context: delegates.DelegateContext, node: delegates.DelegateNode) -> None:
        context.tensor(node.inputs[0]).buffer_handle = 50


class Keeping(Placing):
    """Says that its input is in the buffer alone once it has read it."""

    def _invoke(self, context: delegates.DelegateContext, node: delegates.DelegateNode) -> None:
        super()._invoke(context, node)
        context.tensor(node.inputs[0]).data_is_stale = True


def test_a_resize_keeps_the_buffers_that_the_user_named_and_frees_the_kernels() -> None:
    delegate = Recorder("NEG", buffers=True)
    interpreter = opened(graphs.chain("NEG", "ABS", "NEG"), delegate)
    interpreter.set_buffer_handle(3, 9, delegate)
    run(interpreter, X)
    copies(delegate)
    interpreter.resize_tensor_input(0, [3])
    interpreter.allocate_tensors()
    assert delegate.names("free buffer") == [101]
    np.testing.assert_array_equal(run(interpreter, ONES)[0], -ONES)
    np.testing.assert_array_equal(delegate.buffers[9], -ONES)
    assert delegate.names("free buffer") == [101]


@pytest.mark.parametrize("flags", [delegates.DelegateFlags.NONE, DYNAMIC])
@pytest.mark.parametrize("is_set", [False, True])
def test_resizing_an_input_frees_its_delegate_buffer(
    flags: delegates.DelegateFlags, is_set: bool
) -> None:
    first = Uploading("NEG", flags=flags)
    second = Uploading("ABS", flags=flags, name="second")
    interpreter = opened(graphs.chain("NEG", "ABS"), first, second)
    interpreter.set_buffer_handle(0, 7, first)
    if is_set:
        interpreter.set_tensor(0, X)
    interpreter.resize_tensor_input(0, [3])
    interpreter.allocate_tensors()
    np.testing.assert_array_equal(interpreter.get_tensor(0), np.zeros(3))
    assert copies(first)[-1] == ("free buffer", 7)
    second.buffers[8] = ONES
    interpreter.set_buffer_handle(0, 8, second)
    np.testing.assert_array_equal(interpreter.get_tensor(0), ONES)


def test_forked_child_has_and_frees_no_buffer() -> None:
    delegate = Uploading("NEG", buffers=True)
    interpreter = opened(graphs.chain("NEG"), delegate)
    delegate.buffers[7] = X
    interpreter.set_buffer_handle(0, 7, delegate)
    interpreter.invoke()
    copies(delegate)
    graph: Any = interpreter._core.graph(0)._delegated
    graph.after_fork()
    assert [graph.tensors.buffer(i).handle for i in (0, 1)] == [delegates.NULL_BUFFER_HANDLE] * 2
    assert not graph.tensors.buffer(0).stale
    np.testing.assert_array_equal(run(interpreter, 2 * X)[0], -2 * X)
    assert copies(delegate) == [("copy from", 101, 1)]


def test_second_delegate_may_not_compute_a_value_in_foreign_buffers() -> None:
    first, second = Placing("NEG"), Recorder("ABS", name="second")
    interpreter = opened(graphs.chain("ABS", "NEG"), first)
    with pytest.raises(DelegateError, match="tensor 1 belongs to another delegate's buffers"):
        interpreter.modify_graph_with_delegate(second)
    np.testing.assert_array_equal(run(interpreter, X)[0], -np.abs(X))
    assert second.names("invoke") == []


def test_runtime_result_replaces_the_value_of_a_buffer() -> None:
    delegate = Keeping("NEG")
    interpreter = opened(graphs.chain("ABS", "NEG"), delegate)
    for factor in (1, 2, 3):
        value = np.float32(factor) * X
        np.testing.assert_array_equal(run(interpreter, value)[0], -np.abs(value))
    assert copies(delegate) == [("copy to", 50, 1)] * 3


def test_earlier_host_value_is_copied_to_a_named_buffer() -> None:
    """The kernel says that its input lies in no buffer, and names one in its first run."""

    class Late(Uploading):
        def _prepare(
            self, context: delegates.DelegateContext, node: delegates.DelegateNode
        ) -> None:
            context.tensor(node.inputs[0]).buffer_handle = delegates.NULL_BUFFER_HANDLE

        def _invoke(self, context: delegates.DelegateContext, node: delegates.DelegateNode) -> None:
            super()._invoke(context, node)
            context.tensor(node.inputs[0]).buffer_handle = 50

    delegate = Late("NEG")
    interpreter = opened(graphs.chain("NEG"), delegate)
    np.testing.assert_array_equal(run(interpreter, X)[0], -X)
    assert copies(delegate) == []
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(1), -X)
    assert copies(delegate) == [("copy to", 50, 0)]


def twice() -> bytes:
    """Two SVDF after another, with one state between them."""
    file = FileBuilder()
    x, y, z = (file.tensor(n, [1, 2]) for n in ("x", "y", "z"))
    rng = np.random.default_rng(3)
    features, time = (
        file.tensor(n, [2, 2], value=rng.normal(size=(2, 2)).astype("f4")) for n in ("f", "t")
    )
    state = file.tensor("state", [1, 4], is_variable=True)
    options = {"rank": 1, "fused_activation_function": 0}
    file.operator("SVDF", [x, features, time, -1, state], [y], options)
    file.operator("SVDF", [y, features, time, -1, state], [z], options)
    return file.finish([x], [z])


@pytest.mark.parametrize("fuse", [True, False])
def test_kernel_reads_a_variable_before_and_after_a_change(fuse: bool) -> None:
    delegate = delegates.DriverDelegate("reference", cache=False)
    interpreter = opened(twice(), delegate, experimental_disable_delegate_node_fusion=not fuse)
    plain = opened(twice())
    for factor in (1, 2, 3):
        value = np.array([[factor, -0.5]], np.float32)
        for got, wanted in zip(run(interpreter, value), run(plain, value), strict=True):
            np.testing.assert_array_equal(got, wanted)
    same(
        twice(),
        np.ones((1, 2), np.float32),
        interpreter=opened(twice(), delegates.DriverDelegate("reference", cache=False)),
    )
