"""Checks the arguments of `compile_model`."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from penstock import hal, knobs
from penstock.arguments import check_kind
from penstock.compilation.prepared import NO_CACHE_ASKED
from penstock.errors import InputError, Unreadable
from penstock.execution.interface import Interface, find_name
from penstock.hal.config import PORTABLE, ProgressCallback
from penstock.ir import Model
from penstock.logs import Log
from penstock.partitioning.policy import Policy
from penstock.runtime.discovery import DeviceInfo

if TYPE_CHECKING:
    from penstock.cache.info import CacheInfo
    from penstock.cache.verdicts import Verdict
    from penstock.execution.variant import Variant
    from penstock.partitioning.costs import Costs

log = Log(__name__)


class Counter(Protocol):
    """A source of the energy consumed so far, in microjoules."""

    def read(self) -> int: ...


Shapes = Mapping[str, Sequence[int]] | Mapping[int, Sequence[int]]
"""Full shapes by the names of inputs, or by their positions."""


class CompileArguments(Struct, frozen=True):
    """The arguments that decide the result of a compile; a pickled model keeps them."""

    devices: Sequence[str | DeviceInfo | hal.Device] | None
    preference: hal.Preference = "fast_single_answer"
    priority: hal.Priority = "medium"
    num_threads: int | None = None
    signature: str | None = None
    shapes: Shapes | None = None
    policy: Policy = field(default_factory=Policy)
    cache: CacheInfo | None = None
    tune: bool = False
    isolate: bool | None = None
    attributes: tuple[hal.ExtensionAttribute, ...] = ()
    uncached: str = NO_CACHE_ASKED
    """Why *cache* is None."""
    variants: Callable[[Policy], Callable[..., Variant]] | None = None
    """Makes the class of the compiled forms, as `Variant` is one; None for `Variant` itself."""
    portable: str | None = None


def _no_costs() -> Costs:
    # Not imported for a plan that is kept.
    from penstock.partitioning.costs import NO_COSTS

    return NO_COSTS


class Occasion(Struct, frozen=True):
    """The placement problem of one compile.

    *source* is the model before *shapes* (by input position) were put into it, *model* the model
    after. *named* maps names to the devices that plans may use. *directory* is the cache directory
    (None: no verdict is read or stored there). *counter* finds the energy counter (None: the
    machine's); *clock* gives nanoseconds (None: the machine's clock). *verdicts* are those that the
    same compiled model has measured, by key. *costs* are the measured costs of the devices.
    """

    source: Model
    model: Model
    shapes: Mapping[int, Sequence[int]]
    devices: Sequence[hal.Device]
    named: Mapping[str, hal.Device]
    policy: Policy
    config: hal.PrepareConfig
    directory: str | None = None
    counter: Callable[[], Counter | None] | None = None
    clock: Callable[[], int] | None = None
    verdicts: dict[str, Verdict] | None = None
    costs: Costs = field(default_factory=_no_costs)

    @property
    def measured_shapes(self) -> dict[int, tuple[int, ...]]:
        """The input shapes to measure with that are not the source's own, by position.

        An unknown first dimension, the batch, is `GUESSED_BATCH`. An input that is unknown beyond
        it has no shape here.
        """
        from penstock.ir.types import static_shape
        from penstock.partitioning.work import GUESSED_BATCH

        found = {}
        pairs = zip(self.source.inputs, self.model.inputs, strict=True)
        for position, (before, operand) in enumerate(pairs):
            shape = operand.shape
            if shape and shape[0] is None:
                shape = (GUESSED_BATCH, *shape[1:])
            if (known := static_shape(shape)) is not None and known != before.shape:
                found[position] = known
        return found

    @property
    def verdict_key(self) -> str:
        """The key of the measured placement. It depends on the model's content, not on its file.

        A model whose batch is unknown has the key of the shapes that are measured for it.
        """
        from penstock.cache.ingredients import placement_key

        policy, demands = self.policy, dict[str, object]()
        for name in ("accuracy", "min_coverage", "max_partitions", "min_partition_size"):
            demands[name] = getattr(policy, name)
        for name, rules in (("require", policy.require), ("forbid", policy.forbid)):
            demands[name] = {key: list(names) for key, names in rules.items()}
        return placement_key(self.source, self.devices, self.config, self.measured_shapes, demands)


def check_types(
    cancel: object,
    num_threads: object,
    shapes: object,
    policy: object,
    progress: object,
    tune: object = False,
    isolate: object = None,
) -> None:
    """Raises `InputError` for an argument of `compile_model` of a wrong type."""
    check_kind(cancel, (hal.CancelToken, NoneType), "cancel must be a CancelToken")
    if num_threads is not None and (type(num_threads) is not int or num_threads < 1):
        raise InputError(f"num_threads must be a whole number, 1 or more, not {num_threads!r}")
    wanted = "shapes must map input names or positions to shapes"
    check_kind(shapes, (Mapping, NoneType), wanted)
    check_kind(policy, Policy, "policy must be a Policy")
    if progress is not None and not callable(progress):
        kind = type(progress).__name__
        raise InputError(f"progress must be callable with a ProgressEvent, not {kind}")
    if not isinstance(tune, bool):
        raise InputError(f"tune must be true or false, not {tune!r}")
    if isolate is not None and not isinstance(isolate, bool):
        raise InputError(f"isolate must be true, false or None, not {isolate!r}")


def checked_options(portable: str | None) -> tuple[tuple[str, str], ...]:
    """`portable_options` of a baseline that a device is known to have."""
    return () if portable is None else ((PORTABLE, portable),)


def portable_options(
    portable: object, devices: Sequence[hal.Device]
) -> tuple[tuple[str, str], ...]:
    """The options of a compile for the baseline *portable* (None: for this processor). Raises
    `InputError` if none of *devices* can compile for it.
    """
    if portable is None:
        return ()
    known = sorted({name for d in devices for name in d.capabilities.baselines})
    if portable not in known:
        choices = f"one of {', '.join(known)}" if known else "left out: no device compiles for any"
        raise InputError(f"portable names a processor baseline, {choices}; not {portable!r}")
    return checked_options(str(portable))


def cache_info(cache: object) -> tuple[CacheInfo | None, str]:
    """The cache that *cache* of `compile_model` selects; None, and the reason, for no cache."""
    if cache is None or cache is False:
        return None, NO_CACHE_ASKED
    from penstock.cache.info import CacheInfo

    if isinstance(cache, CacheInfo):
        return cache, ""
    if cache is True:
        from penstock.cache.info import default_directory

        try:
            return CacheInfo(default_directory(), store=knobs.cache_store()), ""
        except Unreadable as error:
            log.warning("nothing is cached: %s", error.args[0])
            return None, str(error.args[0])
    if isinstance(cache, str) and "://" in cache:
        from penstock.cache.info import default_directory

        return CacheInfo(default_directory(), store=cache), ""
    if isinstance(cache, str | os.PathLike) and os.fspath(cache):
        if os.path.isfile(cache):  # noqa: PTH113  # importing pathlib is too slow for a warm start
            raise InputError(f"cache must be a directory, and {os.fspath(cache)!r} is a file")
        return CacheInfo(cache), ""
    raise InputError(f"cache must be true, false, a directory or a CacheInfo, not {cache!r}")


def shapes_by_position(interface: Interface, shapes: Shapes | None) -> dict[int, tuple[int, ...]]:
    """*shapes* by the model's input positions. Raises `InputError` for an invalid one."""
    result: dict[int, tuple[int, ...]] = {}
    for name, shape in (shapes or {}).items():
        try:
            dimensions = tuple(operator.index(d) for d in shape)
        except TypeError:
            dimensions = (-1,)
        if any(d < 0 for d in dimensions):
            raise InputError(f"shape {shape!r} of input {name!r} must be whole numbers, 0 or more")
        key: object = name
        count = len(interface.inputs)
        if isinstance(key, str):
            at = find_name(key, interface.input_names, "input")
        elif isinstance(key, int) and not isinstance(key, bool) and 0 <= key < count:
            at = key
        else:
            raise InputError(f"shapes: no input has the position {key!r}; the model has {count}")
        position = interface.input_positions[at]
        if result.setdefault(position, dimensions) != dimensions:
            raise InputError(f"two shapes are given for the input that {name!r} is a name of")
    return result


class Reporter:
    """Calls *callback* and stores its exception, to be raised to the caller."""

    def __init__(self, callback: ProgressCallback) -> None:
        self._callback = callback
        self.error: BaseException | None = None

    def __call__(self, event: hal.ProgressEvent) -> None:
        try:
            self._callback(event)
        except BaseException as error:
            self.error = self.error or error
            raise
