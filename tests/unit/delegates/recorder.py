"""A delegate that computes unary operators with NumPy, writes down every call, and fails where it
is told to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock import delegates
from penstock.ir import NDArray

COMPUTE: dict[str, Callable[..., Any]] = {
    "NEG": np.negative,
    "ABS": np.abs,
    "RELU": lambda x: np.maximum(x, 0),
    "SQUARE": np.square,
    "ADD": np.add,
}


class Recorder(delegates.Delegate):
    """Takes the nodes whose operator is one of *kinds*.

    *events* are the calls: ("init", nodes), ("prepare", nodes, input shape), ("invoke", nodes),
    ("free", nodes) and those that move buffers. *fail* names the event that raises: "prepare",
    "init", "kernel prepare", "invoke", or with a number, as in "init 1", that of the kernel. With
    *buffers* results are left there under handles of the tensors' numbers.
    """

    def __init__(
        self,
        *kinds: str,
        flags: delegates.DelegateFlags = delegates.DelegateFlags.NONE,
        fail: str = "",
        buffers: bool = False,
        name: str = "recorder",
    ) -> None:
        super().__init__(flags)
        self.kinds, self.fail, self.name, self.buffered = kinds, fail, name, buffers
        self.events: list[tuple[Any, ...]] = []
        self.buffers: dict[int, NDArray] = {}
        self.made = 0
        self.plans: list[tuple[int, ...]] = []

    def prepare(self, context: delegates.DelegateContext) -> None:
        chosen = self.chosen(context)
        functions = delegates.DelegateRegistration(
            f"{self.name} kernel",
            init=self._init,
            prepare=self._prepare,
            invoke=self._invoke,
            free=self._free,
        )
        context.replace_node_subsets_with_delegate_kernels(functions, chosen, self)
        self.plans.append(context.execution_plan)
        self._maybe_fail("prepare")

    def chosen(self, context: delegates.DelegateContext) -> list[int]:
        return [i for i in context.execution_plan if self._takes(context, i)]

    def copy_from_buffer_handle(
        self, context: delegates.DelegateContext, handle: int, tensor: delegates.DelegateTensor
    ) -> None:
        self.events.append(("copy from", handle, tensor.index))
        self._maybe_fail("copy from")
        tensor.data[...] = self.buffers[handle]

    def free_buffer_handle(self, context: delegates.DelegateContext, handle: int) -> None:
        self.events.append(("free buffer", handle))

    def names(self, *wanted: str) -> list[Any]:
        """The events of these names, each without its name where it is alone."""
        found = [e for e in self.events if e[0] in wanted]
        return [e[1] for e in found] if len(wanted) == 1 else found

    def _takes(self, context: delegates.DelegateContext, index: int) -> bool:
        return context.node_and_registration(index)[1].builtin_name in self.kinds

    def _init(self, context: delegates.DelegateContext, params: delegates.DelegateParams) -> Any:
        self.events.append(("init", params.nodes))
        if self.fail == f"none {self.made}":
            return None
        self._maybe_fail("init", f"init {self.made}")
        self.made += 1
        return params

    def _prepare(self, context: delegates.DelegateContext, node: delegates.DelegateNode) -> None:
        self.events.append(
            ("kernel prepare", node.user_data.nodes, context.tensor(node.inputs[0]).shape)
        )
        self._maybe_fail("kernel prepare")

    def _invoke(self, context: delegates.DelegateContext, node: delegates.DelegateNode) -> None:
        self.events.append(("invoke", node.user_data.nodes))
        self._maybe_fail("invoke")
        values: dict[int, NDArray] = {}
        for index in node.user_data.nodes:
            inner, registration = context.node_and_registration(index)
            given = [
                values[i] if i in values else self._read(context.tensor(i)) for i in inner.inputs
            ]
            values[inner.outputs[0]] = COMPUTE[registration.builtin_name](*given)
        for index in node.outputs:
            self._write(context, context.tensor(index), values[index])

    def _read(self, tensor: delegates.DelegateTensor) -> NDArray:
        if tensor.buffer_handle >= 0 and tensor.buffer_handle in self.buffers:
            return self.buffers[tensor.buffer_handle]
        return tensor.data

    def _write(
        self, context: delegates.DelegateContext, tensor: delegates.DelegateTensor, value: NDArray
    ) -> None:
        if tensor.shape != value.shape:
            context.resize_tensor(tensor.index, value.shape)
        if self.buffered:
            if tensor.buffer_handle < 0:
                tensor.buffer_handle = tensor.index + 100
            self.buffers[tensor.buffer_handle] = value
            tensor.data_is_stale = True
        else:
            tensor.data[...] = value

    def _free(self, context: delegates.DelegateContext, user_data: Any) -> None:
        self.events.append(("free", user_data.nodes))

    def _maybe_fail(self, *stages: str) -> None:
        if self.fail in stages:
            raise RuntimeError(f"told to fail in {self.fail}")


class Uploading(Recorder):
    """A `Recorder` that takes host data into its buffers."""

    def copy_to_buffer_handle(
        self, context: delegates.DelegateContext, handle: int, tensor: delegates.DelegateTensor
    ) -> None:
        self.events.append(("copy to", handle, tensor.index))
        self.buffers[handle] = np.array(tensor.data)
