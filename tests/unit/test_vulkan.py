"""Drivers of Vulkan that the environment names, and their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock import vulkan


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in vulkan.VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def manifest(path: Path, library: object) -> Path:
    path.write_text(json.dumps({"ICD": {"library_path": library}}), "utf-8")
    return path


def test_without_variables_no_file_is_named() -> None:
    assert vulkan.files_of_named_drivers() == []
    assert not vulkan.replaces_system_drivers()


def test_libraries_are_those_of_the_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relative = manifest(tmp_path / "a.json", "lib/a.so")
    absolute = manifest(tmp_path / "b.json", "/opt/b.so")
    searched = manifest(tmp_path / "c.json", "libc.so")
    monkeypatch.setenv("VK_DRIVER_FILES", f"{relative}:{absolute}::{searched}")
    assert vulkan.files_of_named_drivers() == [
        *(str(relative), str(tmp_path / "lib/a.so")),
        *(str(absolute), "/opt/b.so"),
        str(searched),
    ]
    assert vulkan.replaces_system_drivers()


def test_folders_stand_for_their_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = manifest(tmp_path / "a.json", "a.so")
    (tmp_path / "readme.txt").touch()
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", str(tmp_path))
    assert vulkan.named_manifests() == [str(made)]
    assert not vulkan.replaces_system_drivers()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"ICD": 3}', b'{"ICD": {"library_path": 3}}', b"[" * 100_000, b"\xff"]
)
def test_a_manifest_without_a_library_is_named_alone(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    monkeypatch.setenv("VK_ICD_FILENAMES", f"{path}:{tmp_path / 'missing.json'}")
    assert vulkan.files_of_named_drivers() == [str(path), str(tmp_path / "missing.json")]
