"""QUANTIZED_16BIT_LSTM and QUANTIZED_LSTM: long short-term memories with 8-bit activations and a
16-bit cell state.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import InvalidAttribute, InvalidQuantization
from penstock.nnapi.lowering.recurrent import (
    GATES,
    NORMS,
    PARAMETERS,
    check_parameters,
    check_states,
    parameters,
    tensors,
)
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site

CELL_SCALE: Final = 2.0**-11
ACTIVATION: Final = (1 / 128, 128)
"""Scale and zero point of the activations of QUANTIZED_16BIT_LSTM."""

WEIGHTS: Final = tuple(f"{source}_to_{gate}" for source in ("input", "recurrent") for gate in GATES)
BIASES: Final = tuple(f"{gate}_bias" for gate in GATES)


@lowers(
    "QUANTIZED_16BIT_LSTM",
    level=3,
    form=f"input:q8 {' '.join(f'{n}:q8' for n in WEIGHTS)} {' '.join(f'{n}:i32' for n in BIASES)}"
    " cell_state:q16y output_state:q8 -> new_cell_state:q16y output:q8",
)
def quantized_16bit_lstm(site: Site) -> None:
    check_states(site, "input", "output_state", "cell_state")
    for name in ("cell_state", "new_cell_state"):
        site.require_quantization(name, CELL_SCALE, 0)
    for name in ("input", "output_state", "output"):
        site.require_quantization(name, *ACTIVATION)
    for name in WEIGHTS:
        site.require_rank(name, 2)
    site.require_same_quantization(*WEIGHTS)
    for name in BIASES:
        site.require_rank(name, 1)
    if len({(site.operand(n).scale, site.operand(n).zero_point) for n in BIASES}) > 1:
        raise InvalidQuantization(f"the biases of {site.type} need one scale and zero point")
    names = ("input", *WEIGHTS, *BIASES, "cell_state", "output_state")
    site.finish("QUANTIZED_16BIT_LSTM", tensors(site, names))


def _kind(name: str) -> str:
    """The type of a weight or bias of QUANTIZED_LSTM."""
    if name.endswith("bias"):
        return "i32"
    return "q16y" if name.startswith("cell_to_") else "q8y"


OPTIONAL: Final = {
    "input_to_input",
    "recurrent_to_input",
    *(n for n in PARAMETERS if n.startswith("cell_to_")),
    "input_bias",
    "projection",
    "projection_bias",
}
_SCALES: Final = tuple(f"{gate}_intermediate_scale" for gate in GATES)


@lowers(
    "QUANTIZED_LSTM",
    level=4,
    form="input:q8s"
    f" {' '.join(f'{n}:{_kind(n)}' + '?' * (n in OPTIONAL) for n in PARAMETERS)}"
    f" output_state:q8s cell_state:q16y {' '.join(f'{n}:q16y?' for n in NORMS)}"
    f" cell_clip:f proj_clip:f {' '.join(f'{n}:f' for n in _SCALES)}"
    " hidden_state_zero_point:i hidden_state_scale:f"
    " -> new_output_state:q8s new_cell_state:q16y output:q8s",
)
def quantized_lstm(site: Site) -> None:
    site.require_rank("input", 2)
    check_parameters(site)
    check_states(site, "output_state", "cell_state")
    site.require_same_quantization("output_state", "new_output_state")
    site.require_same_quantization("cell_state", "new_cell_state")
    for name in ("cell_clip", "proj_clip"):
        if not site.real(name) >= 0:
            raise InvalidAttribute(f"{name} is {site.real(name)}, and must not be below 0")
    states = ("output_state", "cell_state", *NORMS)
    site.finish(
        "QUANTIZED_LSTM",
        [site.tensor("input"), *parameters(site), *tensors(site, states)],
        cell_clip=site.real("cell_clip"),
        proj_clip=site.real("proj_clip"),
        hidden_state_zero_point=site.integer("hidden_state_zero_point"),
        hidden_state_scale=site.real("hidden_state_scale"),
        **{name: site.real(name) for name in _SCALES},
    )
