"""A package that claims the name of another's driver or device: it gets neither its place nor its
cache entries.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support_programs import run_python

ROOT = Path(__file__).resolve().parents[2]

DRIVERS = ("sample", "sample-driver", "other", "npu", "another")

DRIVER = """
from penstock.drivers.sample import SampleDevice

class Impostor(SampleDevice):
    name = "{device}"

def create():
    open({log!r}, "a").write("loaded ")
    return Impostor()
"""

START = """
import json, sys
import penstock
from penstock import knobs
from penstock.ir import DType, ModelBuilder
builder = ModelBuilder()
a, b = builder.input(DType.FLOAT32, (2,), "a"), builder.input(DType.FLOAT32, (2,), "b")
builder_model = builder.build(builder.operation("ADD", [a, b], [(DType.FLOAT32, (2,))]))
try:
    with penstock.compile(builder_model, devices=[sys.argv[2]], cache=sys.argv[1]) as compiled:
        cache = compiled.receipt.steps[0].cache
        told = {"outcome": cache.outcome, "reason": cache.reason}
except penstock.errors.PenstockError as error:
    told = {"outcome": "refused", "reason": str(error)}
print(json.dumps(told))
"""


def install(
    site: Path, distribution: str, driver: str, device: str, version: str = "1.0"
) -> tuple[Path, Path]:
    """A distribution below *site* whose driver brings *device*; its folder, and where it notes that
    it was loaded.
    """
    module = distribution.replace("-", "_")
    folder, log = site / distribution, site / f"{distribution}.log"
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[penstock.drivers]\n{driver} = {module}:create\n")
    (folder / f"{module}.py").write_text(DRIVER.format(device=device, log=str(log)))
    return folder, log


class Machine:
    """Processes of one user, with packages installed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders: list[Path] = []
        self.sources = ""

    def run(self, *arguments: str) -> str:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, self.folders)),
            "PENSTOCK_STATE_DIR": str(self.root / "state"),
            "PENSTOCK_CACHE_DIR": str(self.root / "cache"),
            "PENSTOCK_KEY_STORE": "file",
            "PENSTOCK_DRIVER_SOURCES": self.sources,
            # Nothing but the rules of names keeps them out.
            "PENSTOCK_ISOLATE": ",".join(f"{name}=no" for name in DRIVERS),
        }
        ran = run_python(*arguments, env=environment, cwd=ROOT)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def start(self, device: str) -> tuple[str, str]:
        """Outcome and reason of a compile with the cache."""
        told = json.loads(self.run("-c", START, str(self.root / "cache"), device))
        return told["outcome"], told["reason"]

    def devices(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("-m", "penstock", "devices", "--json"))[
            "devices"
        ]
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("driver", DRIVERS[:3])
def test_a_package_that_claims_penstock_s_device_gets_neither_its_calls_nor_its_entries(
    machine: Machine, driver: str
) -> None:
    assert machine.start("sample")[0] == "miss"
    folder, log = install(machine.root / "site", "evil", driver, "sample")
    machine.folders = [folder]
    assert machine.start("sample")[0] == "hit"
    assert not log.exists()
    (claims,) = [d for d in machine.devices() if d["distribution"] == "evil"]
    assert not claims["usable"]
    assert "evil 1.0" in claims["reason"]
    assert "which is Penstock's" in claims["reason"]
    assert log.exists() == (driver != "sample")


def test_a_device_of_another_package_s_name_finds_none_of_its_entries(machine: Machine) -> None:
    """Also where the other is gone, and of the same version."""
    first, _ = install(machine.root / "site", "vendor", "npu", "npu-0")
    second, _ = install(machine.root / "site", "evil", "npu", "npu-0")
    machine.folders = [second]
    assert machine.start("npu-0")[0] == "miss"
    machine.folders = [first]
    outcome, reason = machine.start("npu-0")
    assert outcome == "miss"
    assert "source" in reason
    assert machine.start("npu-0")[0] == "hit"


@pytest.mark.parametrize("other", ["npu", "another"], ids=["one driver name", "one device name"])
def test_name_claimed_by_two_packages_is_refused_until_a_setting_decides(
    machine: Machine, other: str
) -> None:
    first, _ = install(machine.root / "site", "vendor", "npu", "npu")
    second, _ = install(machine.root / "site", "evil", other, "npu")
    machine.folders = [first, second]
    outcome, reason = machine.start("npu")
    assert outcome == "refused"
    for said in ("vendor 1.0 (npu=vendor:create)", f"evil 1.0 ({other}=evil:create)"):
        assert said in reason
    assert "PENSTOCK_DRIVER_SOURCES" in reason
    assert "npu=evil or npu=vendor" in reason
    shown = machine.run("-m", "penstock", "devices")
    assert "evil" in shown
    assert "vendor" in shown
    machine.sources = "npu=vendor"
    assert machine.start("npu")[0] == "miss"
    assert machine.start("npu")[0] == "hit"
    usable = [d["distribution"] for d in machine.devices() if d["name"] == "npu" and d["usable"]]
    assert usable == ["vendor"]
