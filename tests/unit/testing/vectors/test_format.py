from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from penstock.testing.vectors import VectorError, load_directory, load_specification
from penstock.testing.vectors.derive import plain_run, runs_of
from tests.unit.testing.vectors.made import DTYPES, Blob, addition, case_of, write, write_raw


def test_a_directory_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    blob = Blob()
    case = addition("sum", blob, [4, 6])
    write(tmp_path / "b" / "second.npz", [case], blob)
    write(tmp_path / "a" / "first.npz", [case], blob)
    (tmp_path / "index.json").write_text("[]")
    found = load_directory(tmp_path)
    assert [s.name for s in found] == ["a/first", "b/second"]
    (read,) = found[0].cases
    assert (read.name, read.operations) == ("sum", frozenset({"ADD"}))


def test_values_are_read_in_their_shapes(tmp_path: Path) -> None:
    blob = Blob()
    run = plain_run(case_of(tmp_path, addition("sum", blob, [4, 6]), blob))
    assert [a.tolist() for a in run.fed] == [[1.0, 2.0]]
    assert run.outputs[0].values is not None
    assert run.outputs[0].values.tolist() == [4.0, 6.0]
    constant = run.model.main.operands[1]
    assert constant.value == np.array([3, 4], "<f4").tobytes()


def test_no_directory_and_no_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(VectorError, match="nowhere: no such directory"):
        load_directory(tmp_path / "nowhere")
    (tmp_path / "readme.txt").write_text("nothing here")
    with pytest.raises(VectorError, match=r"holds no operation vectors \(\.npz files\)"):
        load_directory(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"not a zip file", b"PK\x05\x06" + bytes(18), b"PK\x03\x04" + bytes(60)],
    ids=["empty", "text", "empty archive", "cut"],
)
def test_files_that_are_no_archive_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.npz"
    path.write_bytes(content)
    with pytest.raises(VectorError, match=r"broken\.npz: not operation vectors"):
        load_specification(path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_files_are_refused_by_name(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes of an archive are changed, or those of a header that is packed anew."""
    blob = Blob()
    content = write(tmp_path / "good.npz", [addition("sum", blob, [4, 6])], blob).read_bytes()
    path = tmp_path / "damaged.npz"
    if data.draw(st.booleans()):
        damaged = bytearray(content)
        for _ in range(data.draw(st.integers(1, 3))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    else:
        with np.load(tmp_path / "good.npz") as archive:
            header = bytearray(archive["header"].tobytes())
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(header) - 1))
            header[at] = data.draw(st.sampled_from(b'0123456789-"[]{},.exn\x00'))
        write_raw(path, bytes(header), blob.content)
    with suppress(VectorError):
        for case in load_specification(path).cases:
            assert list(runs_of(case))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"format": 1}',
        b'{"format": "x", "spec": "s", "dtypes": {}, "cases": [{"name": "c"}]}',
    ],
)
def test_headers_that_are_none_are_refused(tmp_path: Path, header: bytes) -> None:
    with pytest.raises(VectorError, match="not operation vectors"):
        load_specification(write_raw(tmp_path / "h.npz", header, b""))


def test_other_formats_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "new.npz", [], Blob(), format="nnapi-vectors/9")
    with pytest.raises(
        VectorError, match="format 'nnapi-vectors/9', this version reads nnapi-vectors/1"
    ):
        load_specification(path)


def test_archives_with_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "o.npz", header=np.array([{}], object), blob=np.zeros(1, np.uint8))
    with pytest.raises(VectorError, match="not operation vectors"):
        load_specification(tmp_path / "o.npz")


def test_large_archives_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.testing.vectors.format.MAX_BYTES", 100)
    with pytest.raises(VectorError, match="the limit is 100"):
        load_specification(write_raw(tmp_path / "l.npz", b"{}", bytes(1000)))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"data": [0, 10**6]}, "its values lie outside the file"),
        ({"data": [-4, 2]}, "its values lie outside the file"),
        ({"type": "TENSOR_UNKNOWN"}, "'TENSOR_UNKNOWN' is none of NNAPI"),
        ({"type": "TENSOR_FLOAT16"}, "no element type for TENSOR_FLOAT16"),
        ({"lifetime": "constant", "data": None}, "has no value"),
    ],
)
def test_operands_that_contradict_the_file_are_named(
    tmp_path: Path, change: dict[str, object], match: str
) -> None:
    blob = Blob()
    entry = addition("sum", blob, [4, 6])
    entry["main"]["operands"][1].update(change)
    with pytest.raises(VectorError, match=match):
        plain_run(case_of(tmp_path, entry, blob))


def test_element_types_of_objects_are_refused(tmp_path: Path) -> None:
    blob = Blob()
    entry = addition("sum", blob, [4, 6])
    path = write(tmp_path / "o.npz", [entry], blob, {**DTYPES, "TENSOR_FLOAT32": "|O"})
    with pytest.raises(VectorError, match="are no numbers"):
        plain_run(next(load_specification(path).cases))


def test_inputs_without_values_are_named(tmp_path: Path) -> None:
    blob = Blob()
    entry = addition("sum", blob, [4, 6])
    del entry["main"]["operands"][0]["data"]
    with pytest.raises(VectorError, match="sum: input 0 has no values"):
        plain_run(case_of(tmp_path, entry, blob))
    entry["main"]["inputs"] = [9]
    with pytest.raises(VectorError, match="an input or output is no operand"):
        plain_run(case_of(tmp_path, entry, blob))


def test_outputs_without_values_are_named(tmp_path: Path) -> None:
    blob = Blob()
    entry = addition("sum", blob, [4, 6])
    del entry["main"]["operands"][3]["data"]
    with pytest.raises(VectorError, match="sum: output 'output' has no values"):
        plain_run(case_of(tmp_path, entry, blob))


@pytest.mark.parametrize(
    "derive",
    [
        {"tensors_as_inputs": [0]},
        {"tensors_as_inputs": [2]},
        {"tensors_as_inputs": [99]},
        {"inputs_as_internal": [3]},
        {"inputs_as_internal": [-1]},
    ],
)
def test_derived_runs_name_operands_that_can_be_inputs(
    tmp_path: Path, derive: dict[str, list[int]]
) -> None:
    blob = Blob()
    case = case_of(tmp_path, addition("sum", blob, [4, 6], derive=derive), blob)
    with pytest.raises(VectorError, match="sum: derive lists operands that cannot be inputs"):
        list(runs_of(case))


def test_values_that_do_not_fill_their_dimensions_stay_flat(tmp_path: Path) -> None:
    blob = Blob()
    for dims in ([-1, -2], [0, 2], [2**62, 4]):
        entry = addition("sum", blob, [4, 6])
        entry["main"]["operands"][3]["dims"] = dims
        values = plain_run(case_of(tmp_path, entry, blob)).outputs[0].values
        assert values is not None
        assert values.shape == (2,)


def test_one_file_is_read_by_itself(tmp_path: Path) -> None:
    blob = Blob()
    path = write(tmp_path / "one.npz", [addition("sum", blob, [4, 6])], blob)
    assert [s.path for s in load_directory(path)] == [path]


def test_loops_without_end_are_known_by_name(tmp_path: Path) -> None:
    blob = Blob()
    ending = addition("sum", blob, [4, 6])
    assert not case_of(tmp_path, ending, blob).is_infinite_loop
    assert case_of(tmp_path, {**ending, "expect_failure": "infinite_loop"}, blob).is_infinite_loop
    named = {**ending, "name": "while_infinite_loop", "expect_failure": True}
    assert case_of(tmp_path, named, blob).is_infinite_loop
    assert not case_of(tmp_path, {**named, "expect_failure": False}, blob).is_infinite_loop
    assert json.dumps(ending)
