"""Stored verdicts: authentic, or not there."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from penstock.cache import Cache
from penstock.cache.ingredients import record_key
from penstock.cache.naming import VERDICTS
from penstock.cache.verdicts import MOST_VERDICTS, Verdict, Verdicts
from penstock.errors import Unreadable

INGREDIENTS: Mapping[str, str] = {"structure": "aa", "devices": "gpu\t1"}
VERDICT = Verdict(
    key=record_key("placement verdict", INGREDIENTS),
    accuracy="faithful",
    devices=("gpu", "cpu"),
    report=msgspec.Raw(b'{"a":1}'),
)


def verdicts(directory: Path, key: bytes = b"k" * 32) -> Verdicts:
    return Verdicts(directory, key=lambda: key)


def file_of(directory: Path) -> Path:
    (found,) = (directory / VERDICTS).iterdir()
    return found


def test_saved_verdict_is_loaded(tmp_path: Path) -> None:
    verdicts(tmp_path / "c").save(VERDICT)
    found = verdicts(tmp_path / "c").load(VERDICT.key)
    assert found is not None
    assert (found.devices, bytes(found.report)) == (("gpu", "cpu"), b'{"a":1}')
    assert stat.S_IMODE(file_of(tmp_path / "c").stat().st_mode) == 0o600
    verdicts(tmp_path / "c").save(replace(VERDICT, devices=("cpu", "cpu")))
    again = verdicts(tmp_path / "c").load(VERDICT.key)
    assert again is not None
    assert again.devices == ("cpu", "cpu")


def test_keys_depend_on_every_ingredient() -> None:
    keys = {
        record_key("placement verdict", INGREDIENTS),
        record_key("placement verdict", {**INGREDIENTS, "devices": "gpu\t2"}),
        record_key("placement verdict", {**INGREDIENTS, "structure": "ab"}),
        record_key("placement verdict", {}),
    }
    assert len(keys) == 4


def test_anything_altered_is_not_there(tmp_path: Path) -> None:
    verdicts(tmp_path).save(VERDICT)
    file = file_of(tmp_path)
    content = file.read_bytes()
    for position in range(len(content) - 1):
        altered = bytearray(content)
        altered[position] ^= 1
        file.write_bytes(altered)
        assert verdicts(tmp_path).load(VERDICT.key) is None, position
    for length in range(0, len(content) - 1, 7):
        file.write_bytes(content[:length])
        assert verdicts(tmp_path).load(VERDICT.key) is None
    file.write_bytes(content)
    assert verdicts(tmp_path, b"x" * 32).load(VERDICT.key) is None
    assert verdicts(tmp_path).load(VERDICT.key) is not None


def test_a_verdict_under_another_key_is_not_there(tmp_path: Path) -> None:
    verdicts(tmp_path).save(VERDICT)
    other = record_key("placement verdict", {})
    file_of(tmp_path).rename(tmp_path / VERDICTS / f"{other}.json")
    assert verdicts(tmp_path).load(other) is None


def test_links_and_large_files_are_not_read(tmp_path: Path) -> None:
    verdicts(tmp_path / "a").save(VERDICT)
    (tmp_path / "b" / VERDICTS).mkdir(parents=True)
    (tmp_path / "b" / VERDICTS / f"{VERDICT.key}.json").symlink_to(file_of(tmp_path / "a"))
    assert verdicts(tmp_path / "b").load(VERDICT.key) is None
    with file_of(tmp_path / "a").open("ab") as file:
        file.truncate(1 << 30)
    assert verdicts(tmp_path / "a").load(VERDICT.key) is None


def test_verdict_beyond_the_size_limit_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts(tmp_path).save(VERDICT)
    size = file_of(tmp_path).stat().st_size
    monkeypatch.setattr("penstock.cache.records.MOST_BYTES", size)
    assert verdicts(tmp_path).load(VERDICT.key) is not None
    monkeypatch.setattr("penstock.cache.records.MOST_BYTES", size - 1)
    assert verdicts(tmp_path).load(VERDICT.key) is None
    with pytest.raises(Unreadable, match=f"a record of {size} bytes is too large"):
        verdicts(tmp_path).save(VERDICT)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / VERDICTS).write_text("in the way")
    with pytest.raises(Unreadable):
        verdicts(tmp_path).save(VERDICT)
    assert verdicts(tmp_path).load(VERDICT.key) is None


def test_the_oldest_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_VERDICTS >= 1000
    monkeypatch.setattr(Verdicts, "most", 3)
    keys = [record_key("placement verdict", {"n": str(n)}) for n in range(5)]
    for key in keys:
        verdicts(tmp_path).save(replace(VERDICT, key=key))
    left = [verdicts(tmp_path).load(key) is not None for key in keys]
    assert left == [False, False, True, True, True]


def test_nothing_is_parsed_before_its_seal_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(content: memoryview, **_: object) -> None:
        raise AssertionError(bytes(content))

    verdicts(tmp_path).save(VERDICT)
    monkeypatch.setattr("msgspec.json.decode", parsed)
    assert verdicts(tmp_path, b"K" * 32).load(VERDICT.key) is None
    with pytest.raises(AssertionError, match="gpu"):
        verdicts(tmp_path).load(VERDICT.key)


def test_bounded_number_of_verdict_files_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(Verdicts, "most", 3)
    monkeypatch.setattr("penstock.cache.records.MOST_REMOVED", 4)
    monkeypatch.setattr(Verdicts, "load", lambda _self, key: read.append(key))
    (tmp_path / VERDICTS).mkdir()
    for number in range(20):
        (tmp_path / VERDICTS / f"{number}.json").touch()
    assert verdicts(tmp_path).every() == []
    assert len(read) == 7
    assert len(verdicts(tmp_path).untrusted()) == 7


def test_clearing_the_cache_clears_them(tmp_path: Path) -> None:
    verdicts(tmp_path).save(VERDICT)
    Cache(tmp_path).clear()
    assert verdicts(tmp_path).load(VERDICT.key) is None
    assert Verdicts(tmp_path).clear() == 0
    assert Verdicts(tmp_path / "nowhere").clear() == 0
