"""One subgraph of an interpreter with delegates: its execution plan and its kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from penstock.delegates import api
from penstock.delegates.api import Delegate, DelegateParams, DelegateRegistration, call, name_of
from penstock.delegates.context import DelegateContext, PartitionModel
from penstock.delegates.nodes import Node, Subset, Value, cut_into_subsets, nodes_of
from penstock.delegates.tensors import Tensors
from penstock.errors import DelegateError, InputError, StateError
from penstock.ir import Model, NDArray
from penstock.ir.types import static_shape
from penstock.loaders.tflite.catalog import SubgraphEntry
from penstock.partitioning.split import Cut, Cutter


class Subgraphs(Protocol):
    """The other subgraphs of an interpreter, which branches and loops enter."""

    def has_kernels(self, subgraph: int) -> bool:
        """Whether a delegate has a node in this subgraph, or in a subgraph that it enters."""
        ...

    def run(self, subgraph: int, given: Sequence[NDArray]) -> list[NDArray]:
        """Its outputs, in order, for *given* inputs. Raises what an interpreter's run does."""
        ...


@dataclass(slots=True, eq=False)
class Kernel(Node):
    """A delegate node: *members* are the file's nodes that it replaced."""

    members: tuple[int, ...] = ()
    delegate: Delegate = None  # type: ignore[assignment]  # given by name
    functions: DelegateRegistration = None  # type: ignore[assignment]  # given by name
    invoke: api.Step = None  # type: ignore[assignment]  # given by name


class DelegatedGraph:
    """The nodes of one subgraph, its delegates, and the resulting plan. Not thread-safe."""

    def __init__(
        self,
        catalog: SubgraphEntry,
        subgraph: int,
        model: Model,
        *,
        cluster: bool = True,
        fuse: bool = True,
        num_threads: int | None = None,
        subgraphs: Subgraphs | None = None,
    ) -> None:
        self.catalog, self.num_threads, self.subgraphs = catalog, num_threads, subgraphs
        self._subgraph, self._cluster, self._fuse = subgraph, cluster, fuse
        self._nodes: list[Node] = nodes_of(catalog, model.entry, subgraph)
        self._file_plan = tuple(range(len(self._nodes)))
        self.plan = self._file_plan
        self.delegates: tuple[Delegate, ...] = ()
        held = {
            t: o
            for n in self._nodes
            for t, o in n.operands.items()
            if not catalog.tensors[t].is_variable
        }
        self.tensors = Tensors(self, model, held)
        self.model = model
        self._prepared: Model | None = model
        self._cutter: Cutter | None = None
        self._adding: Delegate | None = None
        self._failure: BaseException | None = None

    @property
    def context(self) -> DelegateContext:
        """The delegates' view, created each time: a stored one would be a reference cycle."""
        return DelegateContext(self)

    @property
    def kernels(self) -> list[Kernel]:
        """The delegate nodes of the plan, in order of creation."""
        planned = set(self.plan)
        return [n for n in self._nodes if isinstance(n, Kernel) and n.index in planned]

    @property
    def entered(self) -> tuple[int, ...]:
        """The subgraphs that branches and loops of the plan enter."""
        return tuple(sorted({t for i in self.plan for t in self._nodes[i].targets}))

    @property
    def takes_dynamic_shapes(self) -> bool:
        """Whether every delegate allows shapes that change."""
        return all(map(_is_dynamic, self.delegates))

    def item(self, index: int) -> Node:
        """Node *index*; raises `InputError` if it does not exist."""
        if type(index) is not int or not 0 <= index < len(self._nodes):
            raise InputError(f"there is no node {index!r}; the graph has {len(self._nodes)}")
        return self._nodes[index]

    def node(self, index: int) -> tuple[api.DelegateNode, api.Registration]:
        found = self.item(index)
        return found.node, found.registration

    def reason_kept(self, index: int) -> str:
        """Why node *index* cannot be replaced; "" if it can."""
        found = self.item(index)
        if isinstance(found, Kernel):
            return f"it is a kernel of delegate {name_of(found.delegate)!r}"
        if index not in self.plan:
            return "another delegate has it"
        return found.kept

    def preview(self, nodes: Iterable[int]) -> list[DelegateParams]:
        """The subsets that would replace *nodes*."""
        return [self._params(s.nodes) for s in self._subsets(nodes) if s.delegated]

    def within_limits(self, nodes: Iterable[int], most: int | None, least: int) -> list[int]:
        """The nodes of the largest subsets."""
        subsets = [s for s in self._subsets(nodes) if s.delegated and len(s.nodes) >= least]
        large = sorted(subsets, key=lambda s: -len(s.nodes))
        return sorted(chain.from_iterable(s.nodes for s in large[:most]))

    def partition_model(self, nodes: Sequence[int]) -> PartitionModel:
        items = [self.item(i) for i in nodes]
        for item in items:
            if isinstance(item, Kernel) or item.kept:
                reason = item.kept or "it is a kernel"
                raise InputError(f"node {item.index} is not for a model: {reason}")
        owner = {o: item for item in items for o in item.operations}
        cut = self.cut(owner)
        inputs = {o: t for item in items for t, o in item.operands.items()}
        updates = {o: t for item in items for t, o in item.updates.items()}
        return PartitionModel(
            cut.model,
            tuple(inputs[o] for o in cut.inputs),
            tuple(updates.get(o, o) for o in cut.outputs),
            tuple(owner[o].index for o in cut.operations),
        )

    def cut(self, operations: Iterable[int]) -> Cut:
        """These operations of the model, with the present shapes."""
        if self._cutter is None:
            self._cutter = Cutter(self.model)
        return self._cutter.cut(sorted(operations))

    def add(self, delegate: Delegate) -> None:
        """Adds *delegate*, and prepares its kernels. A failure restores the graph."""
        if any(delegate is known for known in self.delegates):
            raise DelegateError(name_of(delegate), "prepare", "it has been added already")
        if not api.overrides(delegate, "copy_from_buffer_handle"):
            reason = "it has no copy_from_buffer_handle, which every delegate needs"
            raise DelegateError(name_of(delegate), "prepare", reason)
        if reason := refuses(self.model, delegate):
            raise DelegateError(name_of(delegate), "prepare", reason)
        plan, count = self.plan, len(self._nodes)
        self._adding, self._failure = delegate, None
        try:
            with self.tensors.acting(delegate):
                call(delegate, "prepare", delegate.prepare, self.context)
                self._adding = None
                self._raise_failure(delegate)
                for kernel in self._nodes[count:]:
                    self._prepare(kernel)
        except BaseException:
            self._restore(plan, count, delegate)
            raise
        finally:
            self._adding = self._failure = None
        self.delegates = (*self.delegates, delegate)

    def remove_last(self) -> None:
        delegate = self.delegates[-1]
        self.delegates = self.delegates[:-1]
        mine = [k for k in self.kernels if k.delegate is delegate]
        first = min((k.index for k in mine), default=len(self._nodes))
        members = {k.index: k.members for k in mine}
        plan = tuple(chain.from_iterable(members.get(i, (i,)) for i in self.plan))
        self._restore(plan, first, delegate)

    def replace(
        self, registration: DelegateRegistration, nodes: Iterable[int], delegate: Delegate
    ) -> None:
        """Replaces *nodes* by kernels. Records a failure, even if the delegate catches it."""
        if self._adding is None or delegate is not self._adding:
            raise StateError(
                "nodes are replaced by a delegate's prepare, while it is added, and for itself"
            )
        try:
            if not isinstance(registration, DelegateRegistration):
                raise InputError(f"{type(registration).__name__} is no DelegateRegistration")
            plan: list[int] = []
            for subset in self._subsets(nodes):
                if subset.delegated:
                    plan.append(self._kernel(registration, subset, delegate).index)
                else:
                    plan += subset.nodes
            self.plan = tuple(plan)
        except BaseException as error:
            self._failure = self._failure or error
            raise

    def at(self, model: Model) -> None:
        """Prepares every kernel for *model*; tries all, then raises the first `DelegateError`."""
        if model is self._prepared:
            return
        self._prepared = None
        self.model = self.tensors.model = model
        self._cutter = None
        self.tensors.values = {}
        if self.takes_dynamic_shapes:
            for kernel in self.kernels:
                self._prepare(kernel)
            self._prepared = model
        else:
            self._free_kernels()
            self.tensors.let_go(self.delegates, lent_too=False)
            self._prepared = model
            self._add_again()

    def after_fork(self) -> None:
        """Creates kernels and buffers again in a child process: the parent owns the old ones."""
        self.tensors.forget()
        self._add_again()

    def close(self) -> None:
        """Frees kernels, then buffers, then drops the delegates. A second call has no effect."""
        self._free_kernels()
        self.tensors.let_go(self.delegates, lent_too=True)
        self.delegates = ()
        self.subgraphs = None

    def _raise_failure(self, delegate: Delegate) -> None:
        """The failure of `replace`, if the delegate's `prepare` ignored it."""
        failure = self._failure
        if isinstance(failure, DelegateError) or not isinstance(failure, Exception | None):
            raise failure
        if failure is not None:
            raise DelegateError(name_of(delegate), "prepare", api.described(failure)) from failure

    def _add_again(self) -> None:
        delegates, self.delegates = self.delegates, ()
        self._drop_kernels()
        failures: list[DelegateError] = []
        for delegate in delegates:
            try:
                self.add(delegate)
            except DelegateError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _kernel(
        self, functions: DelegateRegistration, subset: Subset, delegate: Delegate
    ) -> Kernel:
        invoke = functions.invoke
        if invoke is None:
            raise InputError(f"registration {functions.custom_name!r} has no invoke")
        params = self._params(subset.nodes)
        for index in params.outputs:
            if self.tensors.buffer(index).owner not in (None, delegate):
                raise InputError(f"tensor {index} belongs to another delegate's buffers")
        user_data: Any = None
        if functions.init is not None:
            user_data = call(delegate, "init", functions.init, self.context, params)
            if user_data is None:
                reason = f"init of {functions.custom_name!r} returned None"
                raise DelegateError(name_of(delegate), "init", reason)
        members = [self._nodes[i] for i in subset.nodes]
        written: set[Value] = set().union(*(m.writes for m in members))
        code = functions.builtin_code
        kernel = Kernel(
            len(self._nodes),
            api.DelegateNode(params.inputs, params.outputs, user_data=user_data),
            api.Registration(code, code.name, functions.custom_name, functions.version),
            operations=tuple(sorted(o for m in members for o in m.operations)),
            operands={t: o for m in reversed(members) for t, o in m.operands.items()},
            updates={t: o for m in members for t, o in m.updates.items()},
            reads=frozenset().union(*(m.reads for m in members)) - written,
            writes=frozenset(written),
            members=subset.nodes,
            delegate=delegate,
            functions=functions,
            invoke=invoke,
        )
        self._nodes.append(kernel)
        self.tensors.claim(params.outputs, delegate)
        return kernel

    def _prepare(self, kernel: Node) -> None:
        if isinstance(kernel, Kernel) and kernel.functions.prepare is not None:
            own = (*kernel.node.outputs, *kernel.node.temporaries)
            with self.tensors.acting(kernel.delegate), self.tensors.writing(own):
                function = kernel.functions.prepare
                call(kernel.delegate, "prepare", function, self.context, kernel.node)

    def _restore(self, plan: tuple[int, ...], count: int, delegate: Delegate) -> None:
        """Restores *plan*. Frees the nodes from *count* on, and the delegate's buffers."""
        self.plan = plan
        for kernel in self._nodes[count:]:
            self._free(kernel)
        del self._nodes[count:]
        self.tensors.let_go((delegate,), lent_too=True)

    def _free_kernels(self) -> None:
        for kernel in self.kernels:
            self._free(kernel)
        self._drop_kernels()

    def _drop_kernels(self) -> None:
        self.plan = self._file_plan
        del self._nodes[len(self._file_plan) :]

    def _free(self, kernel: Node) -> None:
        if isinstance(kernel, Kernel) and kernel.functions.free is not None:
            user_data, kernel.node.user_data = kernel.node.user_data, None
            with self.tensors.acting(kernel.delegate):
                function = kernel.functions.free
                api.release(kernel.delegate, "free", function, self.context, user_data)

    def _subsets(self, nodes: Iterable[int]) -> list[Subset]:
        """The subsets of the plan if *nodes* are replaced. Raises `InputError` if one cannot be."""
        wanted = tuple(nodes)
        for index in wanted:
            if reason := self.reason_kept(index):
                name = self._nodes[index].registration.builtin_name
                raise InputError(f"node {index} ({name}) cannot be replaced: {reason}")
        producers = {v: i for i in self.plan for v in self._nodes[i].writes}
        depends = {
            i: {producers[v] for v in self._nodes[i].reads if v in producers} - {i}
            for i in self.plan
        }
        return cut_into_subsets(
            self.plan, frozenset(wanted), depends, cluster=self._cluster, fuse=self._fuse
        )

    def _params(self, nodes: Sequence[int]) -> DelegateParams:
        inside = frozenset(nodes)
        chosen = [self._nodes[i] for i in nodes]
        read = {t for n in chosen for t in n.node.inputs if t >= 0}
        written = {t for n in chosen for t in n.node.outputs}
        elsewhere = set(self.catalog.outputs).union(
            *(self._nodes[i].node.inputs for i in self._file_plan if i not in inside)
        )
        changed = {t for n in chosen for t in n.updates}
        return DelegateParams(
            tuple(nodes),
            tuple(sorted(read - (written - changed))),
            tuple(sorted(written & elsewhere - changed)),
        )


def refuses(model: Model, delegate: Delegate) -> str:
    """Why *delegate* cannot be added to a graph with these shapes; "" if it can."""
    if _is_dynamic(delegate):
        return ""
    for index in chain.from_iterable(operation.outputs for operation in model.operations):
        operand = model.operands[index]
        if static_shape(operand.shape) is None:
            dynamic = operand.name or f"operand {index}"
            return (
                f"it takes static shapes only, and the shape of {dynamic!r} is known only at run "
                "time; a delegate that can do more has the flag ALLOW_DYNAMIC_TENSORS"
            )
    return ""


def _is_dynamic(delegate: Delegate) -> bool:
    return bool(delegate.flags & api.DelegateFlags.ALLOW_DYNAMIC_TENSORS)
