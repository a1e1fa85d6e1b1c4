"""docs/cache-format.md is enough: files, registry and key are read here with nothing of
Penstock's.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from pathlib import Path

from penstock import knobs
from penstock.sealed import EntryFiles, Seal
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
        report = seal.save(
            EntryFiles(model, data, TOKEN, BINDING), model=rig.program, data=rig.weights
        )
    assert report.entry is not None
    folder = tmp_path / "home" / "seals"
    key = (folder / "key").read_bytes()
    origin = b"registered by the program"
    driver, version = h(h(NAME.encode()) + h(origin)), h(VERSION.encode())
    content = (folder / f"lab-{driver.hex()[:16]}-{version.hex()[:32]}-file.registry").read_bytes()
    magic, format_, spare, count, changes, registry = struct.unpack_from("<8sHHIQ16s", content)
    assert magic == bytes.fromhex("89 50 4E 52 45 47 49 0A")
    assert (format_, spare, count, changes) == (1, 0, 1, 1)
    assert content[40:104] == driver + version
    authenticated = b"penstock registry file\0" + content[:104] + content[136:]
    assert content[104:136] == hmac.digest(key, authenticated, "sha256")
    token, entry, sequence, models, datas = struct.unpack_from("<32s16sQBB", content, 136)
    assert (token, entry, sequence, models, datas) == (TOKEN, report.entry, 1, 2, 1)
    files = content[136 + 58 * count :]
    assert len(files) == 40 * (models + datas)

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
    tables: list[list[tuple[int, int]]] = [[]]
    for a, b in re.findall(r"^\| (\d+) \| (\d+) \|", text, re.MULTILINE):
        if a == "0":
            tables.append([])
        tables[-1].append((int(a), int(b)))
    _, header, head, record, file = tables
    assert [len(table) for table in (header, head, record, file)] == [17, 9, 5, 2]
    for table, size in ((header, 256), (head, 136), (record, 58), (file, 40)):
        end = 0
        for start, length in table:
            assert start == end
            end = start + length
        assert end == size


def test_the_document_names_every_refusal() -> None:
    from penstock import errors

    text = DOCUMENT.read_text("utf-8")
    of_the_runtime = {errors.NoEntry, errors.NotYetWritten, errors.IngredientChanged}
    of_the_runtime |= {errors.StoreUnavailable, errors.NotTrusted, errors.Expired}
    every = [k for k in errors.CacheError.__subclasses__() if k.__module__ == errors.__name__]
    kinds = [k for k in every if k not in of_the_runtime]
    assert len(kinds) == 9
    for kind in kinds:
        assert f"`{kind.__name__}`" in text
