"""The error tree: one defect, one class.

PenstockError
├── ModelError (ValueError)            the file or model is at fault
│   ├── NotAModel, TruncatedModel, OffsetOutOfBounds, IndexOutOfRange, LimitExceeded
│   ├── UnknownOperator, UnknownType, UnknownSignature
│   ├── InvalidOperand, InvalidOperation, InvalidAttribute, InvalidQuantization
│   ├── InvalidSparsity, InvalidMetadata, InvalidSignature
│   ├── ShapeOverflow, ShapeMismatch
│   ├── CyclicModel, DuplicateWriter, UnwrittenOperand
│   └── NotExportable, NotLowerable
├── InputError (ValueError)            an argument of the caller is at fault
│   └── BadSetting
├── PlacementError                     no device may or can run an operation
├── DriverError                        one class per HAL status
│   ├── GeneralFailure, InvalidArgument, OutputInsufficientSize, DeviceUnavailable, DeadObject
│   ├── MissedDeadline (TimeoutError): MissedDeadlineTransient, MissedDeadlinePersistent
│   └── ResourceExhausted (MemoryError): ResourceExhaustedTransient, ResourceExhaustedPersistent
├── CacheError                         a cache entry cannot be used
│   ├── NoEntry, NotYetWritten, IngredientChanged
│   ├── SealBroken, WrongLength, NotRegularFile, Unreadable > ReadOnly
│   ├── TokenCollision, ForeignEntry, OtherVersion
│   ├── RegistryMissing, RolledBack
│   └── StoreUnavailable, NotTrusted, Expired
├── CapsuleError (ValueError)          a file is no failure capsule
├── WireError                          bytes between processes are no message
├── ClosedError, StateError, Cancelled
├── NotAvailable                       a documented feature that this version does not have
└── DelegateError (RuntimeError)        a delegate failed

`counted` gives the words for a number of things in their sentences.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self

if TYPE_CHECKING:
    from penstock.faults import Fault

NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""Error numbers for a process, or a system, without a free file descriptor."""
NO_DESCRIPTOR_LEFT: Final = (
    "no file descriptor is left in this process: raise its limit with 'ulimit -n'"
)

FOREIGN: Final = (Exception, SystemExit)
"""Exceptions of third-party code that count as failures of the driver or delegate. `SystemExit` is
included: a driver cannot end the program. `KeyboardInterrupt` belongs to the user and propagates.
"""


class PenstockError(Exception):
    """Base of every error that Penstock raises deliberately."""


class Place(NamedTuple):
    """A place in a model, as far as known. `str` gives it as text.

    *operation* and *operand* are indexes in the model; *operator* and *tensor* are indexes in its
    file. *type* is an operation's type, *name* the name of the operation or operand. *text* is the
    part of the place without an index: "main", "signature 'x'".
    """

    subgraph: int | None = None
    operation: int | None = None
    operator: int | None = None
    operand: int | None = None
    tensor: int | None = None
    type: str = ""
    name: str = ""
    text: str = ""

    def __str__(self) -> str:
        words = [self.text] if self.text else []
        if self.subgraph is not None:
            words.append(f"subgraph {self.subgraph}")
        numbers = zip(self._fields[1:5], self[1:5], strict=True)
        words += [f"{kind} {number}" for kind, number in numbers if number is not None]
        label = f"{self.type} {self.name!r}" if self.type and self.name else self.type or self.name
        return ", ".join(words) + (f" ({label})" if label else "")


class ModelError(PenstockError, ValueError):
    """The model, or its file, is at fault.

    *where* is the place in the model, *offset* the byte in the file, if known; the message includes
    both. *fault* is the fault's code, if it has one.
    """

    def __init__(
        self, message: str | Fault, *, where: Place | str | None = None, offset: int | None = None
    ) -> None:
        self.message, self.offset = str(message), offset
        self.fault = None if isinstance(message, str) else message
        self.where = Place(text=where) if isinstance(where, str) else where
        place = str(self.where or "")
        if offset is not None:
            place = f"{place or 'file'} at byte {offset}"
        super().__init__(f"{place}: {message}" if place else self.message)

    def at(self, where: Place | str | None) -> Self:
        """A copy of the error with the place *where*; the same error if it has a place."""
        if self.where is not None:
            return self
        return type(self)(self.fault or self.message, where=where, offset=self.offset)

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(type(self), where=self.where, offset=self.offset)
        return again, (self.fault or self.message,)


class NotAModel(ModelError):
    """The bytes are not a model of any known format."""


class TruncatedModel(ModelError):
    """The file ends before something it declares."""


class OffsetOutOfBounds(ModelError):
    """An offset, or offset plus size, points outside the file or pool."""


class IndexOutOfRange(ModelError):
    """A tensor, buffer, subgraph or operator-code index has no target."""


class LimitExceeded(ModelError):
    """The file requires more memory, work or depth than a file of this size may."""


class UnknownOperator(ModelError):
    """An operator code or operation type is not in the vocabulary."""


class UnknownType(ModelError):
    """A tensor type code is not in the format."""


class UnknownSignature(ModelError):
    """The model has no signature, or subgraph, of the requested name."""


class InvalidOperand(ModelError):
    """An operand is inconsistent: lifetime, value, size or type."""


class InvalidOperation(ModelError):
    """An operation violates its signature: number or type of inputs or outputs."""


class InvalidAttribute(ModelError):
    """An attribute is missing, unknown, of the wrong type or out of range."""


class InvalidQuantization(ModelError):
    """Quantisation parameters break the rules of their operand type."""


class InvalidSparsity(ModelError):
    """Sparsity metadata does not describe its tensor."""


class InvalidMetadata(ModelError):
    """Model metadata or an associated file cannot be read."""


class InvalidSignature(ModelError):
    """A signature names an unknown operand or subgraph, or uses a name twice."""


class ShapeOverflow(ModelError):
    """A dimension is negative or a byte size exceeds 64-bit arithmetic."""


class ShapeMismatch(ModelError):
    """The shapes of an operation's operands are incompatible."""


class CyclicModel(ModelError):
    """An operation reads a value that is written later, or subgraphs call each other in a cycle."""


class DuplicateWriter(ModelError):
    """Two operations write the same operand, or one writes an input or a constant."""


class UnwrittenOperand(ModelError):
    """An operand is read or is an output, but no operation writes it."""


class NotExportable(ModelError):
    """The target format cannot represent this part of the model."""


class NotLowerable(ModelError):
    """The IR cannot represent a valid part of a model in another vocabulary."""


class InputError(PenstockError, ValueError):
    """A caller's argument has the wrong name, count, shape, dtype or range."""


class BadSetting(InputError):
    """A knob, a driver's setting or the settings file has a value that cannot be used."""


class ErrorStatus(enum.IntEnum):
    """HAL status of a failed call (NNAPI HAL `ErrorStatus`; DEAD_OBJECT is in-process only)."""

    NONE = 0
    DEVICE_UNAVAILABLE = 1
    GENERAL_FAILURE = 2
    OUTPUT_INSUFFICIENT_SIZE = 3
    INVALID_ARGUMENT = 4
    MISSED_DEADLINE_TRANSIENT = 5
    MISSED_DEADLINE_PERSISTENT = 6
    RESOURCE_EXHAUSTED_TRANSIENT = 7
    RESOURCE_EXHAUSTED_PERSISTENT = 8
    DEAD_OBJECT = 10000

    @property
    def is_unavailable(self) -> bool:
        """Whether the driver's host process is dead, or did not answer in time."""
        return self in {
            ErrorStatus.DEAD_OBJECT,
            ErrorStatus.MISSED_DEADLINE_TRANSIENT,
            ErrorStatus.MISSED_DEADLINE_PERSISTENT,
        }


class RefusalCode(enum.Enum):
    """Why a device does not run an operation."""

    UNSUPPORTED = "unsupported"  # the device's own answer
    SHAPE_UNKNOWN = "shape_unknown"  # it needs a shape that is known only at run time
    NO_ANSWER = "no_answer"  # it raised, or gave no valid answer
    FEATURE_LEVEL = "feature_level"  # the operation is newer than the device
    EXTENSION = "extension"  # it lacks an extension of the operation
    ACCURACY = "accuracy"  # the policy asks for a stricter accuracy class
    POLICY = "policy"  # the policy forbids it, or requires another device
    WRONG_RESULTS = "wrong_results"  # shadow verification found its results to be wrong
    LIMIT = "limit"  # a limit of the policy on partitions
    HANDLES = "handles"  # operations that share handles run together
    UNDECLARED = "undeclared"  # it declares no cost
    DECLARED = "declared"  # another device declares no higher cost
    PREDICTED = "predicted"  # another placement is predicted to cost no more
    MEASURED = "measured"  # another placement was measured to cost no more
    FAILED = "failed"  # it failed to compile the operation
    NOT_CANDIDATE = "not_candidate"  # it is a fallback only
    UNUSED = "unused"  # the operation is not run
    UNUSABLE = "unusable"  # the device cannot be used
    OTHER = "other"  # several reasons, or words alone


_FORMS: Final = {RefusalCode.NO_ANSWER: "cannot be asked: {}"}


class Refusal(NamedTuple):
    """Why a device does not run an operation. `str` gives the reason as text, including *detail*.

    *status* is the status of the driver's error, if the driver raised one instead of answering.
    *admits*, with the code ACCURACY, is the class in which the device would run the operation.
    """

    code: RefusalCode
    detail: str
    status: ErrorStatus | None = None
    admits: str = ""

    def __str__(self) -> str:
        form = _FORMS.get(self.code)
        return self.detail if form is None else form.format(self.detail)

    @property
    def is_unavailable(self) -> bool:
        """Whether the device did not answer because its host process is unavailable."""
        return self.status is not None and self.status.is_unavailable


class PlacementError(PenstockError):
    """No permitted device can run an operation.

    *where* is the operation, if the error is about one. *refusals* maps each device to its reason;
    *reasons* has the same as text.
    """

    def __init__(
        self,
        message: str,
        reasons: Mapping[str, Refusal | str] | None = None,
        where: Place | None = None,
    ) -> None:
        self.message, self.where = message, where
        self.refusals = {
            device: why if isinstance(why, Refusal) else Refusal(RefusalCode.OTHER, why)
            for device, why in (reasons or {}).items()
        }
        self.reasons = {device: str(why) for device, why in self.refusals.items()}
        lines = [f"  {device}: {reason}" for device, reason in self.reasons.items()]
        super().__init__("\n".join([f"{where}: {message}" if where else message, *lines]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.refusals, self.where)


class DriverError(PenstockError):
    """A driver rejected a call or failed; one subclass for each `ErrorStatus` except NONE.

    *copies* are the argument copies made for the failed execution (`penstock.hal.ArgumentCopy`).
    *said* is the driver's own `penstock.compilation.failing.DriverMessage`, if the message adds
    more.
    """

    status: ClassVar[ErrorStatus]
    copies: tuple[Any, ...] = ()
    said: Any = None


class DeviceUnavailable(DriverError):
    """The device is busy or offline."""

    status = ErrorStatus.DEVICE_UNAVAILABLE


class GeneralFailure(DriverError):
    """The driver failed, or does not support the feature."""

    status = ErrorStatus.GENERAL_FAILURE


class OutputInsufficientSize(DriverError):
    """An output region is too small.

    *output_shapes* has one `(dimensions, is_sufficient)` per output of the request, in order
    (NNAPI HAL `OutputShape`).
    """

    status = ErrorStatus.OUTPUT_INSUFFICIENT_SIZE

    def __init__(
        self, message: str, output_shapes: Sequence[tuple[tuple[int, ...], bool]] = ()
    ) -> None:
        super().__init__(message)
        self.message, self.output_shapes = message, tuple(output_shapes)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.output_shapes)


class InvalidArgument(DriverError):
    """The model, configuration or request violates the HAL's rules."""

    status = ErrorStatus.INVALID_ARGUMENT


class MissedDeadline(DriverError, TimeoutError):
    """The deadline passed, or could not be met."""


class MissedDeadlineTransient(MissedDeadline):
    """Retrying may help."""

    status = ErrorStatus.MISSED_DEADLINE_TRANSIENT


class MissedDeadlinePersistent(MissedDeadline):
    """Retrying will not help."""

    status = ErrorStatus.MISSED_DEADLINE_PERSISTENT


class ResourceExhausted(DriverError, MemoryError):
    """The device has no memory for this model or run."""


class ResourceExhaustedTransient(ResourceExhausted):
    """Retrying may help."""

    status = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT


class ResourceExhaustedPersistent(ResourceExhausted):
    """Retrying will not help."""

    status = ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT


class DeadObject(DriverError):
    """The driver's process died."""

    status = ErrorStatus.DEAD_OBJECT


def driver_error_classes() -> dict[ErrorStatus, type[DriverError]]:
    """Every HAL status except NONE, with its class."""
    every = [k for kind in DriverError.__subclasses__() for k in (kind, *kind.__subclasses__())]
    return {kind.status: kind for kind in reversed(every) if "status" in vars(kind)}


class CacheError(PenstockError):
    """A cache entry cannot be used. Only callers of `penstock.cache` see it.

    The message is `<Name>: sentence`, with the name of the class.
    """

    def __str__(self) -> str:
        return f"{type(self).__name__}: {super().__str__()}"


class NoEntry(CacheError):
    """The cache has no entry for this model, device and configuration."""


class NotYetWritten(CacheError):
    """The entry exists, but its driver has not written it yet."""


class IngredientChanged(CacheError):
    """The entry has the caller's token and model, but another ingredient of the key differs."""


class SealBroken(CacheError):
    """The cached bytes differ from the bytes that were sealed."""


class WrongLength(CacheError):
    """A cache file is shorter or longer than the sealed length."""


class NotRegularFile(CacheError):
    """A cache file is a link, has a second name, or is no regular file."""


class Unreadable(CacheError):
    """A cache file, the registry or the key cannot be read or written."""


class ReadOnly(Unreadable):
    """The cache directory is readable but not writable."""


class TokenCollision(CacheError):
    """The entry has the caller's token, but was made from something else."""


class ForeignEntry(CacheError):
    """A cache file belongs to another token, driver or entry, or to another position."""


class OtherVersion(CacheError):
    """A cache file or a registry belongs to another version of the driver or of the format."""


class RegistryMissing(CacheError):
    """The entry is in no registry: the registry was lost, or never existed."""


class RolledBack(CacheError):
    """The entry or the registry was replaced by an older version of itself."""


class StoreUnavailable(CacheError):
    """The shared store cannot be reached, answers with an error, or does not answer in time."""

    retry_after: float = 0.0
    """Seconds for which an overloaded store wants to be left alone; 0 if it did not say."""


class NotTrusted(CacheError):
    """Metadata or an entry of the shared store is not signed by keys that are trusted now."""


class Expired(CacheError):
    """Metadata of the shared store is past its date."""


class CapsuleError(PenstockError, ValueError):
    """A file is no valid failure capsule, or a failure does not fit into one."""


class WireError(PenstockError):
    """Bytes are no message of the wire protocol, or a value cannot be encoded as one."""


class ClosedError(PenstockError):
    """The object was used after `close()`."""


class StateError(PenstockError):
    """The call is invalid in the object's present state."""


class Cancelled(PenstockError):
    """The caller's `CancelToken` was set."""


class NotAvailable(PenstockError):
    """A documented argument whose feature this version does not implement yet."""


class DelegateError(PenstockError, RuntimeError):
    """A delegate failed in *stage*: init, prepare, invoke, or the method that moves a buffer."""

    def __init__(self, delegate: str, stage: str, reason: str = "") -> None:
        self.delegate, self.stage, self.reason = delegate, stage, reason
        super().__init__(
            f"delegate {delegate!r} failed in {stage}" + (f": {reason}" if reason else "")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.delegate, self.stage, self.reason)


def counted(number: int, noun: str, nouns: str = "") -> str:
    """`1 step`, `2 steps`; *nouns* is an irregular plural."""
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"
