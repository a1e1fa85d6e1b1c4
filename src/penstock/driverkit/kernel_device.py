"""`KernelDevice`: a device whose operations are Python functions, each marked with `kernel`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock import errors, hal
from penstock.driverkit.request_arrays import input_arrays, mapped_pools, write_results
from penstock.driverkit.site import Site, make_sites
from penstock.hal.request import NO_TIMING
from penstock.ir import DType, Model, NDArray, Operand
from penstock.ir.operand import split_key
from penstock.ir.operations import OPERATIONS
from penstock.ir.types import is_masked

if TYPE_CHECKING:
    from penstock.memory.domain import Claim

CLIPS: Final[Mapping[str, tuple[float | None, float | None]]] = {
    "NONE": (None, None),
    "RELU": (0.0, None),
    "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
}
"""Fused activations on floats: the least and the greatest value."""

MAX_MESSAGE: Final = 300

Kernel: TypeAlias = Callable[..., "NDArray | Sequence[NDArray]"]
"""`kernel(self, site, *inputs)`: gets one array for each input, None for an omitted input. Returns
one array, or one for each output.
"""

MARK: Final = "_penstock_kernel"
CUSTOM: Final = "CUSTOM:"

K = TypeVar("K", bound=Callable[..., Any])


class Mark(Struct, frozen=True):
    """What `kernel` attaches to a method."""

    types: tuple[str, ...]
    dtypes: frozenset[DType]


def kernel(*types: str, dtypes: Sequence[str] = ("float32",)) -> Callable[[K], K]:
    """Marks a method of a `KernelDevice` as the kernel of operations of these *types*.

    *types* are rows of the operation table (`CUSTOM:<code>` for custom operators,
    `EXTENSION:<name>:<number>` for operations of an extension, whose own operand types are arrays
    of uint8). *dtypes* are the element types that inputs and outputs may have. Raises `InputError`
    if *types* is empty, or for an unknown type or element type.
    """
    known = {d.value: d for d in DType}
    if not types or not all(isinstance(t, str) for t in types):
        raise errors.InputError('kernel needs the operations it is for: @kernel("RELU")')
    operations = list(OPERATIONS)
    for kind in types:
        if not kind.startswith(CUSTOM) and split_key(kind) is None and kind not in operations:
            from difflib import get_close_matches

            near = ", ".join(get_close_matches(kind.upper(), operations))
            remedy = f"; near it: {near}" if near else ""
            raise errors.InputError(f"kernel: no operation is named {kind!r}{remedy}")
    if isinstance(dtypes, str):
        raise errors.InputError(f"kernel: dtypes is a list of element types: dtypes=[{dtypes!r}]")
    if unknown := [d for d in dtypes if d not in known]:
        raise errors.InputError(f"kernel: no element type is named {', '.join(map(repr, unknown))}")
    mark = Mark(types, frozenset(known[d] for d in dtypes))

    def marked(function: K) -> K:
        setattr(function, MARK, mark)
        return function

    return marked


class KernelDevice(hal.DeviceBase):
    """A device whose operations are its methods marked with `kernel`. A subclass adds `name` and
    `version`.

    An operation is supported under four conditions. A kernel is marked for its type. The kernel
    accepts the element type of every operand. The fused activation is one of `CLIPS` (on floats).
    `refuse` returns an empty text.

    A kernel gets read-only inputs in the shapes of the run. It returns arrays with the element
    types and shapes of the operation's outputs. Any other result, and any exception, fails the
    execution with the operation's name.

    Two kernels for one type in one class raise `InputError`. A subclass may override a kernel.
    *accuracy* is the accuracy class of the kernels.
    """

    name: str
    version: str
    accuracy: ClassVar[hal.AccuracyClass] = "faithful"
    capabilities: hal.Capabilities = hal.Capabilities()
    _kernels: ClassVar[Mapping[str, tuple[str, frozenset[DType]]]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        own: dict[str, tuple[str, frozenset[DType]]] = {}
        for attribute, value in vars(cls).items():
            mark = getattr(value, MARK, None)
            if not isinstance(mark, Mark):
                continue
            for kind in mark.types:
                if kind in own and own[kind][0] != attribute:
                    raise errors.InputError(
                        f"{cls.__name__}: {own[kind][0]!r} and {attribute!r} are both marked for "
                        f"{kind}; one kernel computes a type, in all its dtypes"
                    )
                own[kind] = (attribute, mark.dtypes)
        cls._kernels = {**cls._kernels, **own}

    def refuse(self, site: Site) -> str:
        """Why this operation is not supported, apart from its types; empty if it is. Optional. The
        answer may depend on *site* alone.
        """
        return ""

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        answers = [self._support(site) for site in make_sites(model)]
        return hal.refuse_unmapped(model, answers, self.capabilities.memory_kinds)

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> PreparedKernels:
        hal.validate_prepare(model, config, self.capabilities.memory_kinds)
        if config.cancel is not None:
            config.cancel.check()
        sites = make_sites(model, hints=config.attributes)
        hal.validate_support(model, [self._support(site) for site in sites])
        return PreparedKernels(self, model, sites)

    def claimed(
        self, prepared: hal.PreparedModelBase, request: hal.Request
    ) -> AbstractContextManager[Claim | None]:
        """The buffers that *request* names; None: the device has none. As in `HostBuffers`."""
        return nullcontext()

    def compute(self, site: Site, inputs: Sequence[NDArray | None]) -> list[NDArray]:
        """The results of one operation, after its fused activation. Raises `GeneralFailure` if a
        kernel returns anything but arrays.
        """
        name, _ = self._kernels[site.operation.key]
        try:
            made: Any = getattr(self, name)(site, *inputs)
            if made is None:
                raise errors.GeneralFailure(f"the kernel {name!r} returned None, not its result")
            results = list(made) if isinstance(made, tuple | list) else [made]
            if (count := len(results)) != (wanted := len(site.outputs)):
                raise errors.GeneralFailure(f"the kernel gave {count} results, not {wanted}")
            if any(map(is_masked, results)):
                fault = "the kernel gave a masked array, and nothing heeds masks"
                raise errors.GeneralFailure(f"{fault}; return its filled()")
            clip = CLIPS[site.activation]
            plain = clip == CLIPS["NONE"]
            arrays = [np.asarray(r) if plain else np.clip(r, *clip) for r in results]
            for array, operand in zip(arrays, site.outputs, strict=True):
                _check(array, operand)
        except (errors.Cancelled, errors.DriverError) as error:
            if type(error) is not errors.GeneralFailure:
                raise
            raise errors.GeneralFailure(f"{_place(site)}: {error}") from error
        except MemoryError as error:
            raise errors.ResourceExhaustedTransient(f"{_place(site)}: no memory left") from error
        except errors.FOREIGN as error:
            text = f"{type(error).__name__}: {str(error)[:MAX_MESSAGE]}"
            raise errors.GeneralFailure(f"{_place(site)}: {text}") from error
        return arrays

    def _support(self, site: Site) -> hal.Support:
        reason = self._refusal(site)
        return hal.Support(supported=not reason, reason=reason, accuracy=self.accuracy)

    def _refusal(self, site: Site) -> str:
        kind = site.operation.key
        if kind not in self._kernels:
            return f"{self.name} has no {kind}"
        _, dtypes = self._kernels[kind]
        known = " or ".join(sorted(d.value for d in dtypes))
        for label, operands in (("input", site.inputs), ("output", site.outputs)):
            for position, operand in enumerate(operands):
                if operand is not None and operand.dtype not in dtypes:
                    return f"{label} {position} is {operand.dtype.value}, not {known}"
        activation = site.activation
        if activation not in CLIPS:
            return f"the fused activation {activation} is not computed"
        if activation != "NONE" and not all(o.dtype.is_float for o in site.outputs):
            return f"the fused activation {activation} is computed on floats only"
        reason: object = self.refuse(site)
        if not isinstance(reason, str):
            wanted = "it returns a text, empty where nothing is against it"
            raise errors.InputError(f"{_place(site)}: refuse gave {reason!r}; {wanted}")
        return reason


class PreparedKernels(hal.PreparedModelBase):
    """A prepared model whose operations all have a kernel. Immutable."""

    def __init__(self, device: KernelDevice, model: Model, sites: Sequence[Site]) -> None:
        self.model, self.device, self._sites = model, device, tuple(sites)
        entry = model.entry
        self._inputs = [entry.operands[i] for i in entry.inputs]
        self._outputs = [entry.operands[i] for i in entry.outputs]
        self._constants = {
            i: model.constant(operand)
            for i, operand in enumerate(entry.operands)
            if operand.is_constant and operand.dtype is not DType.STRING
        }

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        hal.validate_request(self.model, request, config)
        takes_arrays = self.device.capabilities.accepts_host_memory
        arguments = () if takes_arrays else (*request.inputs, *request.outputs)
        if any(type(argument) is hal.HostMemory for argument in arguments):
            raise errors.InvalidArgument(f"{self.device.name} takes pools only, not HostMemory")
        began = time.perf_counter_ns()
        entry = self.model.entry
        with ExitStack() as held:
            claim = held.enter_context(self.device.claimed(self, request))
            pools = held.enter_context(mapped_pools(request))
            given = list(map(_read_only, input_arrays(request, self._inputs, pools, claim)))
            values = self._constants | dict(zip(entry.inputs, given, strict=True))
            for site in self._sites:
                self._step(site, values, config)
            results = [values[i] for i in entry.outputs]
            shapes = write_results(request, self._outputs, results, pools, claim, given)
        spent = time.perf_counter_ns() - began
        timing = hal.Timing(in_driver_ns=spent) if config.measure else NO_TIMING
        return hal.ExecutionResult(shapes, timing)

    def _step(self, site: Site, values: dict[int, NDArray], config: hal.ExecutionConfig) -> None:
        if config.cancel is not None:
            config.cancel.check()
        if config.deadline_ns is not None and time.monotonic_ns() >= config.deadline_ns:
            raise errors.MissedDeadlineTransient(f"the deadline passed before {_place(site)}")
        if config.attributes:
            site = replace(site, hints=(*site.hints, *config.attributes))
        inputs = [values.get(i) for i in site.operation.inputs]
        results = self.device.compute(site, inputs)
        values.update(zip(site.operation.outputs, map(_read_only, results), strict=True))


def _check(array: NDArray, operand: Operand) -> None:
    """Raises `GeneralFailure` for a result whose element type or shape is not the output's."""
    wanted = operand.dtype.numpy
    declared = operand.shape
    fits = declared is None or (
        len(declared) == array.ndim
        and all(d is None or d == s for d, s in zip(declared, array.shape, strict=True))
    )
    if array.dtype != wanted or not fits:
        shape = "any shape" if declared is None else list(declared)
        made = f"{array.dtype}{list(array.shape)}"
        raise errors.GeneralFailure(f"the kernel gave {made}, not {wanted} of {shape}")


def _read_only(array: NDArray) -> NDArray:
    view = array.view()
    view.flags.writeable = False
    return view


def _place(site: Site) -> str:
    return f"operation {site.index} ({site.operation.key})"
