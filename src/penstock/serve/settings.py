"""Settings of a server: limits, batching, how models are compiled."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from penstock.errors import InputError
from penstock.hal import Device
from penstock.partitioning.policy import Policy


class Limits(Struct, frozen=True):
    """Limits of a server. A request beyond one of them is refused before memory is allocated.

    *body* is the size of one request in bytes, *header* that of the JSON part of a request with
    binary tensors. *requests* is the number of requests that are handled at the same time, and
    *body_total* the size of all of them in bytes. *queue* is the number of requests that wait for
    one signature of a model. *tensors* and *rank* bound the inputs of a request.
    """

    body: int = 64 << 20
    header: int = 1 << 20
    requests: int = 128
    body_total: int = 512 << 20
    queue: int = 64
    tensors: int = 256
    rank: int = 32

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InputError(f"limit {name} must be a whole number of at least 1, not {value}")


class Batching(Struct, frozen=True):
    """Dynamic batching. Requests of one signature whose other dimensions are equal run together.

    *rows* is the greatest batch; 1 turns batching off. *delay* is the time in seconds that a
    request waits for others.
    """

    rows: int = 1
    delay: float = 0.0

    def __post_init__(self) -> None:
        if type(self.rows) is not int or not 1 <= self.rows <= 1024:
            raise InputError(f"the greatest batch must be from 1 to 1024, not {self.rows}")
        if not 0 <= self.delay <= 10:
            raise InputError(f"the delay of a batch must be from 0 to 10 seconds, not {self.delay}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batches that run: powers of two, and the greatest one. Each is compiled once."""
        powers = (1 << power for power in range(self.rows.bit_length()))
        return tuple(sorted({*powers, self.rows}))


class CompileSettings(Struct, frozen=True):
    """How served models are compiled: arguments of `penstock.compile`.

    *running* is the number of runs of one signature at the same time.
    """

    devices: tuple[str | Device, ...] = ()
    policy: Policy | None = None
    threads: int | None = None
    cache: bool = True
    running: int = 1
    shapes: Mapping[str, tuple[int, ...]] | None = None


class MemoryLimits(Struct, frozen=True):
    """Memory of models in bytes, as `penstock.serve.memory.memory_of` counts it; None: no limit.

    *total* is that of all versions together: the model that was used least recently is unloaded to
    make room, but no model of *pinned*. A version that needs more than *model* is not loaded.
    """

    total: int | None = None
    model: int | None = None
    pinned: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("total", self.total), ("model", self.model)):
            if value is not None and (type(value) is not int or value < 1):
                raise InputError(f"memory limit {name} must be at least 1 byte, not {value!r}")


class Settings(Struct, frozen=True):
    """Everything that a `Service` is told.

    *shared_memory* is the prefix of keys of shared memory that clients may register; None turns it
    off. With *trusted* clients these regions are mapped.
    """

    compile: CompileSettings = CompileSettings()
    batching: Batching = Batching()
    limits: Limits = Limits()
    memory: MemoryLimits = MemoryLimits()
    shared_memory: str | None = None
    trusted: bool = False

    def __post_init__(self) -> None:
        if self.shared_memory == "":
            raise InputError("the prefix of shared memory is empty; it must name some files only")
