"""What the attacks on the compilation cache share: a small layer with exact answers, and the lab
device compiled through one directory again and again, each time as a new process would.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, Self

import numpy as np
from msgspec import structs

import penstock
from penstock import hal, sealed
from penstock.cache.claim import uptime
from penstock.cache.directory import CacheDirectory
from penstock.cache.eviction import collect
from penstock.cache.info import CacheInfo
from penstock.cache.store import Store
from penstock.compilation import entry
from penstock.errors import CacheError, GeneralFailure, PenstockError
from penstock.ir import DType, Model, ModelBuilder, NDArray
from penstock.testing.doubles import QUICK_FILES
from penstock.testing.lab import LabDevice
from tests.support_sealed import BINDING, TOKEN

F32 = DType.FLOAT32
NEEDED = (2, 1)
PLACES = ("10", "11", "20")
"""How the names of an entry's files end: two model files, one data file."""


@cache
def layer(seed: int, units: int = 3, depth: int = 4) -> Model:
    """RELU of a layer whose weights and biases are quarters, so that float32 has every sum exactly;
    large biases keep outputs of small layers from zero.
    """
    rng = np.random.default_rng(seed)
    builder = ModelBuilder()
    x = builder.input(F32, (1, depth), "x")
    weights = builder.constant(quarters(rng, (units, depth)))
    bias = builder.constant(quarters(rng, (units,)) + np.float32(16 * depth))
    (y,) = builder.operation("FULLY_CONNECTED", [x, weights, bias], [(F32, (1, units))])
    return builder.build(builder.operation("RELU", [y], [(F32, (1, units))]))


def quarters(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray:
    return (rng.integers(-16, 17, shape) / 4).astype(np.float32)


@cache
def given(model: Model) -> NDArray:
    shape = tuple(d or 0 for d in model.inputs[0].shape or ())
    return quarters(np.random.default_rng(9), shape)


@cache
def expected(model: Model) -> NDArray:
    """The reference device's answer."""
    with penstock.compile(model, devices=["reference"], cache=None) as compiled:
        answer: NDArray = compiled.run([given(model)])[0].copy()
    return answer


class Turn(NamedTuple):
    """What one compile did, in words of its receipt, and how often the driver compiled."""

    outcome: str
    reason: str
    compiles: int
    not_saved: str

    @property
    def name(self) -> str:
        """The class of the refusal that a miss names."""
        return self.reason.partition(":")[0]


@dataclass
class LabRig:
    """The lab device and its user's state and cache directories below *root*; every compile is a
    new process's.

    Nothing waits for the disk, and *files* and *registry_files* may fail on purpose. *keys* None is
    the key file.
    """

    root: Path
    files: Any = QUICK_FILES
    registry_files: Any = QUICK_FILES
    keys: sealed.KeyStore | None = None
    version: str = "1"
    folder: str = "cache"
    clock: Callable[[], float] = time.time
    device_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def path(self) -> Path:
        return self.root / self.folder

    @property
    def key_store(self) -> sealed.KeyStore:
        return self.keys or sealed.FileKeyStore(self.state / "key", files=self.files)

    @property
    def registry_file(self) -> Path:
        return Path(
            sealed.registry_path(self.state, sealed.Owner("lab", self.version), self.key_store)
        )

    def registry(self, version: str | None = None) -> sealed.FileRegistry:
        owner, keys = sealed.Owner("lab", version or self.version), self.key_store
        path = sealed.registry_path(self.state, owner, keys)
        return sealed.FileRegistry(path, owner, keys, files=self.registry_files)

    def seal(self, device: str, version: str, needed: tuple[int, int]) -> sealed.Seal:
        keys = self.key_store
        registry = self.registry(version)
        return sealed.Seal(
            device, version, files=needed, registry=registry, keys=keys, file_system=self.files
        )

    def device(self) -> LabDevice:
        return LabDevice(
            version=self.version,
            registry=self.registry(),
            keys=self.key_store,
            file_system=self.files,
            **self.device_options,
        )

    @property
    def directory(self) -> Callable[..., CacheDirectory]:
        store = partial(
            Store,
            files=self.files,
            keys=self.key_store,
            clock=self.clock,
            uptime=lambda: uptime() + self.clock() - time.time(),
            seals=self.seal,
            locks=str(self.state / "locks"),
        )
        return lambda path: CacheDirectory(store(str(path)))

    @contextmanager
    def injected(self) -> Iterator[None]:
        """Compiles in the block use this rig's files, key and registry."""
        # `unittest.mock` imports asyncio, in each process that a test starts.
        usual = vars(entry)["CacheDirectory"]
        vars(entry)["CacheDirectory"] = self.directory
        try:
            yield
        finally:
            vars(entry)["CacheDirectory"] = usual

    def compile(self, model: Model, info: Any = None, *, runs: int = 1, **more: Any) -> Turn:
        """Compiles, runs, and asserts that the answers are the reference device's."""
        device = self.device()
        where = info or CacheInfo(self.path)
        with (
            self.injected(),
            penstock.compile(model, devices=[device], cache=where, **more) as compiled,
        ):
            for _ in range(runs):
                np.testing.assert_array_equal(compiled.run([given(model)])[0], expected(model))
            found = compiled.receipt.steps[0].cache
        return Turn(found.outcome, found.reason, device.compiles, found.not_saved)

    def answer(self, model: Model, info: Any) -> tuple[str, NDArray | type[PenstockError]]:
        """The outcome and what a run gives, right or wrong, or the class of the error it fails
        with.
        """
        with (
            self.injected(),
            penstock.compile(model, devices=[self.device()], cache=info) as compiled,
        ):
            outcome = compiled.receipt.steps[0].cache.outcome
            try:
                return outcome, compiled.run([given(model)])[0].copy()
            except PenstockError as error:
                return outcome, type(error)

    def peek(self, config: hal.PrepareConfig) -> str:
        """What a reader finds under the token and binding of *config*, without a compile: "hit
        <artefact>", or why not.
        """
        try:
            with self.directory(self.path).open(config.token, NEEDED) as files:
                asked = structs.replace(
                    config, model_cache=files.model, data_cache=files.data, lock=files.lock
                )
                with closing(self.device().prepare_model_from_cache(asked)) as prepared:
                    return f"hit {prepared.cache_report.artefact}"
        except (CacheError, GeneralFailure) as error:
            return str(error).partition(":")[0]

    def hits(self, model: Model, info: Any = None, **more: Any) -> bool:
        """Whether the entry hits with no compile, and the right answer."""
        turn = self.compile(model, info, **more)
        assert turn[:3] == ("hit", "baseline", 0), turn
        return True

    def refuses(self, kind: type[CacheError], model: Model, info: Any = None, **more: Any) -> bool:
        """Whether the entry is refused for *kind*, exactly, and what was compiled instead is right
        and saved.
        """
        turn = self.compile(model, info, **more)
        assert (turn.outcome, turn.name, turn.compiles) == ("miss", kind.__name__, 1), turn
        assert turn.reason.startswith(f"{kind.__name__}: ")
        assert len(turn.reason) > len(kind.__name__) + 10
        assert not turn.not_saved
        return True

    def attack(
        self, kind: type[CacheError], alter: Callable[[], object], model: Model, info: Any = None
    ) -> None:
        """An untouched entry hits, the altered one is refused for *kind*, a recompiled one hits."""
        assert self.hits(model, info)
        alter()
        assert self.refuses(kind, model, info)
        assert self.hits(model, info)

    def entries(self) -> dict[str, list[Path]]:
        """The published cache files of each entry, in order, by the letters of its token."""
        found: dict[str, list[Path]] = {}
        for path in sorted(self.path.iterdir()):
            if path.name[64:] in PLACES:
                found.setdefault(path.name[:64], []).append(path)
        return found

    def paths(self) -> list[Path]:
        """The cache files of the only entry."""
        (only,) = self.entries().values()
        return only

    def new_paths(self, model: Model, info: Any = None) -> list[Path]:
        """Compiles a model that is not cached yet; its cache files."""
        before = set(self.entries()) if self.path.exists() else set()
        assert self.compile(model, info).name == "NoEntry"
        (new,) = set(self.entries()) - before
        return self.entries()[new]

    def litter(self) -> list[str]:
        """Names in the cache directory that are neither a published file nor an index of one, once
        it was swept.
        """
        if not self.path.exists():
            return []
        collect(self.directory(self.path).store, None)
        published = set(self.entries())
        return sorted(
            p.name
            for p in self.path.iterdir()
            if p.name[:64] not in published or p.name[64:] not in {*PLACES, ".json"}
        )


def config_of(model: Model, token: bytes | None = None) -> hal.PrepareConfig:
    """What a compile asks the lab device with, but for the files."""
    asked: list[hal.PrepareConfig] = []

    class Recording(LabDevice):
        def prepare_model(self, model: Model, config: hal.PrepareConfig) -> hal.PreparedModelBase:
            asked.append(config)
            return super().prepare_model(model, config)

    with TemporaryDirectory() as root:
        rig = LabRig(Path(root))
        device = Recording(registry=rig.registry(), keys=rig.key_store)
        with rig.injected():
            penstock.compile(model, devices=[device], cache=CacheInfo(rig.path, token)).close()
    (config,) = asked
    return structs.replace(config, model_cache=(), data_cache=(), lock=None)


UNDONE: Final = 16
"""Of so many altered entries one is compiled anew where the alteration can be undone."""


class Bulk:
    """One entry in open files, prepared over and over by one device: the quickest three steps there
    are. Use it in a `with` block.
    """

    def __init__(self, root: Path, model: Model) -> None:
        self.root, self.model = root, model
        keys, owner = sealed.FileKeyStore(root / "key", files=QUICK_FILES), sealed.Owner("lab", "1")
        self.registry = sealed.FileRegistry(root / "registry", owner, keys, files=QUICK_FILES)
        self.device = LabDevice(registry=self.registry, keys=keys, file_system=QUICK_FILES)
        self.paths = [root / place for place in PLACES]
        self.handles = [hal.CacheHandle(sealed.open_cache_file(p, create=True)) for p in self.paths]
        self.config = hal.PrepareConfig(
            token=TOKEN,
            binding=BINDING,
            model_cache=tuple(self.handles[:2]),
            data_cache=tuple(self.handles[2:]),
        )
        self._request_input = hal.HostMemory(given(model))
        self._wanted = expected(model)

    def __enter__(self) -> Self:
        assert self.recompiled()
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            os.close(handle.fd)

    def hits(self, config: hal.PrepareConfig | None = None) -> bool:
        """Loads without a compile; the answer is right."""
        compiles, loads = self.device.compiles, self.device.loads
        prepared = self.device.prepare_model_from_cache(config or self.config)
        return self._right(prepared) and (self.device.compiles, self.device.loads) == (
            compiles,
            loads + 1,
        )

    def refusal(self, config: hal.PrepareConfig | None = None) -> str:
        """The name of the refusal, which comes before the engine is asked anything."""
        before = self.device.engine_calls
        try:
            self.device.prepare_model_from_cache(config or self.config)
        except GeneralFailure as error:
            assert self.device.engine_calls == before
            name, colon, sentence = str(error).partition(": ")
            assert colon
            assert sentence
            return name
        return "accepted"

    def recompiled(self) -> bool:
        """Compiles once and saves, as the runtime asks for after a refusal."""
        compiles, saves = self.device.compiles, self.device.saves
        prepared = self.device.prepare_model(self.model, self.config)
        return self._right(prepared) and (self.device.compiles, self.device.saves) == (
            compiles + 1,
            saves + 1,
        )

    def attack(
        self,
        kind: type[CacheError],
        alter: Callable[[Any], object],
        cases: Iterable[Any],
        undo: Callable[[Any], object] | None = None,
    ) -> int:
        """For each case: the untouched entry hits, after *alter*(case) it is refused for *kind*,
        the recompiled one hits, which is the next case's untouched one. With *undo* that is so of
        the first of every `UNDONE`; after the others *undo*(case) makes the entry untouched again.
        How many cases there were.
        """
        assert self.hits()
        done = 0
        for case in cases:
            alter(case)
            assert self.refusal() == kind.__name__, case
            if undo is not None and done % UNDONE:
                undo(case)
            else:
                assert self.recompiled(), case
                assert self.hits(), case
            done += 1
        assert self.hits()
        return done

    def _right(self, prepared: hal.PreparedModel) -> bool:
        with closing(prepared):
            answer = np.empty_like(self._wanted)
            request = hal.Request((self._request_input,), (hal.HostMemory(answer),))
            prepared.execute(request, hal.ExecutionConfig())
            return bool((answer == self._wanted).all())


def flip(fd: int, bit: int) -> None:
    """Flips one bit of an open file, in place."""
    (byte,) = os.pread(fd, 1, bit // 8)
    os.pwrite(fd, bytes([byte ^ 1 << bit % 8]), bit // 8)


def flip_in(path: Path, bit: int) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        flip(fd, bit)
    finally:
        os.close(fd)


def exchange(one: Path, other: Path) -> None:
    """The contents of two files, in place."""
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])


def names(kinds: Sequence[type[CacheError]]) -> set[str]:
    return {kind.__name__ for kind in kinds}
