"""Drivers with a cache: what is saved is loaded, in other processes too, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pytest

import penstock
from penstock import errors
from penstock.driverkit.engine import EngineDevice
from penstock.driverkit.postponed_write import Payloads
from penstock.hal import Capabilities, DeviceType
from tests.support_artefacts import DAMAGES, X, answer, cache_files, network, run
from tests.support_open_shapes import check_open_batch
from tests.unit.driverkit.engines import ENGINES, INSTALLED, Engine, words_of

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")


def test_cache_files_without_load_are_refused_in_one_sentence() -> None:
    class Forgetful(EngineDevice):
        files = (1, 0)

    class Remembering(Forgetful):
        load = EngineDevice.compile  # type: ignore[assignment]

    with pytest.raises(errors.InputError) as found:
        Forgetful("forgetful", DeviceType.CPU, Capabilities())
    assert str(found.value) == (
        "Forgetful: files is (1, 0), but nothing loads them; implement load(entry, config), or set "
        "files to (0, 0) for a device without a cache"
    )
    for kind in (Remembering, EngineDevice):
        kind("other", DeviceType.CPU, Capabilities())


@pytest.mark.parametrize(
    "error", [OSError("no space"), errors.ResourceExhaustedTransient("no memory")]
)
def test_error_of_a_driver_while_it_saves_is_reported(tmp_path: Path, error: Exception) -> None:
    device = EngineDevice("other", DeviceType.CPU, Capabilities())

    def payloads() -> Payloads:
        raise error

    with cache_files(tmp_path, (1, 0)) as config:
        saved = device.save(config, payloads)
    assert saved is not None
    assert (saved.saved, saved.reason) == (False, f"{type(error).__name__}: {error}")


@pytest.fixture(params=INSTALLED)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    return found


@pytest.fixture
def device(engine: Engine) -> EngineDevice:
    return engine.cpu()


@pytest.fixture
def saved(engine: Engine, tmp_path: Path) -> Path:
    device = engine.cpu()
    with cache_files(tmp_path, engine.files) as config:
        prepared = device.prepare_model(network(), config)
    assert prepared.cache_report.save == "saved"
    assert np.allclose(run(prepared), answer(), atol=1e-4)
    assert (device.compiles, device.loads) == (1, 0)
    return tmp_path


def test_a_saved_model_is_loaded_without_a_compile(
    engine: Engine, device: EngineDevice, saved: Path
) -> None:
    with cache_files(saved, engine.files) as config:
        prepared = device.prepare_model_from_cache(config)
    assert np.allclose(run(prepared), answer(), atol=1e-4)
    assert (device.compiles, device.loads) == (0, 1)
    assert prepared.cache_report.artefact == ("optimised" if engine.name == "openvino" else "")


def test_another_process_loads_a_saved_model(engine: Engine, saved: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.unit.driverkit import test_engine_caching as t\n"
        f"engine = t.ENGINES[{engine.name!r}]\n"
        "device = engine.cpu()\n"
        f"with t.cache_files(Path({str(saved)!r}), engine.files) as config:\n"
        "    prepared = device.prepare_model_from_cache(config)\n"
        "assert t.np.allclose(t.run(prepared), t.answer(), atol=1e-4)\n"
        "print(device.compiles, device.loads, 'onnx' in sys.modules)\n"
    )
    assert ENGINES[engine.name] is engine
    assert words_of(program) == ["0", "1", "False"]


DAMAGED: Final = [
    (file, damage) for file in ("model0", "data0") for damage in (*DAMAGES, "nothing")
]


@pytest.mark.parametrize(("file", "damage"), DAMAGED)
def test_altered_files_never_reach_the_engine(
    engine: Engine, device: EngineDevice, saved: Path, file: str, damage: str
) -> None:
    if not (saved / file).exists():
        pytest.skip(f"{engine.label} has no such cache file")
    every = {**DAMAGES, "nothing": (engine.empty_file, lambda _: b"")}
    reason, change = every[damage]
    (saved / file).write_bytes(change((saved / file).read_bytes()))
    with cache_files(saved, engine.files) as config:
        with pytest.raises(errors.GeneralFailure, match=f"^{reason}: "):
            device.prepare_model_from_cache(config)
        assert (device.compiles, device.loads) == (0, 0)
        prepared = device.prepare_model(network(), config)
        assert np.allclose(run(prepared), answer(), atol=1e-4)
        device.prepare_model_from_cache(config)
    assert (device.compiles, device.loads) == (1, 1)


@pytest.mark.parametrize(
    ("field", "reason"), [("token", "ForeignEntry"), ("binding", "TokenCollision")]
)
def test_other_ingredients_are_refused_by_name(
    engine: Engine, device: EngineDevice, saved: Path, field: str, reason: str
) -> None:
    with (
        cache_files(saved, engine.files) as config,
        pytest.raises(errors.GeneralFailure, match=f"^{reason}: "),
    ):
        device.prepare_model_from_cache(msgspec.structs.replace(config, **{field: bytes(32)}))
    assert device.loads == 0


def test_a_wrong_number_of_files_is_compiled_but_not_loaded(
    engine: Engine, device: EngineDevice, tmp_path: Path
) -> None:
    with cache_files(tmp_path, (2, engine.files[1])) as config:
        prepared = device.prepare_model(network(), config)
        assert prepared.cache_report.save == "failed"
        assert np.allclose(run(prepared), answer(), atol=1e-4)
        with pytest.raises(errors.InvalidArgument):
            device.prepare_model_from_cache(config)


def test_an_artefact_of_another_build_is_refused(
    engine: Engine, device: EngineDevice, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = engine.pretend_version(monkeypatch)
    with (
        cache_files(saved, engine.files) as config,
        pytest.raises(errors.GeneralFailure, match=f"^OtherVersion: .*{version}"),
    ):
        device.prepare_model_from_cache(config)
    assert device.loads == 0


def test_an_entry_of_another_device_is_refused(
    engine: Engine, device: EngineDevice, saved: Path
) -> None:
    other = engine.alike(device)
    other.name = f"{engine.name}-other"
    with (
        cache_files(saved, engine.files) as config,
        pytest.raises(errors.GeneralFailure, match=r"^ForeignEntry: "),
    ):
        other.prepare_model_from_cache(config)
    assert other.loads == 0


def compiled(folder: Path, device: EngineDevice, runs: int = 1) -> tuple[str, str]:
    """Outcome and reason of the compile's cache, after *runs* right runs."""
    with penstock.compile(network(), devices=[device], cache=folder) as model:
        for _ in range(runs):
            assert np.allclose(model(X)[0], answer(), atol=1e-4)
        cache = model.receipt.steps[0].cache
        return cache.outcome, cache.reason


def test_the_second_start_compiles_nothing(engine: Engine, tmp_path: Path) -> None:
    outcome, reason = compiled(tmp_path, engine.cpu())
    assert (outcome, reason.split(":")[0]) == ("miss", "NoEntry")
    device = engine.cpu()
    assert compiled(tmp_path, device)[0] == "hit"
    assert (device.compiles, device.loads) == (0, 1)


def test_an_altered_file_is_refused_by_name_and_compiled_again(
    engine: Engine, tmp_path: Path
) -> None:
    compiled(tmp_path, engine.cpu())
    (file,) = tmp_path.glob("*10")
    content = bytearray(file.read_bytes())
    content[700] ^= 1
    file.write_bytes(content)
    device = engine.cpu()
    outcome, reason = compiled(tmp_path, device)
    assert (outcome, reason.split(":")[0]) == ("miss", "SealBroken")
    assert (device.compiles, device.loads) == (1, 0)
    assert compiled(tmp_path, engine.cpu())[0] == "hit"


def test_an_open_batch_is_compiled_by_the_run_or_for_the_shapes_given(
    engine: Engine, device: EngineDevice
) -> None:
    assert device.name == f"{engine.name}-cpu"
    check_open_batch(device)
