"""The raw form of a delegate, as in TensorFlow Lite's delegate guide. Experimental until 1.0.

A delegate replaces nodes of an interpreter's graph with kernels of its own. When it is added, the
interpreter calls its `prepare`. This looks at the execution plan and calls
`DelegateContext.replace_node_subsets_with_delegate_kernels` for the nodes it takes. They are
partitioned into as few subsets as dependencies allow. Each subset becomes one delegate node, run by
the functions of a `DelegateRegistration`.

The order of calls for each delegate node: `init` once, when its nodes are replaced; `prepare` when
the graph is prepared, and again whenever the shapes of its inputs have changed; `invoke` at every
run; `free` once. All calls are made in the thread that uses the interpreter, one at a time.

An exception of an author's code becomes `DelegateError(delegate, stage)`: *stage* is "prepare" (the
delegate's or a kernel's), "init", "invoke", or the name of the method that moves buffers.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from msgspec import Struct, field

from penstock.arguments import check_kind
from penstock.delegates.codes import BuiltinOperator
from penstock.delegates.context import DelegateContext, DelegateTensor
from penstock.errors import FOREIGN, DelegateError
from penstock.ir import Attributes
from penstock.ir.operation import NO_ATTRIBUTES
from penstock.logs import Log

NULL_BUFFER_HANDLE: Final = -1
"""The handle of a tensor that is in no buffer of a delegate."""


class DelegateFlags(enum.IntFlag):
    """The abilities of a delegate (TFLite's `TfLiteDelegateFlags`).

    ALLOW_DYNAMIC_TENSORS: its kernels accept shapes that change, even in a run. Without it, a graph
    with such shapes rejects the delegate, and a resized input removes the delegate from the graph
    and adds it again, with new kernels. REQUIRE_PROPAGATED_SHAPES requests what Penstock always
    does.
    """

    NONE = 0
    ALLOW_DYNAMIC_TENSORS = 1
    REQUIRE_PROPAGATED_SHAPES = 2


class Delegate:
    """The base class of delegates. A subclass must override `copy_from_buffer_handle` and
    `prepare`.

    Without `copy_from_buffer_handle` the delegate is rejected. *flags* are its abilities. `data` is
    free for the author's use. An interpreter keeps references to its delegates, and frees their
    kernels before it drops them. One delegate may serve several interpreters.
    """

    flags: DelegateFlags = DelegateFlags.NONE
    data: Any = None

    def __init__(self, flags: DelegateFlags = DelegateFlags.NONE) -> None:
        check_kind(flags, int, "flags are DelegateFlags")
        self.flags = DelegateFlags(flags)

    def prepare(self, context: DelegateContext) -> None:
        """Takes nodes of the graph, or none.

        The interpreter calls it for each entry subgraph of the model, and for each subgraph that a
        branch or a loop enters. An exception restores the graph.
        """

    def copy_from_buffer_handle(
        self, context: DelegateContext, handle: int, tensor: DelegateTensor
    ) -> None:
        """Copies buffer *handle* to `tensor.data`. Required.

        `tensor.data` is writable, C-contiguous and of the tensor's shape. The interpreter calls
        this only when a tensor with `data_is_stale` is read.
        """
        raise NotImplementedError(f"{type(self).__name__} has no copy_from_buffer_handle")

    def copy_to_buffer_handle(
        self, context: DelegateContext, handle: int, tensor: DelegateTensor
    ) -> None:
        """Copies `tensor.data` to buffer *handle*. Optional: without it kernels read host data.

        The interpreter calls it before a kernel of this delegate runs, for each input whose buffer
        is older than its host data.
        """
        raise NotImplementedError(f"{type(self).__name__} has no copy_to_buffer_handle")

    def free_buffer_handle(self, context: DelegateContext, handle: int) -> None:
        """Releases buffer *handle*, which no tensor uses any more. Optional."""


Init: TypeAlias = Callable[[DelegateContext, "DelegateParams"], Any]
Step: TypeAlias = Callable[[DelegateContext, "DelegateNode"], Any]
Free: TypeAlias = Callable[[DelegateContext, Any], Any]


class DelegateRegistration(Struct, frozen=True):
    """The functions of one kind of delegate node.

    `init(context, params) -> user_data` makes a kernel for the nodes of *params*; None, or an
    exception, means that it failed. `prepare(context, node)` prepares it for the present shapes.
    `invoke(context, node)` computes `node.outputs` from `node.inputs`. `free(context, user_data)`
    releases it. Results of the last three are ignored. Only `invoke` is required; without `init`
    the node's `user_data` is None.
    """

    custom_name: str
    builtin_code: BuiltinOperator = BuiltinOperator.DELEGATE
    init: Init | None = None
    prepare: Step | None = None
    invoke: Step | None = None
    free: Free | None = None
    version: int = 1


class DelegateParams(Struct, frozen=True):
    """One subset of nodes for a kernel.

    *nodes* are in topological order. *inputs* are the tensors that the nodes read but do not
    compute, including constants. *outputs* are the tensors that they compute and that other nodes
    read or the graph returns. Tensor indexes ascend, without repetition.
    """

    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class DelegateNode(Struct, eq=False):
    """One node: the tensors it reads (-1 for an omitted input) and writes.

    *temporaries* is a list that a kernel's `prepare` may fill with tensors of
    `DelegateContext.add_tensor`. *user_data* is the result of the kernel's `init`, None for a node
    of the file. *attributes* are the operator's options, by the schema's names (a custom operator
    has `custom_code` and `custom_options`); a delegate node has none.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    temporaries: list[int] = field(default_factory=list)
    user_data: Any = None
    attributes: Attributes = NO_ATTRIBUTES


class Registration(Struct, frozen=True):
    """The operator of a node: its code, the schema's name, a custom name and the version.

    The custom name is that of a custom operator or kernel, "" for other operators.
    """

    builtin_code: BuiltinOperator
    builtin_name: str
    custom_name: str
    version: int


log = Log(__name__)


def name_of(delegate: Delegate) -> str:
    """The name of *delegate* in errors."""
    name = getattr(delegate, "name", "")
    return name if isinstance(name, str) and name else type(delegate).__name__


def call(delegate: Delegate, stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of *function*. Raises `DelegateError` for an exception of any other class."""
    try:
        return function(*arguments)
    except DelegateError:
        raise
    except FOREIGN as error:
        raise DelegateError(name_of(delegate), stage, described(error)) from error


def release(delegate: Delegate, stage: str, function: Callable[..., Any], *arguments: Any) -> None:
    """As `call`, but logs a failure instead of raising: for calls that have no caller to inform."""
    try:
        function(*arguments)
    except FOREIGN as error:  # an author may raise anything
        log.warning("delegate %s failed in %s: %s", name_of(delegate), stage, described(error))


def overrides(delegate: Delegate, method: str) -> bool:
    """Whether *delegate* overrides this method of the base class."""
    found = getattr(delegate, method)
    return getattr(found, "__func__", None) is not getattr(Delegate, method)


def described(error: BaseException) -> str:
    """An error's class and text in one line."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
