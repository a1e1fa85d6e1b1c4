"""`penstock compare`: the first operation whose result on a device differs from the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from penstock.cli import files, options
from penstock.cli.declarations import option
from penstock.cli.failures import FileError, Unfinished, UsageError
from penstock.cli.options import with_remedy
from penstock.cli.output import Output
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import NotExportable, ShapeMismatch

if TYPE_CHECKING:
    from penstock.hal import AccuracyClass
    from penstock.ir import NDArray
    from penstock.runtime.comparison import Departure

DEFAULT_CLASS: Final = "faithful"


def compare(
    output: Output,
    model: options.ModelFile,
    inputs: options.Inputs = None,
    device: Annotated[
        list[str] | None,
        option(
            "--device -d NAME",
            "Compare this device; repeat for several (default: every usable one).",
        ),
    ] = None,
    against: Annotated[
        str, option("--against NAME", "The device that is right.")
    ] = FALLBACK_DEVICE,
    out: Annotated[
        str | None,
        option(
            "--out F",
            "Write the operation that departs as F (.tflite), its inputs and expected "
            "results beside it (.npz, which 'run' takes).",
        ),
    ] = None,
    normalize: options.Normalize = None,
    signature: options.SignatureName = None,
    accuracy: options.Accuracy = None,
    seed: options.Seed = 0,
    shape: options.Shapes = None,
) -> None:
    """Find the first operation of MODEL whose result on a device departs from the reference's.

    The model is cut at its operations. Each part gets the real values that INPUT leads to, and a
    part that departs is halved. Exit code 1: an operation departs, alone or compiled with its
    neighbours, or nothing could be compared. Exit code 0: no operation departs. Roundings that are
    each within their class may still add up in the outputs of the whole model; the verdict reports
    that (--json: outputs.departs). Unknown dimensions take the shape of INPUT; for random inputs
    they are 1 unless --shape sets them.
    """
    from penstock.cli import opening
    from penstock.execution.inputs import in_order
    from penstock.runtime.comparison import compare as compare_device

    target = files.target("--out", out, (".tflite",))
    opening.policy_of(accuracy)
    opening.check_devices([*(device or ()), against])
    names = _chosen(device, against)
    choices = options.Choices(signature=signature, accuracy=accuracy, seed=seed, shape=shape)
    opened = opening.open_fed(output, model, inputs, choices, normalize)
    fed = opened.fed
    notes = [*fed.notes, *fed.assumption()]
    arrays = in_order(fed.arrays, opened.interface)
    kind = cast("AccuracyClass", accuracy or DEFAULT_CLASS)
    found = []
    written: list[str] = []
    for name in names:
        with comparing(output, name) as progress:
            try:
                result = compare_device(
                    opened.loaded.model, arrays, name, against, accuracy=kind, progress=progress
                )
            except ShapeMismatch as error:
                raise FileError(opened.loaded.path, with_remedy(error, fed.assumed)) from error
        # Only the whole model may depart, by roundings that add up.
        colour = "red" if result.departs else "yellow" if result.outputs.departs else ""
        output.line(result.show(), colour)
        found.append(result)
        if target is not None and result.departure is not None and not written:
            written = write_case(target, result.departure)
            output.line(f"written: {', '.join(written)}")
    output.notes(notes)
    departing = [r for r in found if r.departure is not None]
    output.json(
        {
            "departs": bool(departing),
            "devices": [result.to_builtins() for result in found],
            "inputs": fed.sources,
            "notes": notes,
            "written": written,
        }
    )
    if found and not any(result.supported for result in found):
        raise Unfinished("there is nothing to compare: no device took an operation")
    if departing:
        raise Unfinished(f"a result departs on {', '.join(r.device for r in departing)}")


def _chosen(given: Sequence[str] | None, against: str) -> list[str]:
    """The devices to compare. Raises `UsageError` for none, and for comparing one with itself."""
    import penstock

    if given is not None and against in given:
        raise UsageError(f"--device {against} would be compared with itself (--against {against})")
    names = list(given or ())
    if not names:
        names = [
            d.name
            for d in penstock.devices()
            if d.usable and not d.only_when_named and d.name not in {against, FALLBACK_DEVICE}
        ]
    if not names:
        raise UsageError(f"there is no usable device to compare with {against}; name one: --device")
    return list(dict.fromkeys(names))


@contextmanager
def comparing(output: Output, device: str) -> Iterator[Callable[[str], None]]:
    """Shows on a terminal which part of the model is being tested."""
    with output.progress() as bar:
        task = bar.add_task(f"{device}: computing the reference", total=None)
        yield lambda part: bar.update(task, description=f"{device}: {part}")


def write_case(path: Path, departure: Departure) -> list[str]:
    """Writes the extracted operations, and their arrays; returns the file names.

    For operations that TFLite cannot express only the arrays are written.
    """
    import numpy as np

    from penstock.runtime.comparison import case_arrays

    arrays = path.with_suffix(".npz")
    written = [path, arrays]
    try:
        content = departure.case.tflite()
    except NotExportable:
        written = [arrays]
    else:
        files.write(path, lambda: path.write_bytes(content))
    named = case_arrays(departure.case, as_file=path in written)
    plain: dict[str, Any] = {name: _plain(array) for name, array in named.items()}
    files.write(arrays, lambda: np.savez(arrays, **plain))
    return list(map(str, written))


def _plain(array: NDArray) -> NDArray:
    """*array* without pickling: strings of fixed length; types that NumPy lacks as bytes."""
    import numpy as np

    if array.dtype.kind == "O":
        return np.array(array.tolist(), "S").reshape(array.shape)
    return array if array.dtype.isbuiltin == 1 else array.view(np.uint8)
