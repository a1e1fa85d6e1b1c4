"""Writing models as TensorFlow Lite files, and the file format as data (schema v3)."""

from penstock.errors import InputError
from penstock.ir.model import Model

__all__ = ["write"]


def write(model: Model) -> bytes:
    """The bytes of a `.tflite` file that computes *model*, or a slice of a model.

    Equal models give equal bytes. Raises `InputError` for an argument that is no model, and
    `NotExportable`, with the operation, for an operation that TFLite cannot express. Constants that
    do not fit in the 2 GiB of a FlatBuffer are written behind it.
    """
    from penstock.export.tflite import writer

    if not isinstance(model, Model):
        raise InputError(f"a Model is written, not {type(model).__name__}: penstock.load makes one")
    return writer.write(model)
