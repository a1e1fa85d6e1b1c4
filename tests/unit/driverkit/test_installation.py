"""The version of an installed engine, read from the files beside it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.driverkit import installation
from tests.support_programs import run_python


def described(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.dist-info").mkdir()
    (folder / f"{name}.dist-info" / "METADATA").write_text(text, "utf-8")
    (folder / f"{name}.dist-info" / "RECORD").write_text(f"{name}.py,,\n", "utf-8")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Metadata-Version: 2.4\nName: engine\nVersion: 1.2.3\nSummary: x\n", "1.2.3"),
        ("Version:4.5\r\nName: engine\r\n", "4.5"),
        ("Name: engine\nVersion: \nSummary: 7\n", ""),
        ("Metadata-Version: 2.4\nName: engine", ""),
        ("", ""),
    ],
)
def test_the_version_is_that_of_the_metadata(tmp_path: Path, text: str, version: str) -> None:
    described(tmp_path, "engine-1.2.3", text)
    described(tmp_path, "other-9", "Version: 9\n")
    described(tmp_path, "engine_nightly-8", "Version: 8\n")
    assert installation.version_of("engine", tmp_path / "engine") == version
    assert installation.version_and_record("engine", tmp_path / "engine") == (
        version, "engine-1.2.3.py,,\n",
    )  # fmt: skip


def test_without_metadata_beside_it_the_distribution_is_asked(tmp_path: Path) -> None:
    elsewhere = tmp_path / "msgspec"
    assert installation.version_of("msgspec", elsewhere) == msgspec.__version__
    version, record = installation.version_and_record("msgspec", elsewhere)
    assert version == msgspec.__version__
    assert "msgspec/__init__.py" in record
    assert installation.version_of("no-such-engine", elsewhere) == ""


def test_version_of_a_package_is_found_without_paths_or_metadata() -> None:
    program = (
        "import sys; from penstock.driverkit import installation as kit; "
        "assert kit.version_of('msgspec', kit.package_folder('msgspec')); "
        "kit.processor_features(); "
        "print(sorted({'pathlib', 'importlib.metadata', 'zipfile'} & set(sys.modules)))"
    )
    assert run_python("-c", program, check=True).stdout == "[]\n"
