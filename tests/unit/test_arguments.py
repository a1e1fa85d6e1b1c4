"""What public functions say of arguments that are none they take: one `InputError`, never an error
of what lies below.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import penstock
from penstock import blobcache, capsules, hal, memory, sealed
from penstock.arguments import check_kind, path_of
from penstock.cache import Cache, CacheInfo
from penstock.compilation.receipt import chrome_trace
from penstock.delegates import Delegate
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import InputError, InvalidArgument
from penstock.hal.fence import FenceSignal, MergedFence, fence_pair, status_of
from penstock.ir import Attributes, DType, Model, ModelBuilder, Operand, Quantization, infer_shapes
from penstock.nnapi.lowering import lower
from penstock.partitioning import place
from penstock.runtime.reproducing import replay, reproduce
from penstock.testing.contract import computes
from penstock.testing.doubles import FaultyDevice, LyingDevice, RecordingDevice, SlowDevice
from penstock.testing.vectors import load_directory, run_vectors
from penstock.threads import allowed_threads

WRONG: Final = (3, [1], 1.5, object())


def relu() -> Model:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (2,), "x")
    return b.build(b.operation("RELU", [x], [(DType.FLOAT32, (2,))]))


PATHS: Final[dict[str, Callable[[Any], object]]] = {
    "load": penstock.load,
    "load, mapped": lambda path: penstock.load(path, map=True),
    "compile": penstock.compile,
    "compile, cache": lambda path: penstock.compile(relu(), cache=path),
    "CacheInfo": CacheInfo,
    "Cache": Cache,
    "pool": memory.MemoryPool.from_file,
    "blobs": blobcache.PersistentBlobCache,
    "capsule": capsules.read,
    "capsule, written": lambda path: capsules.write(path, capsules.Capsule(None)),  # type: ignore[arg-type]  # not reached
    "key": sealed.FileKeyStore,
    "cache file": sealed.open_cache_file,
    "vectors": load_directory,
}
BYTES_TOO: Final = {"load", "compile"}
DESCRIPTORS_TOO: Final = {"pool"}


@pytest.mark.parametrize("path", ["a\0b", Path("a\0b"), "a\ud800b"], ids=ascii)
@pytest.mark.parametrize("door", PATHS)
def test_impossible_file_name_is_refused(door: str, path: object) -> None:
    with pytest.raises(InputError, match=r"a.* is none: no file can be called so$"):
        PATHS[door](path)


@pytest.mark.parametrize("door", PATHS)
def test_paths_are_text(door: str) -> None:
    for wrong in (*WRONG, b"a"):
        if (door in BYTES_TOO and wrong == b"a") or (door in DESCRIPTORS_TOO and wrong == 3):
            continue
        with pytest.raises(InputError):
            PATHS[door](wrong)


def test_path_of_accepts_str_and_pathlike_only() -> None:
    assert path_of("a/\udcff", "a path") == "a/\udcff"
    assert path_of(Path("a"), "a path") == "a"
    for wrong in (None, b"a", 3):
        with pytest.raises(InputError, match=f"^a path is needed, not {type(wrong).__name__}$"):
            path_of(wrong, "a path is needed")


def test_truth_values_are_no_numbers() -> None:
    check_kind(True, bool, "a flag")
    check_kind(3, (str, int), "a number")
    with pytest.raises(InputError, match=r"^a number is needed, not bool$"):
        check_kind(True, int, "a number is needed")


DOORS: Final[dict[str, tuple[Callable[[Any], object], str]]] = {
    "capsules.dump": (capsules.dump, "a Capsule is needed"),
    "capsules.parse": (capsules.parse, "a capsule is read from bytes"),
    "replay": (replay, "a Capsule is replayed"),
    "reproduce": (lambda v: reproduce(v, [], "reference"), "a Model is run and compared"),
    "RecordingDevice": (RecordingDevice, "a double is made around a Device"),
    "FaultyDevice": (lambda v: FaultyDevice(ReferenceDevice(), v), "raise_on is a mapping"),
    "SlowDevice": (lambda v: SlowDevice(ReferenceDevice(), v), "seconds is a mapping"),
    "LyingDevice": (lambda v: LyingDevice(ReferenceDevice(), v), "no lie is named"),
    "computes": (computes, "a Device is asked"),
    "run_vectors": (lambda v: run_vectors([], v), "operation vectors run on a Device"),
    "MergedFence": (MergedFence, r"a fence is needed, with wait\(\) and error\(\)"),
    "status_of": (status_of, r"a fence is needed, with wait\(\) and error\(\)"),
    "as_descriptor": (hal.as_descriptor, r"a fence is needed, with wait\(\) and error\(\)"),
    "FenceSignal": (FenceSignal, "a fence is signalled by one end of a socket pair"),
    "signal": (hal.EventFence().signal, "a fence fails with a DriverError"),
    "signal, as a descriptor": (fence_pair()[0].signal, "a fence fails with"),
    "when_signalled": (hal.EventFence().when_signalled, "a fence calls a function"),
    "pool_of": (memory.pool_of, "the place of a NumPy array"),
    "map_memory": (memory.map_memory, "a hal.Memory is mapped"),
    "PoolLayout": (lambda v: memory.PoolLayout(v, 0), "a layout has a mapping"),
    "Model": (Model, "a model .* (has a tuple|is made) of Subgraphs"),
    "Model.constant": (relu().constant, "the value of an Operand"),
    "Model.signature_model": (relu().signature_model, "a signature is named by text"),
    "State": (penstock.State, "a State is of a Model; compiled.new_state"),
    "State.get": (penstock.State(relu()).get, "variables are named by their number"),
    "State.is_assigned": (penstock.State(relu()).is_assigned, "variables are named"),
    "CompiledModel": (lambda v: penstock.CompiledModel(v, v, v, v), "penstock.compile makes"),
    "Quantization": (lambda v: Quantization(v, v), "scales are"),
    "Attributes": (Attributes, "attributes are a mapping"),
    "infer_shapes": (infer_shapes, "shapes are inferred of a Model"),
    "operation": (lambda v: ModelBuilder().operation(v, [], []), "an operation's type is text"),
    "build": (lambda v: ModelBuilder().build(v), "(outputs are a list|an output is the index)"),
    "located": (lambda v: ModelBuilder().located(v, 0, DType.INT8, (1,)), "a ConstantPool"),
    "lower": (lower, "an NnapiModel is lowered"),
    "place": (lambda v: place(v, []), "a plan is made of a Model"),
    "place, devices": (lambda v: place(relu(), v), "(a list of Devices|no device)"),
    "place, policy": (lambda v: place(relu(), [], v), "a plan is made by a Policy"),
    "trace": (chrome_trace, "a trace is made of"),
    "trace, plan": (lambda v: chrome_trace([], v), "named by an ExecutionPlan"),
    "threads": (allowed_threads, "threads are a whole number"),
    "Delegate": (Delegate, "flags are DelegateFlags"),
    "Limits": (blobcache.Limits, "the limit key is a whole number of bytes"),
    "Version": (blobcache.Version, "a device version is a 32-bit number"),
    "Version, build": (lambda v: blobcache.Version(1, v), "a build id is text"),
    "Owner": (lambda v: sealed.Owner(v, ""), "a driver's name, version and origin are text"),
    "registry_path": (lambda v: sealed.registry_path("", v, v), "a registry has an Owner"),
}
FINE: Final[dict[str, tuple[object, ...]]] = {
    "signal": (None,),
    "signal, as a descriptor": (None,),
    "Attributes": (None,),
    "Quantization": ([1],),
    "build": ([1],),
    "trace, plan": (None,),
    "threads": (None, 3),
    "Delegate": (3,),
    "Limits": (3,),
    "Version": (3,),
    "Version, build": ("a",),
    "Owner": ("a",),
    "Model.signature_model": ("a",),
    "operation": ("a",),
}


@pytest.mark.parametrize("door", DOORS)
def test_doors_name_what_they_take(door: str) -> None:
    ask, words = DOORS[door]
    fine = FINE.get(door, ())
    for wrong in (None, 3, "a", [1]):
        if wrong not in fine:
            with pytest.raises(InputError, match=words):
                ask(wrong)


def test_waits_are_numbers_of_nanoseconds() -> None:
    signal, descriptor = fence_pair()
    for fence in (hal.EventFence(), MergedFence(hal.EventFence()), descriptor):
        for wrong in ("a", [1], True, float("nan")):
            with pytest.raises(
                InputError, match=r"^a wait is a number of nanoseconds, or None, not "
            ):
                fence.wait(wrong)  # type: ignore[arg-type]  # as a program without types would
        assert not fence.wait(0)
        assert not fence.wait(np.int64(1))  # type: ignore[arg-type]  # a number, too
    signal.close()
    descriptor.close()


def test_the_hal_takes_its_own_structs() -> None:
    for wrong in (None, 3, "a", [1]):
        with pytest.raises(InvalidArgument, match="a PrepareConfig is needed, not "):
            hal.validate_prepare_config(wrong)  # type: ignore[arg-type]  # a driver's mistake
        with pytest.raises(InvalidArgument, match="a Request is needed, not "):
            # Likewise.
            hal.validate_request(relu(), wrong, hal.ExecutionConfig())  # type: ignore[arg-type]


def test_a_wrong_scale_is_no_number() -> None:
    for wrong in (((None,), (0,)), ((1.0,), ("a",)), ((1.0,), (0.5,))):
        with pytest.raises(InputError, match="scales are numbers, and zero points whole numbers"):
            Quantization(*wrong)
    assert Operand(DType.INT8, (1,), quantization=Quantization((0.5,), (0,))).quantization
