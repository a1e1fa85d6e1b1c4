"""docs/cache-format.md is enough: files, registry and key are read here with nothing of Penstock's."""

from __future__ import annotations

import hashlib
import hmac
import re
import sqlite3
import struct
from pathlib import Path

from penstock import knobs
from penstock.sealed import Seal
from tests.support_sealed import BINDING, TOKEN, Rig

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "cache-format.md"
NAME, VERSION = "lab", "2026.1+avx2"


def h(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def test_an_entry_is_verified_by_the_document_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path, driver=NAME, version=VERSION)
    with (
        knobs.override(state_dir=str(tmp_path / "home"), key_store="file"),
        rig.handles(create=True) as (model, data),
    ):
        seal = Seal(NAME, VERSION, files=(2, 1))
        report = seal.save(model, data, TOKEN, BINDING, model=rig.program, data=rig.weights)
    assert report.entry is not None
    folder = tmp_path / "home" / "sealed"
    key = (folder / "key").read_bytes()
    driver, version = h(NAME.encode()), h(VERSION.encode())
    name = f"lab-{driver.hex()[:16]}-{version.hex()[:32]}-file.sqlite"
    database = sqlite3.connect(folder / name)
    state = database.execute("SELECT * FROM registry").fetchall()
    rows = database.execute("SELECT * FROM entry ORDER BY token, entry").fetchall()
    database.close()
    ((format_, found_driver, found_version, *words, registry, count, buckets, mac),) = state
    assert (format_, found_driver, found_version) == (1, driver, version)
    assert (words, count) == ([NAME, VERSION], 1)
    listings = [b""] * 64
    for token, entry, *_, row_mac in rows:
        for part in (token, entry, row_mac):
            listings[token[0] // 4] += struct.pack("<Q", len(part)) + part
    assert buckets == b"".join(map(h, listings))
    whole = b"penstock registry\0" + driver + version + registry + struct.pack("<Q", count)
    assert mac == hmac.digest(key, whole + buckets, "sha256")

    ((token, entry, sequence, models, files, row_mac),) = rows
    assert (token, entry, sequence, models) == (TOKEN, report.entry, 1, 2)
    head = b"penstock registry row\0" + driver + version + registry + token + entry
    numbers = struct.pack("<QBB", sequence, models, 1)
    assert row_mac == hmac.digest(key, head + numbers + files, "sha256")

    payloads = [*rig.program, *rig.weights]
    for number, (path, payload) in enumerate(zip(rig.paths(), payloads, strict=True)):
        content = path.read_bytes()
        header = content[:256]
        assert content[256:] == payload
        digest, length = struct.unpack_from("<32sQ", files, 40 * number)
        assert digest == h(b"penstock file digest\0", header)
        assert length == len(payload)
        assert header[:8] == bytes.fromhex("89 50 4E 53 45 41 4C 0A")
        kind, index = (1, number) if number < models else (2, number - models)
        assert struct.unpack_from("<H4BHQQ", header, 8) == (1, kind, index, 2, 1, 0, 1, length)
        assert header[32:64] == entry + registry
        assert header[64:192] == TOKEN + BINDING + driver + version
        assert header[192:224] == h(b"\2", struct.pack("<Q", length), h(b"\0", payload))
        assert header[224:] == hmac.digest(key, b"penstock file seal\0" + header[:224], "sha256")


def test_the_document_s_tables_add_up() -> None:
    text = DOCUMENT.read_text("utf-8")
    fields = [(int(a), int(b)) for a, b in re.findall(r"^\| (\d+) \| (\d+) \|", text, re.MULTILINE)]
    assert len(fields) == 17
    end = 0
    for start, size in fields:
        assert start == end
        end = start + size
    assert end == 256


def test_the_document_names_every_refusal() -> None:
    from penstock import errors

    text = DOCUMENT.read_text("utf-8")
    of_the_runtime = {errors.NoEntry, errors.NotYetWritten, errors.IngredientChanged}
    every = [k for k in errors.CacheError.__subclasses__() if k.__module__ == errors.__name__]
    kinds = [k for k in every if k not in of_the_runtime]
    assert len(kinds) == 9
    for kind in kinds:
        assert f"`{kind.__name__}`" in text
