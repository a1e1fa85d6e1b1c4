"""Requests and answers, independent of the transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct, field

from penstock.arguments import there_are
from penstock.compilation.receipt import Receipt
from penstock.hal import CancelToken, Priority
from penstock.ir import NDArray
from penstock.serve.errors import InvalidRequest
from penstock.serve.shared_memory import OutputPlaces

Parameter: TypeAlias = "bool | int | float | str"

PRIORITIES: Final[tuple[Priority, ...]] = ("medium", "high", "medium", "low")
"""The protocol's priorities: 0 is the default, 1 the highest; from 3 on they are low."""

LONGEST_TIMEOUT_US: Final = 24 * 3600 * 1_000_000
"""A timeout in microseconds beyond which a request has none."""


class InferInput(Struct, frozen=True):
    """One input of a request. *array* has the *datatype*'s NumPy dtype, and may be read-only."""

    name: str
    datatype: str
    array: NDArray


class InferRequest(Struct, frozen=True):
    """One inference. *version* "" is the version that the server chooses.

    *outputs* are the names of the outputs to return; empty for all. *deadline_ns* is of
    `time.monotonic_ns`.
    """

    model: str
    inputs: tuple[InferInput, ...]
    version: str = ""
    id: str = ""
    outputs: tuple[str, ...] = ()
    priority: Priority = "medium"
    deadline_ns: int | None = None
    cancel: CancelToken = field(default_factory=CancelToken)
    full_receipt: bool = False
    places: OutputPlaces | None = None
    region_copied: int = 0
    """Bytes of inputs that were copied from regions of shared memory."""
    trace: Mapping[str, str] = {}
    """Headers of the client's trace."""


class InferAnswer(Struct, frozen=True):
    """The outputs by name, the receipt of the run, and how the request was served.

    *queue_ns* is the time between arrival and run. *batch* is the number of requests in the run.
    """

    model: str
    version: str
    id: str
    outputs: Mapping[str, NDArray]
    receipt: Receipt
    queue_ns: int
    batch: int
    full_receipt: bool = False
    region_copied: int = 0


def priority_of(parameter: object) -> Priority:
    """Penstock's priority for the protocol's parameter `priority`. Raises `InvalidRequest`."""
    if parameter is None:
        return PRIORITIES[0]
    if type(parameter) is not int or parameter < 0:
        raise InvalidRequest(f"parameter priority must be a whole number, not {parameter!r}")
    return PRIORITIES[min(parameter, len(PRIORITIES) - 1)]


def deadline_of(parameter: object, now_ns: int) -> int | None:
    """The deadline for the parameter `timeout`, in microseconds from *now_ns*; None without one.

    Raises `InvalidRequest`.
    """
    if parameter is None:
        return None
    if type(parameter) is not int or parameter < 0:
        raise InvalidRequest(
            f"parameter timeout must be a whole number of microseconds, not {parameter!r}"
        )
    if parameter == 0 or parameter > LONGEST_TIMEOUT_US:
        return None
    return now_ns + parameter * 1000


def check_parameters(parameters: Mapping[str, object]) -> None:
    """Raises `InvalidRequest` for a parameter that asks for what the server does not do."""
    for name in ("sequence_id", "sequence_start", "sequence_end"):
        if parameters.get(name):
            raise InvalidRequest(
                f"parameter {name}: sequences are not supported; every request starts from the "
                "model's initial state"
            )


def load_parameters(given: object) -> tuple[str, float | None]:
    """The version ("": the newest) and the share that the parameters of a load ask for.

    Raises `InvalidRequest`; a client cannot send a model or its configuration.
    """
    parameters = _parameters(given, ("version", "share"))
    share = parameters.get("share")
    if share is not None and (isinstance(share, bool) or not isinstance(share, int | float)):
        raise InvalidRequest(f"parameter share must be a number of per cent, not {share!r}")
    return _version(parameters), share


def unload_parameters(given: object) -> str:
    """The version that an unload names; "" for all. Raises `InvalidRequest`.

    `unload_dependents` of the protocol has no effect: no model depends on another.
    """
    return _version(_parameters(given, ("version", "unload_dependents")))


def _parameters(given: object, known: Sequence[str]) -> Mapping[str, object]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidRequest("parameters must be an object")
    for name in given:
        if name not in known:
            raise InvalidRequest(f"parameter {name!r} is not supported here; {there_are(known)}")
    return given


def _version(parameters: Mapping[str, object]) -> str:
    version = parameters.get("version", "")
    if not isinstance(version, str):
        raise InvalidRequest(f"parameter version must be a text, not {version!r}")
    return version
