"""The cache files of the OpenVINO driver: what is saved is loaded, in other processes too, and
nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pytest

from penstock.drivers.openvino import OpenVinoDevice
from penstock.errors import GeneralFailure, InvalidArgument
from penstock.hal import PrepareConfig
from tests.support_artefacts import DAMAGES, WEIGHTS, answer, cache_files, network, run
from tests.support_openvino import cpu, needs_openvino

pytestmark = [needs_openvino, pytest.mark.usefixtures("no_descriptor_leaks")]


def opened(folder: Path, files: tuple[int, int] = (1, 1)) -> AbstractContextManager[PrepareConfig]:
    return cache_files(folder, files)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    device = cpu()
    with opened(tmp_path) as config:
        prepared = device.prepare_model(network(), config)
    assert prepared.cache_report.save == "saved"
    assert np.allclose(run(prepared), answer(), atol=1e-4)
    assert (device.compiles, device.loads) == (1, 0)
    return tmp_path


def test_what_was_saved_is_imported_without_a_compile(saved: Path) -> None:
    device = cpu()
    with opened(saved) as config:
        prepared = device.prepare_model_from_cache(config)
    assert np.allclose(run(prepared), answer(), atol=1e-4)
    assert (device.compiles, device.loads) == (0, 1)
    assert prepared.cache_report.artefact == "optimised"


def test_large_constants_lie_in_the_data_file_alone(saved: Path) -> None:
    assert WEIGHTS.tobytes() in (saved / "data0").read_bytes()
    assert WEIGHTS.tobytes()[:64] not in (saved / "model0").read_bytes()


def test_another_process_imports_it(saved: Path) -> None:
    program = (
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from tests.unit.drivers.openvino import test_caching as t\n"
        "device = t.cpu()\n"
        f"with t.opened(Path({str(saved)!r})) as config:\n"
        "    prepared = device.prepare_model_from_cache(config)\n"
        "assert np.allclose(t.run(prepared), t.answer(), atol=1e-4)\n"
        "print(device.compiles, device.loads)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ
    )
    assert (done.stdout.split(), done.returncode) == (["0", "1"], 0), done.stderr


REFUSED: Final = {**DAMAGES, "nothing": ("WrongLength", lambda _: b"")}


@pytest.mark.parametrize("name", ["model0", "data0"])
@pytest.mark.parametrize("damage", REFUSED)
def test_altered_files_never_reach_the_engine(saved: Path, name: str, damage: str) -> None:
    reason, change = REFUSED[damage]
    file, device = saved / name, cpu()
    file.write_bytes(change(file.read_bytes()))
    with opened(saved) as config:
        with pytest.raises(GeneralFailure, match=f"^{reason}: "):
            device.prepare_model_from_cache(config)
        assert (device.compiles, device.loads) == (0, 0)
        prepared = device.prepare_model(network(), config)
        assert np.allclose(run(prepared), answer(), atol=1e-4)
        device.prepare_model_from_cache(config)
    assert (device.compiles, device.loads) == (1, 1)


@pytest.mark.parametrize(("field", "reason"), [("token", "ForeignEntry"), ("binding", "TokenCollision")])  # fmt: skip
def test_other_ingredients_are_refused_by_name(saved: Path, field: str, reason: str) -> None:
    device = cpu()
    with opened(saved) as config, pytest.raises(GeneralFailure, match=f"^{reason}: "):
        device.prepare_model_from_cache(msgspec.structs.replace(config, **{field: bytes(32)}))
    assert device.loads == 0


def test_a_wrong_number_of_files_is_compiled_but_not_loaded(tmp_path: Path) -> None:
    device = cpu()
    with opened(tmp_path, (2, 1)) as config:
        prepared = device.prepare_model(network(), config)
        assert prepared.cache_report.save == "failed"
        assert np.allclose(run(prepared), answer(), atol=1e-4)
        with pytest.raises(InvalidArgument):
            device.prepare_model_from_cache(config)


def test_an_artefact_of_another_build_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    device = cpu()
    monkeypatch.setattr("penstock.drivers.openvino.engine.build_of", lambda _: "CPU 1.0")
    with opened(saved) as config, pytest.raises(GeneralFailure, match=r"^OtherVersion: .*CPU 1\.0"):
        device.prepare_model_from_cache(config)
    assert device.loads == 0


def test_an_entry_of_another_device_is_refused(saved: Path) -> None:
    first = cpu()
    other = OpenVinoDevice(first.plugin, first._installation)
    other.name = "openvino-gpu"
    with opened(saved) as config, pytest.raises(GeneralFailure, match=r"^ForeignEntry: "):
        other.prepare_model_from_cache(config)
    assert other.loads == 0
