"""Files that commands read and write: label lists, outputs, pictures with the answer, traces."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import BufferedReader
from typing import TYPE_CHECKING, Final

from penstock.cli.failures import FileError, OutputError, UsageError, opening, os_reason

if TYPE_CHECKING:
    from pathlib import Path

    from penstock import CompiledModel, Outputs
    from penstock.cli.answers import Answer, Results
    from penstock.cli.feed import Fed
    from penstock.cli.opening import Loaded
    from penstock.ir import Metadata, NDArray

PICTURES: Final = (".png", ".jpg", ".jpeg", ".bmp")
ARRAYS: Final = (".npz",)

MAX_BYTES: Final = 16 * 2**20
"""A list of labels with more bytes is rejected."""


def target(option: str, name: str | None, endings: tuple[str, ...] = ()) -> Path | None:
    """The file that *option* names; None for None. Checked before the work begins.

    Raises `UsageError` for an empty name and for one without any of the *endings* (in any case),
    `OutputError` if the file cannot be created or overwritten.
    """
    if name is None:
        return None
    if not name:
        raise UsageError(f"{option} needs the name of a file")
    from pathlib import Path

    path = Path(name)
    if endings and path.suffix.lower() not in endings:
        either = f"{', '.join(endings[:-1])} or {endings[-1]}" if len(endings) > 1 else endings[0]
        raise UsageError(f"{option} {name}: the name must end in {either}")
    if path.is_dir():
        raise OutputError(path, "it is a directory")
    if not path.parent.is_dir():
        raise OutputError(path, f"there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OutputError(path, "permission denied")
    return path


def write(path: Path, action: Callable[[], object]) -> None:
    """Runs *action*, which writes *path*. Raises `OutputError`."""
    try:
        action()
    except OSError as error:
        raise OutputError(path, os_reason(error)) from None


def write_text(path: Path, text: str) -> None:
    """Writes *text* to *path* in UTF-8. Raises `OutputError`."""
    write(path, lambda: path.write_text(text, "utf-8"))


def read_labels(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The labels, one per line; the line number, from 0, is the class. Raises `FileError`."""
    # The import loads NumPy, which a command without labels does not need.
    from penstock.memory.sealed_file import open_file

    with opening(path), BufferedReader(open_file(os.fspath(path))) as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise FileError(path, f"more than {MAX_BYTES:,} bytes; no list of labels is that long")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FileError(path, "not a text file in UTF-8") from None
    labels = tuple(line.strip() for line in text.rstrip().splitlines())
    if not labels:
        raise FileError(path, "has no labels")
    return labels


def model_labels(metadata: Metadata) -> tuple[str, ...] | None:
    """The labels of the first output that has any."""
    return next((o.labels for o in metadata.outputs if o.labels), None)


def write_out(path: Path, found: Answer, fed: Fed, results: Results) -> None:
    """Writes the outputs as `.npz`, or the picture with the answer drawn into it.

    Raises `OutputError` if there is nothing to draw, or *path* cannot be written.
    """
    if takes_arrays(path):
        import numpy as np

        names = [o.name for o in results.operands]
        keys = [n if n and names.count(n) == 1 else f"output_{i}" for i, n in enumerate(names)]
        named = {k: _plain(path, a) for k, a in zip(keys, results.arrays, strict=True)}

        def save() -> None:
            # NumPy appends ".npz" to a name that ends in ".NPZ".
            with path.open("wb") as stream:
                np.savez(stream, allow_pickle=False, **named)

        write(path, save)
        return
    drawn = found.draw(fed.picture) if fed.picture is not None else None
    if drawn is None:
        raise nothing_to_draw(path, found.task)
    write(path, lambda: drawn.save(path))


def _plain(path: Path, array: NDArray) -> NDArray:
    """*array* for storage without pickling: strings become bytes of one length."""
    import numpy as np

    if not array.dtype.hasobject:
        return array
    items = array.reshape(-1).tolist()
    if any(item.endswith(b"\0") for item in items):
        raise OutputError(path, "strings that end in a zero byte have no form in an .npz file")
    return np.array(items, "S").reshape(array.shape)


def write_trace(path: Path, compiled: CompiledModel, outputs: Outputs, loaded: Loaded) -> None:
    """Writes the Chrome trace of load, compile and run, on one clock."""
    from json import dumps

    from penstock.compilation.receipt import chrome_trace
    from penstock.compilation.step_receipt import Span

    load = Span("load", os.path.basename(loaded.path), None, loaded.start_ns, loaded.load_ns)
    receipts = [compiled.receipt, outputs.receipt]
    write_text(path, dumps(chrome_trace(receipts, compiled.plan, [load])))


def takes_arrays(path: Path) -> bool:
    """Whether the name requests arrays instead of a picture."""
    return path.suffix.lower() in ARRAYS


def nothing_to_draw(path: Path, task: str) -> OutputError:
    """The error for a *task* whose answer cannot be drawn."""
    return OutputError(
        path,
        f"only a detection, segmentation or pose can be drawn, and this is {task}; a name that "
        "ends in .npz takes the outputs of any model",
    )
