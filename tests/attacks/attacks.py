"""Files made to crash, hang or exhaust a loader: one small builder an attack, named for it.

Each returns the file; `ATTACKS` pairs it with the errors that may refuse it, or with None where the
file is well-formed and must simply load cheaply.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.errors import (
    CyclicModel,
    DuplicateWriter,
    IndexOutOfRange,
    InvalidMetadata,
    InvalidOperand,
    InvalidOperation,
    InvalidSignature,
    InvalidSparsity,
    LimitExceeded,
    ModelError,
    NotAModel,
    OffsetOutOfBounds,
    ShapeOverflow,
    TruncatedModel,
)
from penstock.export.tflite.encoding import encode
from penstock.export.tflite.fields import TFLITE
from tests.unit.loaders.files import FileBuilder, Values, described, quantization, relu

HEADER = struct.Struct("<I4s")

Attack = tuple[Callable[[], bytes], tuple[type[ModelError], ...] | None]


def root_at(offset: int, size: int = 64) -> bytes:
    return HEADER.pack(offset & 0xFFFFFFFF, b"TFL3") + bytes(size - 8)


def root_offset_wraps_around() -> bytes:
    return root_at(-4)


def root_is_the_header() -> bytes:
    return root_at(0)


def vtable_before_the_file() -> bytes:
    return HEADER.pack(8, b"TFL3") + struct.pack("<i", 0x7FFFFFFF) + bytes(20)


def vtable_behind_the_file() -> bytes:
    return HEADER.pack(8, b"TFL3") + struct.pack("<i", -0x80000000) + bytes(20)


def vtable_longer_than_the_file() -> bytes:
    return HEADER.pack(12, b"TFL3") + struct.pack("<HHi", 0xFFFE, 4, 4) + bytes(20)


def vtable_of_odd_length() -> bytes:
    return HEADER.pack(12, b"TFL3") + struct.pack("<HHi", 5, 4, 4) + bytes(20)


def vtable_too_short_for_itself() -> bytes:
    return HEADER.pack(12, b"TFL3") + struct.pack("<HHi", 2, 4, 4) + bytes(20)


def one_field(slot: int, tail: bytes, value: int = 4) -> bytes:
    """A root table with one offset field in *slot*; *tail* follows the offset directly."""
    vtable = struct.pack("<HH", 4 + 2 * (slot + 1), 8) + bytes(2 * slot) + struct.pack("<H", 4)
    vtable += bytes(-len(vtable) % 4)
    root = 8 + len(vtable)
    return HEADER.pack(root, b"TFL3") + vtable + struct.pack("<iI", len(vtable), value) + tail


SUBGRAPHS, DESCRIPTION, METADATA_BUFFER = 2, 3, 5


def vector_length_overflows_32_bits() -> bytes:
    return one_field(METADATA_BUFFER, struct.pack("<I", 0x40000001) + bytes(64))


def vector_of_four_billion_tables() -> bytes:
    return one_field(SUBGRAPHS, struct.pack("<I", 0xFFFFFFFF) + bytes(64))


def string_without_an_end() -> bytes:
    return one_field(DESCRIPTION, struct.pack("<I", 60) + b"x" * 60)


def offset_to_itself() -> bytes:
    return one_field(SUBGRAPHS, bytes(64), value=0)


def offset_wraps_around() -> bytes:
    return one_field(SUBGRAPHS, bytes(64), value=0xFFFFFFF0)


def table_that_is_its_own_element() -> bytes:
    """Offsets only go forward, so that a cycle needs one that wraps: it must not."""
    return one_field(SUBGRAPHS, struct.pack("<II", 1, 0xFFFFFFF0) + bytes(16))


def followed(content: bytes | bytearray, at: int) -> int:
    """Where the offset at *at* points."""
    return at + int.from_bytes(content[at : at + 4], "little")


def field_of(content: bytes | bytearray, at: int, table: str, name: str) -> int:
    """Where the table at *at* holds its field *name*."""
    slot = TFLITE.table(table).by_name[name].slot
    vtable = at - int.from_bytes(content[at : at + 4], "little", signed=True)
    return at + int.from_bytes(content[vtable + 4 + 2 * slot : vtable + 6 + 2 * slot], "little")


def shared(table: Values, count: int, name: str) -> bytes:
    """A model whose vector *name* holds *count* references to one table."""
    content = bytearray(encode(TFLITE, {"version": 3, name: [table] * 2}))
    vector = followed(content, field_of(content, followed(content, 0), "Model", name))
    target = followed(content, vector + 4)
    shift = 4 * (count - 2)
    at = vector + 4 + 4 * np.arange(count, dtype=np.int64)
    offsets = (target + shift - at).astype("<u4").tobytes()
    head = content[:vector] + struct.pack("<I", count) + offsets
    # What stands before the vector and points behind it would be off, so that only root fields
    # remain.
    return bytes(head + content[vector + 12 :])


def ten_thousand_names_for_one_subgraph() -> bytes:
    tensors = [{"name": "x" * 50, "shape": [1] * 8} for _ in range(50)]
    return shared({"tensors": tensors, "name": "y" * 1000}, 10_000, "subgraphs")


def a_hundred_thousand_names_for_one_buffer() -> bytes:
    return shared({"data": bytes(1000)}, 100_000, "buffers")


def one_empty_table(name: str, count: int, code: str = "ADD", size: int = 992_256) -> bytes:
    """A file of *size* bytes or more whose one subgraph's vector *name* refers *count* times to an
    empty table.
    """
    file = FileBuilder()
    file.code(code, "x" if code == "CUSTOM" else "")
    file.graph[name] = [{}]
    content = bytearray(file.encode())
    subgraphs = followed(content, field_of(content, followed(content, 0), "Model", "subgraphs"))
    field = field_of(content, followed(content, subgraphs + 4), "SubGraph", name)
    content += bytes(-len(content) % 4)
    vector = len(content)
    content[field : field + 4] = struct.pack("<I", vector - field)
    offsets = 4 + 4 * count - 4 * np.arange(count, dtype=np.int64)
    content += struct.pack("<I", count) + offsets.astype("<u4").tobytes()
    content += struct.pack("<HHi", 4, 4, 4)
    return bytes(content) + bytes(max(0, size - len(content)))


def a_hundred_thousand_tensors_in_one_table() -> bytes:
    return one_empty_table("tensors", 100_000)


def a_hundred_thousand_operators_in_one_table() -> bytes:
    return one_empty_table("operators", 100_000)


def a_hundred_thousand_custom_operators_in_one_table() -> bytes:
    return one_empty_table("operators", 100_000, "CUSTOM")


def as_many_tensors_in_one_table_as_fit() -> bytes:
    return one_empty_table("tensors", 49_000)


def as_many_custom_operators_in_one_table_as_fit() -> bytes:
    return one_empty_table("operators", 20_000, "CUSTOM")


def operators_whose_many_attributes_are_all_absent() -> bytes:
    return one_empty_table("operators", 40_000, "STABLEHLO_CONVOLUTION", 400_000)


def inputs_that_are_all_changed_in_place() -> bytes:
    file = FileBuilder()
    x, y = file.tensor("", [1]), file.tensor("", [1])
    file.operator("CUSTOM:step", [x] * 50_000, [y], mutating_variable_inputs=[True] * 200_000)
    return file.finish([x], [y])


def a_name_of_two_hundred_thousand_bytes_that_are_not_text() -> bytes:
    file = relu()
    file.graph["name"] = "@" * 200_000
    return file.encode().replace(b"@" * 200_000, b"\xff" * 200_000)


def dimensions_that_overflow() -> bytes:
    return relu([2**31 - 1] * 4).encode()


def elements_that_overflow_only_as_bytes() -> bytes:
    return relu([2**31 - 1, 2**31 - 1, 2], type=10).encode()


def a_million_dimensions() -> bytes:
    return relu([1] * 1_000_000).encode()


def a_tebibyte_of_input() -> bytes:
    return relu([2**20, 2**20]).encode()


def a_gibibyte_of_input() -> bytes:
    return relu([2**14, 2**14]).encode()


def constant_larger_than_the_file() -> bytes:
    file = FileBuilder()
    w, y = file.tensor("w", [2**20, 2**10], value=bytes(16)), file.tensor("y", [1])
    file.operator("CUSTOM:use", [w], [y])
    return file.finish([], [y])


def external_data_that_wraps_around() -> bytes:
    file = relu()
    file.buffers.append({"offset": 2**64 - 1, "size": 2**64 - 1})
    return file.encode()


def external_data_behind_the_file() -> bytes:
    file = relu()
    file.buffers.append({"offset": 64, "size": 2**40})
    return file.encode()


def sparse(
    shape: list[int],
    levels: list[Values],
    order: list[int] | None = None,
    blocks: list[int] | None = None,
) -> bytes:
    file = FileBuilder()
    sparsity = {
        "traversal_order": order or list(range(len(levels))),
        "block_map": blocks or [],
        "dim_metadata": levels,
    }
    w, y = file.tensor("w", shape, value=bytes(64), sparsity=sparsity), file.tensor("y", [1])
    file.operator("CUSTOM:use", [w], [y])
    return file.finish([], [y])


def sparse_zeros_without_end() -> bytes:
    return sparse([2**30, 2**30], [{"dense_size": 2**30}, {"dense_size": 2**30}])


def sparse_levels_that_multiply() -> bytes:
    return sparse([16, 16, 16, 16], [{"dense_size": 16}] * 4)


def sparse_levels_that_lead_nowhere() -> bytes:
    """Thirty-two levels, all but the last of one element: an index of every value on each."""
    file = FileBuilder()
    levels = [{"dense_size": 1}] * 31 + [{"dense_size": 500_000}]
    sparsity = {"traversal_order": list(range(32)), "block_map": [], "dim_metadata": levels}
    shape = [1] * 31 + [500_000]
    w = file.tensor("w", shape, "INT8", bytes(500_000), sparsity=sparsity)
    y = file.tensor("y", [1])
    file.operator("CUSTOM:use", [w], [y])
    return file.finish([], [y])


def sparse_blocks_of_negative_size() -> bytes:
    return sparse([4, 4], [{"dense_size": 2}, {"dense_size": 2}, {"dense_size": -1}], blocks=[0])


def initial_state_of_a_gibibyte() -> bytes:
    file = FileBuilder()
    x, y = file.tensor("x", [1], "INT8"), file.tensor("y", [1], "INT8")
    state = file.tensor(
        "s", [2**15, 2**15], "INT8", is_variable=True, quantization=quantization([1.0], [5])
    )
    file.operator("CUSTOM:step", [x, state], [y])
    return file.finish([x], [y])


def zip_bomb() -> bytes:
    stream = io.BytesIO(relu().encode())
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for index in range(8):
            archive.writestr(str(index), bytes(16 << 20))
    return stream.getvalue()


def zip_that_lies_about_its_size() -> bytes:
    """Says 10 bytes, unpacks to 16 MiB."""
    data = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = data.compress(bytes(16 << 20)) + data.flush()
    local = (
        struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 33, 0, len(packed), 10, 1, 0)
        + b"a"
        + packed
    )
    central = struct.pack(
        "<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 8, 0, 33, 0, len(packed), 10, 1, 0, 0, 0, 0, 0, 0
    ) + b"a"  # fmt: skip
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(central), len(local), 0)
    return relu().encode() + local + central + end


def zip_whose_directory_lies_outside() -> bytes:
    return relu().encode() + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 9, 9, 2**31, 2**31, 0)


def zip_of_three_thousand_files() -> bytes:
    stream = io.BytesIO(relu().encode())
    with zipfile.ZipFile(stream, "a") as archive:
        for index in range(3000):
            archive.writestr(str(index), b"")
    return stream.getvalue()


def metadata_in_metadata_in_metadata() -> bytes:
    file = relu()
    units = [{"options_type": 4, "options": {"vocab_file": [{"name": "n" * 100}] * 50}}] * 20
    content = described(input_tensor_metadata=[{"process_units": units}] * 4)
    file.root["metadata"] = [{"name": "TFLITE_METADATA", "buffer": file.buffer(content)}]
    return file.encode()


def one_buffer_as_ten_thousand_metadata() -> bytes:
    file = relu()
    buffer = file.buffer(bytes(100_000))
    file.root["metadata"] = [{"name": str(i), "buffer": buffer} for i in range(10_000)]
    return file.encode()


def call(file: FileBuilder, then: int, otherwise: int) -> None:
    c, x, y = file.tensor("c", [1], "BOOL"), file.tensor("x", [1]), file.tensor("y", [1])
    file.operator(
        "IF", [c, c, x], [y], {"then_subgraph_index": then, "else_subgraph_index": otherwise}
    )
    file.end([c, x], [y])


def subgraph_that_enters_itself() -> bytes:
    file = FileBuilder()
    call(file, 0, 0)
    return file.encode()


def ring_of_a_hundred_subgraphs() -> bytes:
    file = FileBuilder()
    for index in range(100):
        if index:
            file.begin()
        call(file, (index + 1) % 100, (index + 1) % 100)
    return file.encode()


def five_hundred_subgraphs_deep() -> bytes:
    file = FileBuilder()
    for index in range(500):
        if index:
            file.begin()
        if index < 499:
            call(file, index + 1, index + 1)
    leaf(file)
    return file.encode()


def five_hundred_subgraphs_deep_from_behind() -> bytes:
    file = FileBuilder()
    leaf(file)
    for index in range(1, 500):
        file.begin()
        call(file, index - 1, index - 1)
    return file.encode()


def leaf(file: FileBuilder) -> None:
    c, x, y = file.tensor("c", [1], "BOOL"), file.tensor("x", [1]), file.tensor("y", [1])
    file.operator("RELU", [x], [y])
    file.end([c, x], [y])


def branches_that_double_forty_times() -> bytes:
    file = FileBuilder()
    for index in range(40):
        if index:
            file.begin()
        call(file, index + 1, index + 1)
    file.begin()
    leaf(file)
    return file.encode()


def loops_in_loops_in_loops() -> bytes:
    file = FileBuilder()
    for index in range(30):
        if index:
            file.begin()
        x, y = file.tensor("x", [1], "BOOL"), file.tensor("y", [1], "BOOL")
        file.operator(
            "WHILE", [x], [y], {"cond_subgraph_index": index + 1, "body_subgraph_index": index + 1}
        )
        file.end([x], [y])
    file.begin()
    x, y = file.tensor("x", [1], "BOOL"), file.tensor("y", [1], "BOOL")
    file.operator("LOGICAL_NOT", [x], [y])
    file.end([x], [y])
    return file.encode()


def variable(file: FileBuilder, name: str) -> tuple[int, int]:
    """Reads a variable: the tensors of its handle and of its value."""
    handle, value = file.tensor("h", [], "RESOURCE"), file.tensor("v", [1])
    file.operator("VAR_HANDLE", [], [handle], {"container": "", "shared_name": name})
    file.operator("READ_VARIABLE", [handle], [value])
    return handle, value


def three_hundred_branches_over_three_hundred_variables() -> bytes:
    file = FileBuilder()
    c = file.tensor("c", [1], "BOOL")
    for _ in range(300):
        y = file.tensor("y", [1])
        file.operator("IF", [c], [y], {"then_subgraph_index": 1, "else_subgraph_index": 1})
    file.end([c], [])
    file.begin()
    value = -1
    for index in range(300):
        handle, value = variable(file, str(index))
        file.operator("ASSIGN_VARIABLE", [handle, value], [])
    file.end([], [value])
    return file.encode()


def five_hundred_initialisers() -> bytes:
    file = FileBuilder()
    for index in range(500):
        file.operator("CALL_ONCE", [], [], {"init_subgraph_index": index + 1})
    for index in range(500):
        variable(file, str(index))
    file.end([], [])
    value = file.buffer(b"\0\0\x80?")
    for index in range(500):
        file.begin()
        handle, one = file.tensor("h", [], "RESOURCE"), file.tensor("one", [1], buffer=value)
        file.operator("VAR_HANDLE", [], [handle], {"container": "", "shared_name": str(index)})
        file.operator("ASSIGN_VARIABLE", [handle, one], [])
        file.end([], [])
    return file.encode()


def initialiser_that_initialises_itself() -> bytes:
    file = FileBuilder()
    file.operator("CALL_ONCE", [], [], {"init_subgraph_index": 1})
    file.end([], [])
    file.begin()
    file.operator("CALL_ONCE", [], [], {"init_subgraph_index": 1})
    file.end([], [])
    return file.encode()


def a_handle_that_stands_for_two_variables() -> bytes:
    file = FileBuilder()
    h = file.tensor("h", [], "RESOURCE")
    file.operator("VAR_HANDLE", [], [h], {"container": "", "shared_name": "a"})
    file.operator("VAR_HANDLE", [], [h], {"container": "", "shared_name": "b"})
    return file.finish([], [])


def many_ends(count: int, **signature: Any) -> FileBuilder:
    file = FileBuilder()
    inputs = [file.tensor("", [1]) for _ in range(count)]
    y = file.tensor("y", [1])
    file.operator("CUSTOM:many", inputs, [y])
    file.end(inputs, [y])
    maps = [{"name": str(i), "tensor_index": i} for i in inputs]
    file.root["signature_defs"] = [
        {"signature_key": "go", "inputs": maps, "outputs": [], **signature}
    ]
    return file


def ten_thousand_inputs_in_a_signature() -> bytes:
    return many_ends(10_000).encode()


def a_signature_with_one_name_twice() -> bytes:
    return many_ends(
        2, outputs=[{"name": "a", "tensor_index": 2}, {"name": "a", "tensor_index": 2}]
    ).encode()


def a_signature_of_no_subgraph() -> bytes:
    return many_ends(2, subgraph_index=2**32 - 1).encode()


def an_operation_that_reads_what_comes_later() -> bytes:
    file = FileBuilder()
    x, a, b = (file.tensor(n, [1]) for n in "xab")
    file.operator("ADD", [x, b], [a])
    file.operator("RELU", [a], [b])
    return file.finish([x], [b])


def an_operation_that_overwrites_an_input() -> bytes:
    file = FileBuilder()
    x = file.tensor("x", [1])
    file.operator("RELU", [x], [x])
    return file.finish([x], [x])


def a_string_tensor_of_two_billion_strings() -> bytes:
    file = FileBuilder()
    s, y = (
        file.tensor("s", [2**31 - 1], "STRING", struct.pack("<iii", 2**31 - 1, 12, 12)),
        file.tensor("y", [1]),
    )
    file.operator("CUSTOM:use", [s], [y])
    return file.finish([], [y])


def a_string_tensor_whose_offsets_go_back() -> bytes:
    file = FileBuilder()
    s = file.tensor("s", [2], "STRING", struct.pack("<iiii", 2, 20, 16, 20) + bytes(4))
    y = file.tensor("y", [1])
    file.operator("CUSTOM:use", [s], [y])
    return file.finish([], [y])


def names_that_are_not_text() -> bytes:
    content = bytearray(relu().encode())
    at = content.index(b"x\0")
    content[at] = 0xFF
    return bytes(content)


def some_other_format() -> bytes:
    return b"\x7fELF" * 100


ATTACKS: dict[str, Attack] = {
    attack.__name__: (attack, errors)
    for attack, errors in (
        (root_offset_wraps_around, (OffsetOutOfBounds,)),
        (root_is_the_header, (OffsetOutOfBounds,)),
        (vtable_before_the_file, (OffsetOutOfBounds,)),
        (vtable_behind_the_file, (OffsetOutOfBounds,)),
        (vtable_longer_than_the_file, (TruncatedModel,)),
        (vtable_of_odd_length, (TruncatedModel,)),
        (vtable_too_short_for_itself, (TruncatedModel,)),
        (vector_length_overflows_32_bits, (TruncatedModel,)),
        (vector_of_four_billion_tables, (TruncatedModel,)),
        (string_without_an_end, (TruncatedModel,)),
        (offset_to_itself, (OffsetOutOfBounds,)),
        (offset_wraps_around, (OffsetOutOfBounds,)),
        (table_that_is_its_own_element, (OffsetOutOfBounds,)),
        (ten_thousand_names_for_one_subgraph, (LimitExceeded,)),
        (a_hundred_thousand_names_for_one_buffer, (LimitExceeded,)),
        (a_hundred_thousand_tensors_in_one_table, (LimitExceeded,)),
        (a_hundred_thousand_operators_in_one_table, (LimitExceeded,)),
        (a_hundred_thousand_custom_operators_in_one_table, (LimitExceeded,)),
        (as_many_tensors_in_one_table_as_fit, None),
        (as_many_custom_operators_in_one_table_as_fit, None),
        (operators_whose_many_attributes_are_all_absent, (LimitExceeded,)),
        (inputs_that_are_all_changed_in_place, (LimitExceeded,)),
        (a_name_of_two_hundred_thousand_bytes_that_are_not_text, (LimitExceeded,)),
        (dimensions_that_overflow, (ShapeOverflow,)),
        (elements_that_overflow_only_as_bytes, (ShapeOverflow,)),
        (a_million_dimensions, (ShapeOverflow,)),
        (a_tebibyte_of_input, (ShapeOverflow,)),
        (a_gibibyte_of_input, None),
        (constant_larger_than_the_file, (InvalidOperand,)),
        (external_data_that_wraps_around, (OffsetOutOfBounds,)),
        (external_data_behind_the_file, (OffsetOutOfBounds,)),
        (sparse_zeros_without_end, (LimitExceeded, ShapeOverflow)),
        (sparse_levels_that_multiply, (InvalidSparsity,)),
        (sparse_levels_that_lead_nowhere, (LimitExceeded,)),
        (sparse_blocks_of_negative_size, (InvalidSparsity,)),
        (initial_state_of_a_gibibyte, (LimitExceeded,)),
        (zip_bomb, (LimitExceeded,)),
        (zip_that_lies_about_its_size, (InvalidMetadata,)),
        (zip_whose_directory_lies_outside, (InvalidMetadata,)),
        (zip_of_three_thousand_files, None),
        (metadata_in_metadata_in_metadata, None),
        (one_buffer_as_ten_thousand_metadata, (LimitExceeded,)),
        (subgraph_that_enters_itself, (CyclicModel,)),
        (ring_of_a_hundred_subgraphs, (CyclicModel,)),
        (five_hundred_subgraphs_deep, (LimitExceeded,)),
        (five_hundred_subgraphs_deep_from_behind, (LimitExceeded,)),
        (branches_that_double_forty_times, None),
        (loops_in_loops_in_loops, None),
        (three_hundred_branches_over_three_hundred_variables, (LimitExceeded,)),
        (five_hundred_initialisers, None),
        (initialiser_that_initialises_itself, (CyclicModel,)),
        (a_handle_that_stands_for_two_variables, (InvalidOperation,)),
        (ten_thousand_inputs_in_a_signature, None),
        (a_signature_with_one_name_twice, (InvalidSignature,)),
        (a_signature_of_no_subgraph, (IndexOutOfRange,)),
        (an_operation_that_reads_what_comes_later, (CyclicModel,)),
        (an_operation_that_overwrites_an_input, (DuplicateWriter,)),
        (a_string_tensor_of_two_billion_strings, (InvalidOperand,)),
        (a_string_tensor_whose_offsets_go_back, (InvalidOperand,)),
        (names_that_are_not_text, None),
        (some_other_format, (NotAModel,)),
    )
}
