"""TensorFlow Lite files out of models, and the file format as data (schema v3)."""

from penstock.errors import InputError
from penstock.ir.model import Model

__all__ = ["write"]


def write(model: Model) -> bytes:
    """The bytes of a `.tflite` file that computes what *model*, or a slice of one, does.

    Equal models give equal bytes. Raises `InputError` for what is no model, `NotExportable`, naming
    the operation, for what TFLite has no form for. Constants that do not fit the 2 GiB of a
    FlatBuffer are written behind it.
    """
    from penstock.export.tflite import writer

    if not isinstance(model, Model):
        raise InputError(f"a Model is written, not {type(model).__name__}: penstock.load makes one")
    return writer.write(model)
