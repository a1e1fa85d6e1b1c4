"""docs/llvm.md: what it prints is what the compiler prints, and its tables are complete."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest

import penstock
from penstock.compiler.legalise import RULES
from penstock.drivers.llvm import stages
from penstock.drivers.llvm.device import LlvmDevice
from penstock.drivers.llvm.emit import dense, depthwise, nest, routine, transpose
from penstock.drivers.llvm.isa import RECORDS
from penstock.drivers.llvm.processor import BASELINES
from penstock.hal import PrepareConfig
from penstock.ir import Model
from penstock.ir.operations import OPERATIONS
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "llvm.md").read_text("utf-8")
SHOWN = dict(re.findall(r"<!-- stage: (\w+) -->\n```text\n(.*?)```", PAGE, re.DOTALL))
ISA = RECORDS["avx512-vnni"]


def section(title: str) -> str:
    found = re.search(rf"(?ms)^## {title}\n(.*?)(?=^## |\Z)", PAGE)
    assert found is not None, title
    return found[1]


def first_cells(text: str) -> list[str]:
    """The first cell of each row of the tables in *text*, without heads."""
    rows = re.findall(r"(?m)^\| (.*?) \|", text)
    return [row for row in rows if "`" in row]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """The network that the page's code makes."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/llvm.md", "exec"), {})  # code of the repository
    return penstock.load(tmp_path / "small.tflite")


def plain(line: str) -> str:
    """An instruction without the numbers of labels, and without the registers of addresses."""
    line = re.sub(r"\.LBB\d+_\d+", ".LBB", line)
    return re.sub(r"\(%r[^)]*\)", "()", re.sub(r"%e\w\w", "%e", line))


def in_order(shown: list[str], printed: list[str]) -> list[str]:
    """The lines of *shown* that *printed* does not have, in this order."""
    missing, place = [], 0
    for line in filter(None, shown):
        found = next((i for i in range(place, len(printed)) if printed[i] == line), None)
        if found is None:
            missing.append(line)
        else:
            place = found + 1
    return missing


@pytest.mark.parametrize("stage", ["legalise", "fuse", "layout", "memory"])
def test_page_shows_what_a_stage_prints(small: Model, stage: str) -> None:
    printed = stages.dump(small, ISA, stage, PrepareConfig())
    assert SHOWN[stage].strip()
    assert in_order(SHOWN[stage].splitlines(), printed.splitlines()) == []
    if stage in {"legalise", "fuse"}:
        assert SHOWN[stage] == printed


def test_page_reads_the_assembly_line_by_line(small: Model) -> None:
    pytest.importorskip("llvmlite", reason="llvmlite is not installed")
    # A line is an instruction, and after two or more spaces what it does.
    pattern = r"(?m)^(\w+) {2,}(\S+(?: \S+)*)"
    shown = [plain(" ".join(found)) for found in re.findall(pattern, SHOWN["asm"])]
    assert len(shown) > 20
    printed = stages.dump(small, ISA, "asm", PrepareConfig())
    lines = [plain(" ".join(line.split("#")[0].split())) for line in printed.splitlines()]
    assert in_order(shown, lines) == []


def test_stages_of_the_page_are_those_of_the_device() -> None:
    table = section("How code is made").partition("### ")[0]
    assert tuple(re.findall(r"(?m)^\| `(\w+)` \|", table)) == LlvmDevice.stages
    assert set(SHOWN) == set(LlvmDevice.stages) - {"llvm"}


def test_records_and_templates_are_in_the_tables() -> None:
    cells = {cell.strip("`") for cell in first_cells(section("Instruction sets and templates"))}
    templates = {dense.Dense.name, nest.Nest.name, depthwise.Floats.name, routine.NAME}
    templates.add(transpose.Transpose.name)
    assert cells == {*RECORDS, *templates}
    cache = section("The artefact and the cache")
    assert all(f"`{name}`" in cache for name in BASELINES)


def test_every_operation_without_kernels_has_a_reason() -> None:
    missing = set(OPERATIONS) - set(RULES)
    table = section("What is refused").partition("Forms of layers")[0]
    patterns = [name for cell in first_cells(table) for name in cell.split(", ")]
    names = [pattern.strip("`") for pattern in patterns]
    covered = {m for m in missing if any(fnmatch.fnmatchcase(m, n) for n in names)}
    assert missing - covered == set()
    idle = [n for n in names if not any(fnmatch.fnmatchcase(m, n) for m in missing)]
    assert idle == [], "rows of operations that have kernels"
