from __future__ import annotations

import importlib
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from penstock.runtime import entries
from penstock.runtime.entries import ENTRY_POINT_GROUP, Entry, installed_entries


def library(found: object) -> list[tuple[str, str]]:
    assert isinstance(found, metadata.EntryPoints)
    return [(e.name, e.value) for e in found]


def ours() -> list[tuple[str, str]]:
    found = installed_entries()
    assert all(isinstance(e, Entry) for e in found), "asked the library"
    return [(e.name, e.value) for e in found if isinstance(e, Entry)]


def install(site: Path, distribution: str, text: str, *, as_file: bool = False) -> None:
    folder = site / distribution
    if as_file:
        folder.write_text("Name: x\n")
        return
    folder.mkdir(parents=True)
    name = distribution.partition("-")[0]
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    if text:
        (folder / "entry_points.txt").write_text(text)


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two directories for packages, alone on the path; the library forgets what it cached."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    monkeypatch.setattr(sys, "path", [str(first), str(second)])
    importlib.invalidate_caches()
    return first, second


def test_installed_entry_points_are_found_as_by_the_library() -> None:
    assert ours() == library(metadata.entry_points(group=ENTRY_POINT_GROUP))
    assert "reference" in dict(ours())


TEXTS = {
    "one": "[penstock.drivers]\nnpu = vendor.npu:create\n",
    "among others": "[console_scripts]\na = b:c\n\n[penstock.drivers]\nx=m:f\ny = n : g \n[z]\nq = "
    "r\n",
    "comments": "# penstock.drivers\n[penstock.drivers]\n# off = a:b\n  on = c:d\n\n",
    "twice": "[penstock.drivers]\na = b:c\n[other]\nd = e\n[penstock.drivers]\nf = g\n",
    "brackets": "[[penstock.drivers]]\na = b\n",
    "extras": "[penstock.drivers]\na = b.c:d.e [gpu]\nf = g = h\n",
    "elsewhere": "[other]\npenstock.drivers = a:b\n",
    "before any": "a = b:c\n[penstock.drivers]\n",
    "none": "",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_files_are_read_as_the_library_reads_them(sites: tuple[Path, Path], text: str) -> None:
    install(sites[0], "vendor-1.0.dist-info", text)
    assert ours() == library(metadata.entry_points(group=ENTRY_POINT_GROUP))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("vendor-1.dist-info", "vendor-2.dist-info"),
        ("Vendor_Npu-1.dist-info", "vendor.npu-2.dist-info"),
        ("vendor-1.egg-info", "vendor-2.dist-info"),
        ("vendor.egg-info", "vendor-2.dist-info"),
        ("vendor-1.dist-info", "other-1.DIST-INFO"),
        ("vendor-1.other", "vendor-1.dist-info"),
    ],
)
def test_the_first_distribution_of_a_name_counts(
    sites: tuple[Path, Path], first: str, second: str
) -> None:
    install(sites[0], first, "[penstock.drivers]\na = first:create\n")
    install(sites[1], second, "[penstock.drivers]\na = second:create\n")
    assert sorted(ours()) == sorted(library(metadata.entry_points(group=ENTRY_POINT_GROUP)))


def test_a_distribution_without_entry_points_hides_a_later_one(sites: tuple[Path, Path]) -> None:
    install(sites[0], "vendor-1.egg-info", "", as_file=True)
    install(sites[1], "vendor-2.dist-info", "[penstock.drivers]\na = second:create\n")
    assert ours() == []
    assert library(metadata.entry_points(group=ENTRY_POINT_GROUP)) == []


def test_directories_that_are_not_there_are_passed_over(
    sites: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(sites[0], "vendor-1.dist-info", TEXTS["one"])
    monkeypatch.setattr(sys, "path", [str(sites[1] / "absent"), str(sites[0]), str(sites[0])])
    assert ours() == [("npu", "vendor.npu:create")]


def test_the_empty_path_is_the_current_directory(
    sites: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(sites[0], "vendor-1.dist-info", TEXTS["one"])
    monkeypatch.setattr(sys, "path", [""])
    monkeypatch.chdir(sites[0])
    assert ours() == [("npu", "vendor.npu:create")]


def test_the_library_is_asked_where_there_is_a_zip_file(
    sites: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = sites[0] / "packed.zip"
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("vendor-1.dist-info/entry_points.txt", TEXTS["one"])
        file.writestr("vendor-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: vendor\n")
    monkeypatch.setattr(sys, "path", [str(packed)])
    assert [e.name for e in installed_entries()] == ["npu"]


def test_the_library_is_asked_where_somebody_else_finds_distributions(
    sites: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere(metadata.DistributionFinder):
        @classmethod
        def find_spec(cls, *_: object) -> None:
            return None

        @classmethod
        def find_distributions(cls, *_: object) -> list[metadata.Distribution]:
            return [metadata.PathDistribution(sites[0] / "vendor-1.dist-info")]

    install(sites[0], "vendor-1.dist-info", TEXTS["one"])
    monkeypatch.setattr(sys, "path", [])
    assert ours() == []
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Elsewhere])
    assert [e.name for e in installed_entries()] == ["npu"]


def test_an_entry_loads_what_it_names() -> None:
    assert Entry("a", "penstock.runtime.entries").load() is entries
    assert Entry("a", "penstock.runtime.entries:Entry.load [gpu]").load() is Entry.load
    assert Entry("a", "penstock.runtime.entries : installed_entries").load() is installed_entries
    with pytest.raises(ModuleNotFoundError):
        Entry("a", "penstock.no_such_module:create").load()
    with pytest.raises(AttributeError):
        Entry("a", "penstock.runtime.entries:nothing").load()
    for wrong in ("", "a-b:c", "a:b:c"):
        with pytest.raises(ValueError, match="module:attribute"):
            Entry("a", wrong).load()
