"""What rules ask of an operation's types, whichever engine they translate it for."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.engines.site import Refused, Site, require
from penstock.ir import Operand


def one_scale(operand: Operand) -> tuple[float, int]:
    """Scale and zero point of an activation quantised as a whole."""
    quantization = operand.quantization
    if quantization is None or quantization.scale <= 0:
        raise Refused(f"{operand.dtype.value} values without a scale are not computed here")
    require(not quantization.per_channel, "activations quantised by channel are not computed here")
    return quantization.scale, quantization.zero_point


def activation(site: Site, known: Iterable[str]) -> str:
    """The fused activation, which must be one of *known*."""
    fused = site.operation.attributes.text("fused_activation_function")
    require(fused in known, f"no fused activation {fused}")
    return fused
