"""Takes the README's pictures of a terminal again: runs the real commands in one and writes
docs/images.

python tools/readme_pictures.py
"""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from penstock.cli.terminal import svg

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs" / "images"
WIDTH: Final = 88

DIGITS: Final = "examples/digits"
PICTURES: Final = {
    "run": [
        f"run {DIGITS}/digits_float32.tflite {DIGITS}/seven.png --top 3",
        f"run {DIGITS}/digits_int8.tflite {DIGITS}/seven.png --top 3",
    ],
    "bench": [f"bench {DIGITS}/digits_int8.tflite random"],
}


def in_terminal(arguments: list[str]) -> str:
    """What `penstock` prints on a terminal of `WIDTH` columns."""
    ours, its = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    environment |= {"COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        stdout=its,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env=environment,
        cwd=ROOT,
    )
    os.close(its)
    printed = bytearray()
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how Linux says that the terminal's other end has closed
            break
        if not part:
            break
        printed += part
    os.close(ours)
    if process.wait():
        sys.exit(f"penstock {' '.join(arguments)} failed")
    return printed.decode().replace("\r\n", "\n")


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, commands in PICTURES.items():
        console = Console(
            record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False
        )
        for command in commands:
            console.print(Text(f"$ penstock {command}", style="bold green"))
            console.print(Text.from_ansi(in_terminal(command.split())))
        (IMAGES / f"{name}.svg").write_text(svg(console, "penstock") + "\n", "utf-8")
        print(f"docs/images/{name}.svg")


if __name__ == "__main__":
    main()
