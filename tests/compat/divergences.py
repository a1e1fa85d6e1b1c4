"""Where Penstock does not do what LiteRT does, on purpose: each with its reason and what Penstock
does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Divergence:
    """*ours* is what Penstock shows, in the form of `tests.compat.observe.plain`; an exception by
    its name alone, None for "not compared".
    """

    reason: str
    ours: Any


CRASH: Final = "LiteRT ends the process with a segmentation fault"
DETAILS: Final = "LiteRT cannot describe a bfloat16 tensor; its dtype is that of ml_dtypes"
UNREAD: Final = "LiteRT hands out memory that another tensor may have overwritten"
NO_STRINGS: Final = {"array": "object", "shape": [2, 3], "values": ["", "", "", "", "", ""]}

DIVERGENCES: Final[dict[str, Divergence]] = {
    "junk_with_the_identifier": Divergence(
        "LiteRT reads a version out of bytes that are no table", "ValueError"
    ),
    "strings_given_as[object-int]": Divergence(CRASH, ["ValueError", NO_STRINGS]),
    "strings_given_as[object-none]": Divergence(CRASH, ["ValueError", NO_STRINGS]),
    "list_of_strings": Divergence(CRASH, ["ValueError", NO_STRINGS]),
    "strings_never_set": Divergence(CRASH, NO_STRINGS),
    "view_of_a_string_tensor": Divergence(CRASH, NO_STRINGS),
    "input_and_output_details[pass_bfloat16]": Divergence(DETAILS, None),
    "details_after_allocation[pass_bfloat16]": Divergence(DETAILS, None),
    "every_tensors_details[pass_bfloat16]": Divergence(DETAILS, None),
    "where_it_holds[[False, False, False, False]]": Divergence(
        "LiteRT cannot hand out a result of no element whose size a run decided",
        [{"array": "int64", "shape": [0, 1], "values": []}],
    ),
    "intermediate_shape_when_not_preserved": Divergence(UNREAD, "ValueError"),
    "damaged_content[no_operators]": Divergence(
        "LiteRT answers an output that no operator writes with whatever lies in its memory", None
    ),
    "damaged_content[input_beyond]": Divergence(
        "LiteRT drops every input where one is no tensor of the file", None
    ),
    "constant_written": Divergence(
        "LiteRT overwrites the model's own bytes, or ends the process where the file is mapped",
        ["ValueError", {"array": "float16", "shape": [3], "values": ["0.5", "1.5", "-2.0"]}],
    ),
    "array_of_the_other_byte_order": Divergence(
        "LiteRT takes the bytes as they lie. Penstock takes the numbers.",
        [
            None,
            {
                "array": "float32",
                "shape": [2, 3],
                "values": ["0.0", "1.0", "2.0", "3.0", "4.0", "5.0"],
            },
        ],
    ),
    "custom_ops_class_with_a_function": Divergence(
        "the function would be handed LiteRT's own registry, which Penstock does not have",
        "NotAvailable",
    ),
}
