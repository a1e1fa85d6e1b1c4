"""The simple form of a delegate: which nodes it takes, and a kernel. Experimental until 1.0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.delegates import api
from penstock.delegates.api import Delegate, DelegateFlags, DelegateNode, DelegateParams
from penstock.delegates.codes import BuiltinOperator
from penstock.errors import GeneralFailure, InputError

if TYPE_CHECKING:
    from penstock.delegates.context import DelegateContext, DelegateTensor


class DelegateKernel:
    """Computes one subset of nodes. A subclass overrides `invoke`; every other method is optional.

    An exception is a failure of that stage; the result is ignored.
    """

    def init(self, context: DelegateContext, params: DelegateParams) -> None:
        """Called once, when the nodes of *params* are replaced; *context* has their constants."""

    def prepare(self, context: DelegateContext, node: DelegateNode) -> None:
        """Called after `init` and after shape changes. The inputs' shapes are known."""

    def invoke(self, context: DelegateContext, node: DelegateNode) -> None:
        """Writes the data of `node.outputs`. Required."""
        raise NotImplementedError(f"{type(self).__name__} has no invoke")

    def free(self) -> None:
        """Called once, when the node is removed."""


class SimpleDelegate(Delegate):
    """A delegate that decides for each node whether to take it.

    A subclass overrides `is_node_supported` and `create_kernel`. *max_delegated_partitions* (None:
    all) and *min_nodes_per_partition* limit the subsets that it takes, largest first; a class may
    set both. Two kinds of nodes are not offered: nodes of another delegate, and nodes whose network
    state no tensor holds (resource variables, tables, generators).
    """

    name: str = ""
    """The delegate's name in errors; by default the name of its class."""

    max_delegated_partitions: int | None = None
    min_nodes_per_partition: int = 0

    def __init__(
        self,
        flags: DelegateFlags = DelegateFlags.NONE,
        *,
        max_delegated_partitions: int | None = None,
        min_nodes_per_partition: int | None = None,
    ) -> None:
        super().__init__(flags)
        if max_delegated_partitions is not None:
            self.max_delegated_partitions = max_delegated_partitions
        if min_nodes_per_partition is not None:
            self.min_nodes_per_partition = min_nodes_per_partition

    def initialize(self, context: DelegateContext) -> None:
        """Called before the first node is offered. Optional."""

    def is_node_supported(
        self, registration: api.Registration, node: DelegateNode, context: DelegateContext
    ) -> bool:
        """Whether a kernel can take this node. Required."""
        raise NotImplementedError(f"{type(self).__name__} has no is_node_supported")

    def create_kernel(self) -> DelegateKernel:
        """Creates a kernel for one subset of nodes. Required."""
        raise NotImplementedError(f"{type(self).__name__} has no create_kernel")

    def copy_from_buffer_handle(
        self, context: DelegateContext, handle: int, tensor: DelegateTensor
    ) -> None:
        """Raises `GeneralFailure`: a simple delegate keeps no buffers."""
        raise GeneralFailure(f"{type(self).__name__} keeps no buffers")

    def prepare(self, context: DelegateContext) -> None:
        """Asks about each node, partitions, and takes the largest subsets within the limits."""
        self.initialize(context)
        found = []
        for index in context.execution_plan:
            if not context.reason_kept(index):
                node, registration = context.node_and_registration(index)
                if self.is_node_supported(registration, node, context):
                    found.append(index)
        most, least = self.max_delegated_partitions, self.min_nodes_per_partition
        for limit in (most, least):
            if limit is not None and (type(limit) is not int or limit < 0):
                raise InputError(
                    f"a limit of a delegate is a whole number, 0 or more, not {limit!r}"
                )
        if nodes := context.nodes_within_limits(found, most, least):
            kernels = api.DelegateRegistration(
                self.name or type(self).__name__,
                BuiltinOperator.DELEGATE,
                init=self._init,
                prepare=lambda context, node: node.user_data.prepare(context, node),
                invoke=lambda context, node: node.user_data.invoke(context, node),
                free=lambda _, kernel: kernel.free(),
            )
            context.replace_node_subsets_with_delegate_kernels(kernels, nodes, self)

    def _init(self, context: DelegateContext, params: DelegateParams) -> DelegateKernel:
        kernel = self.create_kernel()
        if kernel is None:
            raise InputError("create_kernel returned None, not a DelegateKernel")
        kernel.init(context, params)
        return kernel
