"""`DomainDevice`: memory domains for any device, in shared memory: for tests of driver-managed buffers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.errors import ClosedError, GeneralFailure, InvalidArgument, OutputInsufficientSize
from penstock.hal import (
    Buffer,
    BufferDesc,
    BufferRole,
    Device,
    ExecutionConfig,
    ExecutionResult,
    Memory,
    PoolArgument,
    PrepareConfig,
    PreparedModel,
    PreparedModelBase,
    Request,
    RequestArgument,
    TokenArgument,
    validate_request,
)
from penstock.ir import DataLocation, Model, Operand, Shape
from penstock.ir.types import static_shape
from penstock.memory import MemoryPool, map_memory
from penstock.testing.doubles import InterceptingDevice

Role = tuple[int, str, int]
"""Identity of a prepared model, "input" or "output", and index."""


class DomainDevice(InterceptingDevice):
    """*device*, with buffers of its own that serve as arguments by token (NNAPI sections 6.4 and 6.5).

    Only buffers of completely known shape are possible: another one is `GeneralFailure`.
    """

    def __init__(self, device: Device, name: str | None = None) -> None:
        super().__init__(device, name)
        self._buffers: dict[int, DomainBuffer] = {}
        self._tokens = itertools.count(1)
        self._lock = threading.Lock()

    def cache_files_needed(self) -> tuple[int, int]:
        """None: what *device* loads from a cache knows no buffers."""
        return 0, 0

    def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedModel:
        return DomainModel(self, self.device.prepare_model(model, config), model)

    def prepare_model_from_cache(self, config: PrepareConfig) -> PreparedModel:
        raise GeneralFailure("this device does not cache")

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
        operands = [_operand_of(role, self) for role in roles]
        kinds = {(o.dtype, o.quantization) for o in operands}
        named = [(id(r.prepared), r.kind, r.index) for r in roles]
        if len(kinds) != 1:
            raise InvalidArgument("a buffer needs roles, which agree in type and quantisation")
        if len(set(named)) != len(named):
            raise InvalidArgument("a role is named twice")
        if not all(0.0 < r.frequency <= 1.0 for r in roles):
            raise InvalidArgument("a frequency is not in (0, 1]")
        shape: Shape = desc.dimensions or None
        for operand in operands:
            shape = _merged(shape, operand.shape)
        if (known := static_shape(shape)) is None:
            raise GeneralFailure(f"a buffer of shape {shape} cannot be allocated")
        nbytes = int(np.prod(known)) * operands[0].dtype.numpy.itemsize
        with self._lock:
            token = next(self._tokens)
            buffer = DomainBuffer(self, token, known, frozenset(named), nbytes)
            self._buffers[token] = buffer
        return token, buffer

    def buffer(self, token: int) -> DomainBuffer:
        """The live buffer of that token, or `InvalidArgument`."""
        with self._lock:
            if token not in self._buffers:
                raise InvalidArgument(f"no live buffer has the token {token}")
            return self._buffers[token]

    def forget(self, token: int) -> None:
        """Takes a closed buffer out of the table."""
        with self._lock:
            self._buffers.pop(token, None)


@dataclass(eq=False)
class DomainBuffer:
    """One buffer: its state follows the table of `penstock.hal.Buffer`."""

    owner: DomainDevice
    token: int
    shape: tuple[int, ...]
    roles: frozenset[Role]
    nbytes: int
    initialized: bool = False
    pool: MemoryPool = field(init=False)

    def __post_init__(self) -> None:
        self.pool = MemoryPool.anonymous(self.nbytes)

    def copy_to(self, destination: Memory) -> None:
        if destination.size != self.nbytes:
            raise InvalidArgument(f"{destination.size} bytes for a buffer of {self.nbytes}")
        if not self.initialized:
            raise GeneralFailure("the buffer was never written")
        with map_memory(destination) as mapping:
            mapping.array[:] = self._content()

    def copy_from(self, source: Memory, dimensions: tuple[int, ...]) -> None:
        self.initialized = False
        if source.size != self.nbytes or dimensions not in {(), self.shape}:
            raise InvalidArgument(
                f"{source.size} bytes of shape {dimensions} for a buffer of {self.shape}"
            )
        with map_memory(source) as mapping:
            self._content()[:] = mapping.array
        self.initialized = True

    def close(self) -> None:
        self.owner.forget(self.token)
        self.pool.close()

    def _content(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        try:
            return self.pool.view(np.uint8, self.nbytes)
        except ClosedError as error:
            raise GeneralFailure("the buffer is closed") from error


class DomainModel(PreparedModelBase):
    """A prepared model whose requests may name buffers: they become pools of the inner one's requests."""

    def __init__(self, owner: DomainDevice, prepared: PreparedModel, model: Model) -> None:
        self.owner, self._prepared, self.model = owner, prepared, model

    def execute(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        validate_request(self.model, request, config)
        pools = list(request.pools)
        inputs = [self._resolve(a, "input", i, pools) for i, a in enumerate(request.inputs)]
        outputs = [self._resolve(a, "output", i, pools) for i, a in enumerate(request.outputs)]
        read = [self.owner.buffer(a.token) for a in request.inputs if isinstance(a, TokenArgument)]
        written = [
            self.owner.buffer(a.token) for a in request.outputs if isinstance(a, TokenArgument)
        ]
        if len({b.token for b in written}) != len(written) or set(map(id, read)) & set(
            map(id, written)
        ):
            raise InvalidArgument("a buffer that is written serves one argument of a request only")
        if not all(b.initialized for b in read):
            raise GeneralFailure("an input is a buffer that was never written")
        for buffer in written:
            buffer.initialized = False
        inner = Request(tuple(inputs), tuple(outputs), tuple(pools))
        try:
            result = self._prepared.execute(inner, config)
        except OutputInsufficientSize as error:
            if written:
                raise GeneralFailure(f"an output is larger than its buffer: {error}") from error
            raise
        for buffer in written:
            buffer.initialized = True
        return result

    def close(self) -> None:
        self._prepared.close()

    def _resolve(
        self, argument: RequestArgument, kind: str, index: int, pools: list[Memory]
    ) -> RequestArgument:
        if not isinstance(argument, TokenArgument):
            return argument
        buffer = self.owner.buffer(argument.token)
        if (id(self), kind, index) not in buffer.roles:
            raise InvalidArgument(f"the buffer {argument.token} is not for {kind} {index}")
        if argument.dimensions and argument.dimensions != buffer.shape:
            raise InvalidArgument(f"shape {argument.dimensions} of a buffer of {buffer.shape}")
        pools.append(buffer.pool.memory)
        place = DataLocation(len(pools) - 1, 0, buffer.nbytes)
        return PoolArgument(place, buffer.shape if kind == "input" else ())


def _operand_of(role: BufferRole, device: DomainDevice) -> Operand:
    prepared = role.prepared
    if not isinstance(prepared, DomainModel) or prepared.owner is not device:
        raise InvalidArgument("a role names a prepared model of another device")
    entry = prepared.model.entry
    indexes = entry.inputs if role.kind == "input" else entry.outputs
    if not 0 <= role.index < len(indexes):
        raise InvalidArgument(f"{role.kind} {role.index} of {len(indexes)}")
    return entry.operands[indexes[role.index]]


def _merged(one: Shape, other: Shape) -> Shape:
    """NNAPI's merge rule: nothing said is anything, else ranks and known dimensions are equal."""
    if one is None or other is None:
        return other if one is None else one
    if len(one) != len(other) or any(
        a is not None and b is not None and a != b for a, b in zip(one, other, strict=True)
    ):
        raise InvalidArgument(f"shapes {one} and {other} contradict each other")
    return tuple(b if a is None else a for a, b in zip(one, other, strict=True))
