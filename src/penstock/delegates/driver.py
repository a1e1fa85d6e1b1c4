"""`DriverDelegate`: any device, or the whole runtime, as a delegate. Experimental until 1.0."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.delegates.api import DelegateFlags, DelegateNode, DelegateParams, Registration
from penstock.delegates.simple import DelegateKernel, SimpleDelegate
from penstock.errors import InputError
from penstock.hal import PREFERENCES, PRIORITIES, Device, Preference, Priority
from penstock.ir import DType, Model
from penstock.ir.types import static_shape
from penstock.logs import Log
from penstock.partitioning.policy import Policy
from penstock.partitioning.support import collect_support
from penstock.runtime import compile_arguments
from penstock.runtime.compiling import compile_model
from penstock.runtime.discovery import DeviceInfo, manager
from penstock.runtime.planning import check_rules, trusted

if TYPE_CHECKING:
    from penstock.cache.info import CacheInfo
    from penstock.compilation import Receipt
    from penstock.delegates.context import DelegateContext, PartitionModel
    from penstock.execution import CompiledModel, Outputs
    from penstock.partitioning.plan import ExecutionPlan

log = Log(__name__)

AnyDevice = str | DeviceInfo | Device

STRICT = Policy(allow_fallback=False)
"""No fallback: the interpreter reports a delegate that fails and continues without it."""


class CallerCache:
    """A compilation cache in the caller's *directory*; without a directory nothing is cached.

    *token* (text or bytes of any length), if given, names its entries. *names* are the delegate's
    names for the two options. Raises `InputError` for a token without a directory, an empty token,
    and for a wrong type.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        token: str | bytes | None,
        names: tuple[str, str],
    ) -> None:
        place, label = names
        self._directory, self._token, self._place = directory, None, place
        if directory is not None and not isinstance(directory, str | os.PathLike):
            raise InputError(f"{place} must be a directory, not {directory!r}")
        if directory is not None and Path(directory).exists() and not Path(directory).is_dir():
            raise InputError(f"{place} must be a directory, and {os.fspath(directory)!r} is none")
        if token is None:
            return
        if not isinstance(token, str | bytes):
            raise InputError(f"{label} must be text or bytes, not {token!r}")
        text = token.encode("utf-8") if isinstance(token, str) else token
        if not text:
            raise InputError(f"{label} is empty")
        if directory is None:
            raise InputError(f"{label} names entries in {place}, which is not given")
        self._token = hashlib.sha256(text).digest()

    def entry_of(self, part: PartitionModel) -> bool | CacheInfo:
        """The *cache* argument for compiling *part*: each subset has a separate entry."""
        from penstock.cache.info import CacheInfo

        if self._directory is None:
            return False
        if self._token is None:
            return CacheInfo(self._directory)
        nodes = ",".join(map(str, part.nodes))
        key = hashlib.sha256(self._token + nodes.encode("ascii")).digest()
        return CacheInfo(self._directory, key)

    def log_unsaved(self, receipt: Receipt) -> None:
        """Logs a warning for each step that could not be saved in the caller's directory."""
        for step in receipt.steps:
            cache = step.cache
            if self._directory is not None and cache.not_saved and not cache.is_to_be_written:
                directory = os.fspath(self._directory)
                log.warning("%s %s keeps nothing: %s", self._place, directory, cache.not_saved)


class DriverDelegate(SimpleDelegate):
    """Gives a device the nodes that it supports. The runtime compiles and runs each subset as a
    model.

    *device* is a device, its name or its `DeviceInfo`; several, in order of preference; or None for
    every usable one: the whole runtime as a delegate. *policy*, *preference*, *priority*, *cache*
    and *num_threads* are those of `penstock.compile`. Without a policy there is no fallback to
    another device. *num_threads* None takes the interpreter's.

    Raises `PlacementError` at once for a device that does not exist or is not usable, with the
    reason; `InputError` for a wrong option, and for a *policy* that names devices that do not
    exist.
    """

    caller_cache: CallerCache | None = None
    """A directory for compiled subsets, instead of *cache*."""

    def __init__(
        self,
        device: AnyDevice | Sequence[AnyDevice] | None = None,
        *,
        policy: Policy | None = None,
        preference: Preference = "fast_single_answer",
        priority: Priority = "medium",
        cache: Any = True,
        num_threads: int | None = None,
        max_delegated_partitions: int | None = None,
        min_nodes_per_partition: int | None = None,
    ) -> None:
        self.policy = STRICT if policy is None else policy
        compile_arguments.check_types(None, num_threads, None, self.policy, None)
        compile_arguments.cache_info(cache)
        checked_choice("preference", preference, PREFERENCES)
        checked_choice("priority", priority, PRIORITIES)
        super().__init__(
            DelegateFlags.ALLOW_DYNAMIC_TENSORS,
            max_delegated_partitions=max_delegated_partitions,
            min_nodes_per_partition=min_nodes_per_partition,
        )
        if isinstance(device, str | DeviceInfo) or not isinstance(device, Sequence | None):
            device = [device]
        self.devices: list[Device] = manager.choose(device)
        check_rules(self.policy, self.devices, manager)
        self.preference, self.priority = preference, priority
        self.cache, self.num_threads = cache, num_threads
        names = ", ".join(d.name for d in self.devices)
        self.name = f"{type(self).__name__}({names})"
        self._found = threading.local()
        self._kernels: list[DriverKernel] = []
        self.reasons: dict[int, str] = {}
        """Reasons why nodes of the last graph were not taken, by node."""

    def initialize(self, context: DelegateContext) -> None:
        """Asks the devices about all replaceable nodes in one call."""
        reasons = {i: why for i in context.execution_plan if (why := context.reason_kept(i))}
        taken = []
        if nodes := [i for i in context.execution_plan if i not in reasons]:
            part = context.partition_model(nodes)
            for node, refused in zip(part.nodes, self.refusals(part.model), strict=True):
                if refused:
                    reasons[node] = refused
                else:
                    taken.append(node)
        self._found.nodes = frozenset(id(context.node_and_registration(i)[0]) for i in taken)
        self.reasons = reasons

    def refusals(self, model: Model) -> list[str]:
        """Why no device of this delegate supports each operation of *model*; "" if one does."""
        table = collect_support(model, trusted(self.devices, self.policy), self.policy)
        return [
            ""
            if table.takers(at)
            else "; ".join(f"{name}: {reason}" for name, reason in table.refusals(at).items())
            for at in range(len(model.operations))
        ]

    def is_node_supported(
        self, registration: Registration, node: DelegateNode, context: DelegateContext
    ) -> bool:
        """Whether any device supports the node."""
        return id(node) in getattr(self._found, "nodes", ())

    def create_kernel(self) -> DelegateKernel:
        """A kernel that compiles its nodes for the devices."""
        self._kernels.append(kernel := DriverKernel(self))
        return kernel

    def compiled(self, model: CompiledModel) -> None:
        """Called with each compiled subset."""
        if self.caller_cache is not None:
            self.caller_cache.log_unsaved(model.receipt)

    def ran(self, outputs: Outputs) -> None:
        """Called with the outputs of each run of a subset."""

    @property
    def plans(self) -> tuple[ExecutionPlan, ...]:
        """The plan of each prepared delegate node, in order of creation."""
        return tuple(k.compiled.plan for k in self._kernels if k.compiled is not None)

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The receipt of each prepared node's compile, in the same order."""
        return tuple(k.compiled.receipt for k in self._kernels if k.compiled is not None)

    @property
    def run_receipts(self) -> tuple[Receipt, ...]:
        """The receipt of each node's last run, in the same order."""
        return tuple(k.outputs.receipt for k in self._kernels if k.outputs is not None)

    def forget(self, kernel: DriverKernel) -> None:
        if kernel in self._kernels:
            self._kernels.remove(kernel)


class DriverKernel(DelegateKernel):
    """One subset of nodes, compiled."""

    def __init__(self, delegate: DriverDelegate) -> None:
        self._delegate = delegate
        self._params: DelegateParams | None = None
        self._part: PartitionModel | None = None
        self._static: tuple[bool, ...] = ()
        self.compiled: CompiledModel | None = None
        self.outputs: Outputs | None = None

    def init(self, context: DelegateContext, params: DelegateParams) -> None:
        self._params = params

    def prepare(self, context: DelegateContext, node: DelegateNode) -> None:
        """Compiles for the present shapes. Raises what `penstock.compile` does."""
        delegate, kept = self._delegate, self._delegate.caller_cache
        self._close()
        part = context.partition_model(() if self._params is None else self._params.nodes)
        threads = context.num_threads if delegate.num_threads is None else delegate.num_threads
        self.compiled = compile_model(
            part.model,
            devices=delegate.devices,
            preference=delegate.preference,
            priority=delegate.priority,
            num_threads=threads,
            cache=delegate.cache if kept is None else kept.entry_of(part),
            policy=delegate.policy,
        )
        delegate.compiled(self.compiled)
        self._part = part
        self._static = tuple(
            static_shape(operand.shape) is not None
            and operand.dtype is not DType.STRING
            and not context.tensor(tensor).is_variable
            for tensor, operand in zip(part.outputs, part.model.outputs, strict=True)
        )

    def invoke(self, context: DelegateContext, node: DelegateNode) -> None:
        """Runs directly on the tensors' memory. Raises what `CompiledModel.run` does."""
        part, compiled = self._part, self.compiled
        if part is None or compiled is None:
            return
        given = [context.tensor(i).data for i in part.inputs]
        places = [
            context.tensor(i).data if static else None
            for i, static in zip(part.outputs, self._static, strict=True)
        ]
        self.outputs = compiled.run(given, out=places)
        self._delegate.ran(self.outputs)
        for tensor, place, value in zip(part.outputs, places, self.outputs, strict=True):
            if place is None:
                if not context.tensor(tensor).is_variable:
                    context.resize_tensor(tensor, value.shape)
                context.tensor(tensor).data[...] = value

    def free(self) -> None:
        self._close()
        self._delegate.forget(self)

    def _close(self) -> None:
        compiled, self.compiled, self.outputs = self.compiled, None, None
        if compiled is not None:
            compiled.close()


def checked_count(name: str, value: int) -> int:
    """*value* if it is a whole number of at least 0; else raises `InputError` with the option."""
    if type(value) is not int or value < 0:
        raise InputError(f"{name} is a whole number, 0 or more, not {value!r}")
    return value


def checked_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Raises `InputError` with the option unless *value* is one of *choices*."""
    if value not in tuple(choices):
        raise InputError(f"{name} {value!r} is not one of {', '.join(map(str, choices))}")
