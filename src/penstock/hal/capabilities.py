"""Declarations of a device: capabilities, vendor extensions, and its answer for each operation.

Vendor extensions: NNAPI section 8.6.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from penstock.errors import GeneralFailure, InvalidArgument

MAX_EXTENSIONS: Final = 256
"""Extensions that one device may offer."""

MAX_ATTRIBUTES: Final = 256
"""Attributes that one compilation or execution may carry."""


class ExtensionOperandType(msgspec.Struct, frozen=True):
    """One operand type of an extension: its number *code* (0 to 65535) and element *byte_size*."""

    code: int
    byte_size: int
    is_tensor: bool = True


class Extension(msgspec.Struct, frozen=True):
    """An extension that a device offers: its name and its operand types.

    *name* is a reversed domain name (`com.example.fibonacci`). Two devices that offer an extension
    of one name declare the same types, in any order; otherwise the extension is unusable. Its
    operations have numbers of 0 to 65535, and are not declared: `supported_operations` of the
    device reports which it supports, and for which operands.
    """

    name: str
    operand_types: tuple[ExtensionOperandType, ...] = ()

    def type_of(self, code: int) -> ExtensionOperandType | None:
        """The operand type of that number, or None."""
        return next((kind for kind in self.operand_types if kind.code == code), None)


class ExtensionAttribute(msgspec.Struct, frozen=True):
    """A hint to one device: attribute *code* of the *extension*, and its *value*.

    The value is bytes that only the driver understands and checks. A driver ignores unknown
    attributes and invalid values.
    """

    extension: str
    code: int
    value: bytes


def fault_of_extensions(extensions: Sequence[Extension]) -> str | None:
    """Name and fault of the first invalid, well-typed extension; None if all are valid."""
    if len(extensions) > MAX_EXTENSIONS:
        return f"{len(extensions)} extensions are offered; {MAX_EXTENSIONS} are possible"
    if not extensions:
        return None
    from penstock.ir.operand import MAX_CODE, MAX_ELEMENT, name_fault

    names = set[str]()
    for extension in extensions:
        if fault := name_fault(extension.name):
            return fault
        if extension.name in names:
            return f"the extension {extension.name} is offered twice"
        names.add(extension.name)
        codes = set[int]()
        for kind in extension.operand_types:
            where = f"operand type {kind.code} of the extension {extension.name}"
            if not 0 <= kind.code <= MAX_CODE:
                return f"{where}: numbers are 0 to {MAX_CODE}"
            if not 0 < kind.byte_size <= MAX_ELEMENT:
                return f"{where} has {kind.byte_size} bytes; 1 to {MAX_ELEMENT} are possible"
            if kind.code in codes:
                return f"{where} is declared twice"
            codes.add(kind.code)
    return None


def check_attributes(attributes: Iterable[ExtensionAttribute]) -> None:
    """Checks attributes as far as no driver is needed.

    Raises `InvalidArgument` for an attribute that is given twice, an invalid name or number, and a
    value that is empty or longer than `MAX_DATA`.
    """
    from penstock.ir.operand import MAX_DATA, code_fault, name_fault

    seen = set[tuple[str, int]]()
    for attribute in attributes:
        if type(attribute) is not ExtensionAttribute:
            kind = type(attribute).__name__
            raise InvalidArgument(f"an ExtensionAttribute is needed, not {kind}")
        number = f"the number of an attribute of {attribute.extension}"
        if fault := name_fault(attribute.extension) or code_fault(attribute.code, number):
            raise InvalidArgument(fault)
        where = f"attribute {attribute.code} of {attribute.extension}"
        value: object = attribute.value
        if not isinstance(value, bytes) or not 0 < len(value) <= MAX_DATA:
            raise InvalidArgument(f"{where}: a value has 1 to {MAX_DATA} bytes")
        if (attribute.extension, attribute.code) in seen:
            raise InvalidArgument(f"{where} is given twice")
        seen.add((attribute.extension, attribute.code))
        if len(seen) > MAX_ATTRIBUTES:
            raise InvalidArgument(f"more than {MAX_ATTRIBUTES} attributes of extensions")


AccuracyClass: TypeAlias = Literal["exact", "faithful", "stepwise", "relaxed"]
"""How close results are to TFLite's reference kernels.

- `exact`: integer results are bit-identical, float results within float32 rounding.
- `faithful`: quantised results within one quantisation step, float as in `exact`. Errors do not
  accumulate through a network beyond those of LiteRT's own kernels.
- `stepwise`: each operation as in `faithful`; errors may accumulate.
- `relaxed`: the engine's own arithmetic.
"""

ACCURACY_RANK: Final[dict[str, int]] = {"relaxed": 0, "stepwise": 1, "faithful": 2, "exact": 3}

FEATURE_LEVELS: Final = range(1, 9)
"""NNAPI feature levels, counted 1 to 8 (NNAPI section 1.1)."""


MAX_ALIGNMENT: Final = 1 << 16
"""Alignment and padding in bytes that a device may prefer; a page of any machine fits."""


class DeviceType(enum.Enum):
    """NNAPI device types; UNKNOWN is never reported (NNAPI section 1.1)."""

    OTHER = "other"
    CPU = "cpu"
    GPU = "gpu"
    ACCELERATOR = "accelerator"


class PerformanceInfo(msgspec.Struct, frozen=True):
    """Cost relative to the reference CPU path, which is 1.0; both positive (NNAPI section 4.3)."""

    execution_time: float = 1.0
    power_usage: float = 1.0


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """A device's claims. They do not change while the device lives.

    *performance* maps an element type's name ("float32", "int8", ...) to its cost. Other types have
    *default_performance* (None: infinitely slow, as NNAPI's missing entries). *shares_host_memory*
    False means that every boundary copies. *accepts_host_memory* False means that the driver takes
    pools only and never sees `HostMemory`.

    *memory_kinds* are the names of the `Memory` it can map: `ashmem` and `mmap_fd` always, from
    feature level 4 on also `hardware_buffer_blob`, never a hardware buffer below level 3.
    *dynamic_outputs*: whether outputs of unknown shape are accepted.
    """

    performance: dict[str, PerformanceInfo] = {}
    default_performance: PerformanceInfo | None = PerformanceInfo()
    if_performance: PerformanceInfo = PerformanceInfo()
    while_performance: PerformanceInfo = PerformanceInfo()
    shares_host_memory: bool = True
    accepts_host_memory: bool = True
    memory_kinds: tuple[str, ...] = ("ashmem", "mmap_fd", "hardware_buffer_blob")
    dynamic_outputs: bool = True
    concurrent_executions: int = 0
    """Concurrent executions that the device accepts, of all its prepared models together.

    The runtime queues further executions by priority. 0 leaves the limit to the engine: the runtime
    then queues executions only if runs of different priorities compete.
    """
    only_when_named: bool = False
    """Whether only callers that name the device get it (test and measuring devices)."""
    alignment: int = 64
    """Preferred alignment of arguments in bytes, a power of two."""
    padding: int = 64
    """Preferred multiple of argument lengths in bytes, a power of two; 1 below level 5."""
    dispatch_ns: int = 5_000
    """Nanoseconds of one execution of a prepared model beyond its operations."""
    transfer_bytes_per_second: float = 4e9
    """Throughput of tensor data to or from a device that does not share host memory."""
    families: tuple[str, ...] = ()
    """Names of the hardware and engine families of the device ("cuda", "hexagon")."""
    baselines: tuple[str, ...] = ()
    """Names of processor baselines ("x86-64-v3") that the device can compile for, whatever the
    processor is. Such an artefact is portable to every machine whose processor has the baseline.
    """
    any_threads: bool = False
    """Whether a compiled artefact runs with any number of threads: the number is then no ingredient
    of its cache key.
    """
    support_basis: str = ""
    """What `supported_operations` depends on beside the model's content, as text that changes with
    it. The runtime then keeps the answers beside cached models. Empty: it asks at each compile.
    """
    extensions: tuple[Extension, ...] = ()
    """The vendor extensions that the device supports (NNAPI section 8.6); it gets no others."""
    simulated: bool = False
    """Whether the device simulates its hardware: a test double or a simulator.

    Receipts note it for each step that ran on the device. A search for a kind of device chooses it
    last.
    """

    accuracy_basis: str = ""
    """Engine version with which the declared accuracy classes were measured, and how."""
    accuracy_doubt: str = ""
    """Why the declared accuracy classes may not hold: another engine version is installed.

    Empty for the version that they were measured with. `penstock doctor`, plans and receipts quote
    it.
    """

    def performance_of(self, dtype: str) -> PerformanceInfo | None:
        """The cost of operations whose first input has this element type."""
        return self.performance.get(dtype, self.default_performance)


class MemoryPreference(msgspec.Struct, frozen=True):
    """Preferred layout of arguments, as powers of two (NNAPI section 6.8).

    Arguments start at multiples of *alignment* bytes. Each has room up to a multiple of *padding*
    bytes, which the driver may overwrite.
    """

    alignment: int = 16
    padding: int = 1


PADDING_FROM_LEVEL: Final = 5
HARDWARE_BUFFERS_FROM_LEVEL: Final = 3
DOMAINS_FROM_LEVEL: Final = 4
"""The first feature level with memory domains: HAL 1.3 (NNAPI sections 5.1 and 6.4)."""


class Support(msgspec.Struct, frozen=True):
    """A device's answer for one operation.

    *reason* is why it is not supported, and empty if it is. *accuracy* is the class that its result
    meets. *distance* describes the measured distance from the reference, for `stepwise` and
    `relaxed`; plans quote it to a caller who asks for a higher class.
    """

    supported: bool
    reason: str = ""
    accuracy: AccuracyClass = "faithful"
    distance: str = ""


SUPPORTED: Final = Support(True)


def class_fault(answer: Support) -> str:
    """What is wrong with the accuracy of *answer*; empty if it is an accuracy class."""
    accuracy: object = answer.accuracy
    if isinstance(accuracy, str) and accuracy in ACCURACY_RANK:
        return ""
    return f"its accuracy {accuracy!r} is not one of {', '.join(reversed(ACCURACY_RANK))}"


def least_class(answers: Iterable[Support]) -> AccuracyClass:
    """The least strict class of *answers*; "faithful" if there are none.

    Raises `GeneralFailure` for an answer whose accuracy is no class.
    """
    least: AccuracyClass | None = None
    for answer in answers:
        if fault := class_fault(answer):
            raise GeneralFailure(f"a support answer is malformed: {fault}")
        if least is None or ACCURACY_RANK[answer.accuracy] < ACCURACY_RANK[least]:
            least = answer.accuracy
    return least or "faithful"


def checked(capabilities: Capabilities) -> Capabilities:
    """*capabilities* with every type as declared, and NumPy's numbers converted to Python's.

    The struct checks nothing when it is made. Raises `msgspec.ValidationError`, which names the
    field, and `TypeError` for an unknown class.
    """
    return msgspec.convert(msgspec.to_builtins(capabilities, enc_hook=float), Capabilities)


def fault_of(capabilities: Capabilities) -> str | None:
    """Name and requirement of the first invalid claim; None if all are valid."""
    for name, cost in _costs(capabilities):
        for part in PerformanceInfo.__struct_fields__:
            if not (value := getattr(cost, part)) > 0:
                return f"{name} has {part} {value:g}, which is no positive number"
    if capabilities.performance:
        from penstock.ir import DType

        types = {dtype.value for dtype in DType}
        if unknown := [name for name in capabilities.performance if name not in types]:
            return f"performance is declared for {unknown[0]!r}, which is no element type"
    for name in ("alignment", "padding"):
        value = getattr(capabilities, name)
        if not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
            return f"{name} is {value}, not a power of two up to {MAX_ALIGNMENT}"
    for name in ("dispatch_ns", "concurrent_executions"):
        if (value := getattr(capabilities, name)) < 0:
            return f"{name} is {value}, which is below 0"
    if not (rate := capabilities.transfer_bytes_per_second) > 0:
        return f"transfer_bytes_per_second is {rate:g}, which is no positive number"
    return fault_of_extensions(capabilities.extensions) if capabilities.extensions else None


def _costs(capabilities: Capabilities) -> Iterator[tuple[str, PerformanceInfo]]:
    for dtype, cost in capabilities.performance.items():
        yield f"performance of {dtype!r}", cost
    for name in ("default_performance", "if_performance", "while_performance"):
        if (one := getattr(capabilities, name)) is not None:
            yield name, one
