"""Spectra: RFFT2D, and the parts of complex numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from penstock.drivers.reference.ops.kernel import Kernel, Site, kernel, require
from penstock.errors import InvalidArgument
from penstock.ir import DType, NDArray


@kernel("RFFT2D")
def rfft2d(site: Site) -> Kernel:
    """The Fourier transform of the last two dimensions, cut or padded with zeros to the lengths
    given; the last keeps its non-negative frequencies. Computed in float64, returned as complex64.
    """
    require(site.input(0).dtype is DType.FLOAT32, f"RFFT2D of {site.input(0).dtype.value}")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        signal, lengths = inputs
        if signal is None or lengths is None:
            raise InvalidArgument("RFFT2D needs a signal and its lengths")
        rows, columns = (int(n) for n in lengths)
        spectrum = np.fft.rfft2(signal.astype(np.float64), (rows, columns))
        return [spectrum.astype(np.complex64)]

    return run


@kernel("COMPLEX_ABS", "REAL", "IMAG")
def complex_part(site: Site) -> Kernel:
    """Magnitude, real part or imaginary part."""
    given = site.input(0).dtype
    require(given in (DType.COMPLEX64, DType.COMPLEX128), f"parts of {given.value}")
    parts: dict[str, Callable[[NDArray], NDArray]] = {
        "COMPLEX_ABS": np.abs,
        "REAL": np.real,
        "IMAG": np.imag,
    }
    part = parts[site.operation.type]

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        return [np.array(part(value)) for value in inputs if value is not None]

    return run
