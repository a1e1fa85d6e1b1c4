"""Elements of columns as arrays for one input, prepared as `penstock run` prepares its files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.cli.feed import FedPicture, Slot, Wishes, kind_of, picture_preparation
from penstock.cli.feed.files import File, input_file
from penstock.errors import InputError
from penstock.execution.interface import fits
from penstock.ir import NDArray
from penstock.ir.model import show_operand, show_shape
from penstock.ir.types import static_shape

if TYPE_CHECKING:
    from penstock.cli.feed.preparation import Preparation

IN_MEMORY = "the element"
"""What errors call content that has no file name."""


class Preparer:
    """Prepares elements for the input of *slot*. How pictures are prepared is found once."""

    def __init__(self, slot: Slot, wishes: Wishes) -> None:
        self._slot, self._wishes = slot, wishes
        self._picture: tuple[Any, Preparation] | None = None

    def array(self, element: object) -> NDArray:
        """The input's values, with a batch of 1 where the input has a batch.

        *element* is the name of a file, its content, pixels, or values. Raises `InputError`.
        """
        if isinstance(element, str):
            return self._of_file(input_file(element))
        if isinstance(element, bytes | bytearray | memoryview):
            content = bytes(element)
            if not content:
                raise InputError(f"{IN_MEMORY} is empty")
            return self._of_file(File(IN_MEMORY, content))
        return self._of_array(np.asarray(element))

    def _of_file(self, path: File) -> NDArray:
        kind = kind_of(path)
        if kind == "npy":
            from penstock.cli.feed.arrays import read_npy

            return read_npy(path, self._slot.operand)
        if kind == "npz":
            raise InputError(f"{path}: holds several arrays; a column feeds one input")
        if kind == "sound":
            from penstock.cli.feed.sound import read_sound

            sound = read_sound(path, self._slot, self._wishes.rate)
            if sound.question:
                raise InputError(sound.question)
            return sound.array
        from penstock.cli.feed import pictures

        picture, _ = pictures.open_picture(path)
        return self._of_picture(path, picture)

    def _of_picture(self, path: object, picture: Any) -> NDArray:
        from penstock.cli.feed import pictures

        if self._picture is None:
            layout, preparation = picture_preparation(path, self._slot, self._wishes)
            if len(preparation.schemes) != 1:
                names = ", ".join(scheme.name for scheme in preparation.schemes)
                raise InputError(f"{preparation.because}: say normalize=, one of {names}")
            self._picture = layout, preparation
        layout, preparation = self._picture
        pixels = pictures.pixels(picture, layout)
        fed = FedPicture(0, self._slot.operand, pixels, layout, preparation)
        return fed.array(preparation.schemes[0])

    def _of_array(self, array: NDArray) -> NDArray:
        operand = self._slot.operand
        shape = operand.shape
        if array.dtype == operand.dtype.numpy:
            for candidate in (array[None], array):
                if fits(candidate.shape, shape):
                    return candidate
            # A list of Arrow has one dimension: values in row-major order.
            known = static_shape((1, *shape[1:]) if shape and shape[0] is None else shape)
            if known is not None and array.ndim == 1 and array.size == np.prod(known, dtype=int):
                return array.reshape(known)
        if array.dtype == np.uint8 and array.ndim in {2, 3}:
            from PIL import Image

            if array.ndim == 2 or array.shape[2] in {1, 3, 4}:
                pixels = array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
                picture = Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB")
                return self._of_picture("the pixels", picture)
        raise InputError(
            f"an element is {array.dtype.name}{show_shape(array.shape)}; input {operand.name!r} "
            f"needs {show_operand(operand)}, of which a column has an element for each row"
        )
