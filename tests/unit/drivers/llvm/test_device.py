"""The device `llvm`: instruction sets, versions, forks and what is left after a model is closed."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import errors, knobs
from penstock.drivers.llvm import LlvmDevice, device as device_module, processor
from penstock.drivers.llvm.artefact import Manifest, pack, unpack
from penstock.drivers.llvm.isa.record import RECORDS
from penstock.drivers.llvm.run.addresses import is_aligned
from penstock.ir import DType, Model, ModelBuilder, NDArray
from penstock.sealed.private_memory import CAN_FREEZE
from tests.support_llvm import needs_llvm
from tests.support_programs import run_python

pytestmark = needs_llvm

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def scaled() -> Model:
    builder = ModelBuilder()
    x, k = builder.input(DType.FLOAT32, (3, 4), "x"), builder.constant(X + 2, "k")
    (y,) = builder.operation("MUL", [x, k], [(DType.FLOAT32, (3, 4))])
    return builder.build([y])


def compiled(cache: Path | None, **arguments: object) -> penstock.CompiledModel:
    policy = penstock.Policy(accuracy="exact", allow_fallback=False)
    return penstock.compile(
        scaled(),
        devices=[LlvmDevice()],
        cache=cache,
        policy=policy,
        **arguments,  # type: ignore[arg-type]  # as the caller names them
    )


def outcome(model: penstock.CompiledModel) -> tuple[str, str]:
    (step,) = model.receipt.steps
    return step.cache.outcome, step.cache.reason


UNUSED = (
    "llvmlite", "penstock.compiler", "penstock.drivers.llvm.emit",
    "penstock.drivers.llvm.run.perf", "penstock.drivers.llvm.run.stop",
    "penstock.drivers.llvm.run.team",
)  # fmt: skip
"""What a model from the cache, which runs without limits on one thread, does not use."""


def test_support_and_a_cached_model_load_no_llvm_and_no_compiler(tmp_path: Path) -> None:
    with compiled(tmp_path):
        pass
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.unit.drivers.llvm.test_device import X, compiled, outcome\n"
        f"with compiled(Path({str(tmp_path)!r})) as model:\n"
        "    print(outcome(model)[0], model.run([X])[0].sum() > 0)\n"
        f"print([name for name in sys.modules if name.startswith({UNUSED!r})])\n"
    )
    done = run_python("-c", program, check=True)
    assert done.stdout.splitlines() == ["hit True", "[]"]


def test_a_cached_model_runs_with_any_number_of_threads(tmp_path: Path) -> None:
    with compiled(tmp_path, num_threads=1) as model:
        assert outcome(model)[0] == "miss"
    with compiled(tmp_path, num_threads=3) as model:
        assert outcome(model)[0] == "hit"
        np.testing.assert_array_equal(model.run([X])[0], X * (X + 2))


@pytest.mark.parametrize("name", [n for n, isa in RECORDS.items() if not processor.missing(isa)])
def test_every_instruction_set_of_the_processor_can_be_chosen(name: str, tmp_path: Path) -> None:
    with knobs.override(driver_settings=f"llvm_instructions={name}"):
        for expected in ("miss", "hit"):
            with compiled(tmp_path) as model:
                assert outcome(model)[0] == expected
                np.testing.assert_array_equal(model.run([X])[0], X * (X + 2))


def test_an_entry_of_another_instruction_set_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isa = processor.chosen()
    best, architecture = isa.name, isa.architecture
    with compiled(tmp_path):
        pass
    names = (n for n, i in RECORDS.items() if n != best and i.architecture == architecture)
    other = next(names)
    # What the processor may lack is compiled, and not run.
    whole = processor.features() | set(RECORDS[other].features)
    monkeypatch.setattr(processor, "features", lambda: whole)
    with knobs.override(driver_settings=f"llvm_instructions={other}"), compiled(tmp_path) as model:
        assert outcome(model) == (
            "miss",
            f"OtherVersion: the artefact is for {best}, and not for {other}",
        )


@pytest.mark.skipif(bool(processor.missing(RECORDS["avx512"])), reason="it has no AVX-512")
def test_an_entry_for_features_that_the_processor_lacks_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with compiled(tmp_path, portable="x86-64-v4"):
        pass
    less = processor.features() - {"avx512dq", "avx512vl"}
    monkeypatch.setattr(processor, "features", lambda: less)
    reason = "the artefact is for avx512, and the processor lacks avx512dq, avx512vl"
    with compiled(tmp_path, portable="x86-64-v4") as model:
        assert outcome(model) == ("miss", f"OtherVersion: {reason}")
        with pytest.raises(errors.GeneralFailure, match=reason):
            model.run([X])


def test_a_portable_entry_is_found_whatever_the_processor_and_llvmlite_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with compiled(tmp_path, portable="x86-64-v3"):
        pass
    monkeypatch.setattr(device_module, "engine_version", lambda: "0.99")
    monkeypatch.setattr("penstock.cache.ingredients.cpu_features", lambda: "x86_64 another")
    with compiled(tmp_path, portable="x86-64-v3") as model:
        assert outcome(model)[0] == "hit"
        np.testing.assert_array_equal(model.run([X])[0], X * (X + 2))


def test_an_entry_of_another_llvmlite_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = device_module.engine_version()
    with compiled(tmp_path):
        pass
    monkeypatch.setattr(device_module, "engine_version", lambda: "0.99")
    with compiled(tmp_path) as model:
        reason = f"OtherVersion: the artefact is of llvmlite {own}, and this is 0.99"
        assert outcome(model) == ("miss", reason)


def test_without_llvmlite_the_device_is_unavailable_and_loads_artefacts_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with compiled(tmp_path):
        pass
    monkeypatch.setattr(device_module, "engine_version", lambda: "")
    assert LlvmDevice().check() == "llvmlite is not installed: pip install llvmlite"
    with knobs.override(driver_settings="llvm_code=load"):
        assert LlvmDevice().check() is None
        with compiled(tmp_path) as model:
            assert outcome(model)[0] == "hit"
        with pytest.raises(errors.DeviceUnavailable, match="llvmlite is not installed"):
            compiled(None)


def test_a_processor_without_a_record_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "features", frozenset)
    assert "which the code needs" in str(LlvmDevice().check())
    monkeypatch.setattr(processor, "architecture", lambda: "riscv64")
    assert LlvmDevice().check() == "there is no code for the architecture riscv64"


def test_an_unknown_baseline_names_those_that_there_are() -> None:
    with pytest.raises(errors.InputError, match=r"one of .*x86-64-v3.*; not 'x86-64-v9'"):
        compiled(None, portable="x86-64-v9")


def test_code_for_another_processor_is_saved_and_does_not_run_here(tmp_path: Path) -> None:
    other = "armv8-a" if processor.architecture() == "x86_64" else "x86-64-v3"
    with compiled(tmp_path, portable=other) as model:
        (step,) = model.receipt.steps
        assert step.cache.saved
        with pytest.raises(errors.GeneralFailure, match="and the processor lacks"):
            model.run([X])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_is_refused_and_compiles_anew() -> None:
    program = (
        "import os, penstock\n"
        "from penstock.drivers.llvm import LlvmDevice\n"
        "from penstock.hal import ExecutionConfig, HostMemory, PrepareConfig, Request\n"
        "from tests.unit.drivers.llvm.test_device import X, compiled, scaled\n"
        "device = LlvmDevice()\n"
        "prepared = device.prepare_model(scaled(), PrepareConfig())\n"
        "model = compiled(None)\n"
        "request = Request((HostMemory(X),), (HostMemory(X.copy()),))\n"
        "if not (child := os.fork()):\n"
        "    for use in (lambda: model.run([X]),\n"
        "                lambda: prepared.execute(request, ExecutionConfig())):\n"
        "        try:\n"
        "            use()\n"
        "        except penstock.PenstockError as error:\n"
        "            print(type(error).__name__, flush=True)\n"
        "    print((compiled(None).run([X])[0] == X * (X + 2)).all(), flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print((model.run([X])[0] == X * (X + 2)).all())\n"
    )
    done = run_python("-c", program, check=True)
    assert done.stdout.split() == ["StateError", "DeadObject", "True", "True"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_child_that_is_forked_while_llvm_compiles_can_compile() -> None:
    program = (
        "import os, threading\n"
        "from penstock.drivers.llvm import backend, processor\n"
        "from tests.unit.drivers.llvm.test_device import X, compiled\n"
        "line = '  %v{} = add i32 %v{}, 1\\n'\n"
        "body = ''.join(line.format(k + 1, k) for k in range(20000))\n"
        "text = f'define i32 @f(i32 %v0) nounwind {{\\n{body}  ret i32 %v20000\\n}}\\n'\n"
        "work = lambda: backend.compile_object(text, processor.chosen())\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "if not (child := os.fork()):\n"
        "    print((compiled(None).run([X])[0] == X * (X + 2)).all(), flush=True)\n"
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "thread.join()\n"
    )
    done = run_python("-c", program, check=True, timeout=60)
    assert done.stdout.split() == ["True", "0"]


def executable_mappings() -> int:
    """Mappings of this process that no file backs and that may be executed."""
    lines = Path("/proc/self/maps").read_text("ascii").splitlines()
    return sum(line.split()[1].startswith("r-x") and len(line.split()) == 5 for line in lines)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="mappings are listed on Linux")
def test_closed_models_leave_no_code_descriptors_or_threads(tmp_path: Path) -> None:
    def turn() -> None:
        for cache in (None, tmp_path):
            with compiled(cache) as model:
                model.run([X])
                mapped = executable_mappings()
            assert executable_mappings() < mapped

    turn()
    gc.collect()
    before = executable_mappings(), descriptors()
    threads = set(threading.enumerate())
    for _ in range(10):
        turn()
    gc.collect()
    # Models and threads that other tests left may end meanwhile.
    assert executable_mappings() <= before[0]
    assert descriptors() <= before[1]
    assert set(threading.enumerate()) <= threads


def test_an_artefact_of_impossible_sizes_is_refused() -> None:
    device = LlvmDevice()
    prepared = device.prepare_model(scaled(), penstock.hal.PrepareConfig())
    executable = prepared.executable  # type: ignore[attr-defined]  # an `LlvmPreparedModel`
    manifest: Manifest = executable.code.manifest
    model, _ = pack(manifest, b"code", memoryview(b""))
    with pytest.raises(errors.GeneralFailure, match="constants are not of the length"):
        unpack(memoryview(model[0]), memoryview(bytes(manifest.constants + 1)))


@pytest.mark.parametrize("is_hit", [False, True])
def test_constants_are_used_where_they_lie(
    is_hit: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_hit:
        compiled(tmp_path).close()

    def copied(_: object) -> None:
        raise AssertionError("the constants were copied")

    monkeypatch.setattr("penstock.drivers.llvm.run.code.moved", copied)
    with compiled(tmp_path) as model:
        assert outcome(model)[0] == ("hit" if is_hit else "miss")
        np.testing.assert_array_equal(model.run([X])[0], X * (X + 2))


@pytest.mark.skipif(not CAN_FREEZE, reason="memory of views alone is not shared")
def test_clients_of_one_process_share_the_constants_of_the_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[NDArray] = []

    def noted(constants: NDArray) -> bool:
        read.append(constants)
        return is_aligned(constants)

    monkeypatch.setattr("penstock.drivers.llvm.run.code.is_aligned", noted)
    with compiled(tmp_path) as first, compiled(tmp_path) as second:
        assert [outcome(model)[0] for model in (first, second)] == ["miss", "hit"]
        compiles, loads = read
        assert np.shares_memory(compiles, loads)
        for model in (first, second):
            np.testing.assert_array_equal(model.run([X])[0], X * (X + 2))
