"""Draw the diagrams of the documentation: docs/images/*.svg from the tables below.

python tools/diagrams.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"

FILLS: Final = {
    "stage": "#dbeafe",
    "value": "#ffffff",
    "driver": "#dcfce7",
    "bad": "#fee2e2",
    "store": "#fef3c7",
    "frame": "#f8fafc",
}
FONT: Final = "font-family='system-ui, Helvetica, Arial, sans-serif'"
LINE: Final = 17


class Box(NamedTuple):
    """A rectangle with a title and lines below it; a `frame` has its title at the top left."""

    x: int
    y: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...] = ()
    kind: str = "value"

    def svg(self) -> str:
        dash = " stroke-dasharray='6 4'" if self.kind == "frame" else ""
        frame = f"x='{self.x}' y='{self.y}' width='{self.width}' height='{self.height}'"
        parts = [f"<rect {frame} rx='8' fill='{FILLS[self.kind]}' stroke='#334155'{dash}/>"]
        if self.kind == "frame":
            parts.append(text(self.x + 12, self.y + 20, self.title, "start", bold=True))
            return "".join(parts)
        middle = self.x + self.width // 2
        first = self.y + self.height // 2 + 5 - LINE * len(self.lines) // 2
        parts.append(text(middle, first, self.title, bold=True))
        for place, line in enumerate(self.lines, 1):
            parts.append(text(middle, first + LINE * place, line))
        return "".join(parts)


class Arrow(NamedTuple):
    """A line with a head, with words beside its middle, or at *at*."""

    points: tuple[tuple[int, int], ...]
    words: str = ""
    at: tuple[int, int] | None = None
    both: bool = False

    def svg(self) -> str:
        path = " ".join(f"{x},{y}" for x, y in self.points)
        start = " marker-start='url(#head)'" if self.both else ""
        drawn = (
            f"<polyline points='{path}' fill='none' stroke='#334155' stroke-width='1.5' "
            f"marker-end='url(#head)'{start}/>"
        )
        if not self.words:
            return drawn
        (ax, ay), (bx, by) = self.points[0], self.points[-1]
        x, y = self.at or ((ax + bx) // 2, (ay + by) // 2 - 7)
        return drawn + text(x, y, self.words)


class Words(NamedTuple):
    """Words without a box."""

    x: int
    y: int
    words: str

    def svg(self) -> str:
        return text(self.x, self.y, self.words, "start")


def text(x: int, y: int, words: str, anchor: str = "middle", *, bold: bool = False) -> str:
    weight = " font-weight='600'" if bold else ""
    return (
        f"<text x='{x}' y='{y}' text-anchor='{anchor}' font-size='13' fill='#0f172a' "
        f"{FONT}{weight}>{escape(words)}</text>"
    )


class Diagram(NamedTuple):
    """A picture: its size, what it shows in a sentence, and its parts from back to front."""

    width: int
    height: int
    title: str
    parts: tuple[Box | Arrow | Words, ...]

    def svg(self) -> str:
        head = (
            "<defs><marker id='head' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='8' "
            "markerHeight='8' orient='auto-start-reverse'><path d='M0,0 L10,5 L0,10 z' "
            "fill='#334155'/></marker></defs>"
        )
        size = f"width='{self.width}' height='{self.height}'"
        view = f"viewBox='0 0 {self.width} {self.height}'"
        lines = [
            f"<svg xmlns='http://www.w3.org/2000/svg' {view} {size} role='img'>",
            f"<title>{escape(self.title)}</title>",
            head,
            f"<rect width='{self.width}' height='{self.height}' rx='10' fill='#ffffff'/>",
            *(part.svg() for part in self.parts),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def right(x: int, y: int, length: int, words: str = "") -> Arrow:
    return Arrow(((x, y), (x + length, y)), words)


def down(x: int, y: int, length: int, words: str = "", at: tuple[int, int] | None = None) -> Arrow:
    return Arrow(((x, y), (x, y + length)), words, at)


PIPELINE: Final = Diagram(
    860,
    236,
    "The four stages: load, partition, compile, execute; each hands a value to the next.",
    (
        Box(16, 40, 150, 62, "load", ("file to model",), "stage"),
        right(166, 71, 74, "Model"),
        Box(240, 40, 150, 62, "partition", ("who runs what",), "stage"),
        right(390, 71, 74, "Plan"),
        Box(464, 40, 150, 62, "compile", ("each step, once",), "stage"),
        right(614, 71, 74, "Compiled"),
        Box(688, 40, 156, 62, "execute", ("steps, then a receipt",), "stage"),
        Words(18, 26, ".tflite, .onnx"),
        Words(690, 26, "inputs in, outputs out"),
        Box(
            240,
            166,
            604,
            52,
            "drivers",
            ("openvino, onnxruntime, xnnpack, yours; reference last",),
            "driver",
        ),
        Arrow(((315, 102), (315, 166)), "supported?", (356, 138), both=True),
        Arrow(((510, 102), (510, 166)), "prepare", (540, 138), both=True),
        Arrow(((766, 102), (766, 166)), "execute", (796, 138), both=True),
        Box(580, 118, 90, 34, "cache", (), "store"),
        Arrow(((596, 102), (596, 118)), both=True),
    ),
)

FALLBACK: Final = Diagram(
    860,
    350,
    "A step that fails goes to the next device of its list, then to reference; then the whole "
    "model runs on reference.",
    (
        Box(16, 40, 170, 60, "step on its device", ("compile or run",), "driver"),
        right(186, 70, 90, "fails"),
        Box(276, 40, 190, 60, "next fallback device", ("if it supports the step",), "driver"),
        Arrow(((420, 40), (420, 22), (320, 22), (320, 40)), "fails: the next one", (370, 16)),
        right(466, 70, 100, "all failed"),
        Box(566, 40, 210, 60, "reference", ("in this process",), "driver"),
        down(671, 100, 50, "fails", (696, 130)),
        Box(566, 150, 210, 60, "the whole model", ("on reference, from its inputs",), "driver"),
        down(671, 210, 70, "fails", (696, 250)),
        Box(
            540,
            280,
            262,
            54,
            "error of the step's own device",
            ("other errors are its notes",),
            "bad",
        ),
        Box(
            16, 280, 380, 54, "outputs and receipt", ("the receipt names every device that failed",)
        ),
        Arrow(((60, 100), (60, 280)), "succeeds", (94, 200)),
        Arrow(((340, 100), (340, 280)), "succeeds", (374, 200)),
        Arrow(((566, 90), (500, 90), (500, 296), (396, 296)), "succeeds", (532, 150)),
        Arrow(((566, 180), (500, 180), (500, 296), (396, 296))),
        Words(110, 130, "A missed deadline or a"),
        Words(110, 147, "cancelled run never falls back."),
    ),
)

ISOLATION: Final = Diagram(
    860,
    330,
    "Programs, the broker and the driver's host process, with the ways between them.",
    (
        Box(16, 20, 220, 120, "program A", (), "frame"),
        Box(32, 54, 188, 70, "runtime", ("watches heartbeat", "and deadlines"), "stage"),
        Box(16, 180, 220, 120, "program B", (), "frame"),
        Box(32, 214, 188, 70, "runtime", ("its own objects,", "tokens, memory"), "stage"),
        Box(556, 20, 292, 280, "host: one for all programs of a user", (), "frame"),
        Box(
            580,
            54,
            244,
            74,
            "broker",
            ("accepts clients, holds the key,", "ends with the last client"),
            "store",
        ),
        Box(
            580,
            188,
            244,
            96,
            "driver process",
            ("sandbox: no files of the user,", "no network, no key;", "serves every client"),
            "driver",
        ),
        down(650, 128, 60, "starts, kills", (612, 162)),
        Arrow(((760, 128), (760, 188)), "seal this", (794, 162), both=True),
        Arrow(((220, 74), (580, 74)), "connect: a socket in hosts/", (400, 66)),
        Arrow(
            ((220, 110), (400, 110), (400, 216), (580, 216)),
            "messages: a socket",
            (474, 208),
            both=True,
        ),
        Arrow(((220, 240), (580, 240)), "runs: a ring in shared memory", (400, 232), both=True),
        Arrow(((220, 266), (580, 266)), "tensors: pools, zero-copy", (400, 282), both=True),
    ),
)

COPIES: Final = Diagram(
    860,
    330,
    "How an argument reaches a device: lent, through a pool, or copied.",
    (
        Box(16, 20, 230, 60, "array of the caller", ("or a value between steps",)),
        Box(16, 120, 230, 54, "MemoryPool", ("anonymous or sealed; views of it",), "store"),
        Box(16, 190, 230, 44, "pool in a file", (), "store"),
        Box(16, 260, 230, 54, "DeviceBuffer", ("or state that stays there",), "store"),
        Box(600, 20, 244, 60, "driver in this process", ("shares the host's memory",), "driver"),
        Box(
            600,
            120,
            244,
            90,
            "isolated driver",
            ("maps only memory that", "nobody can make shorter"),
            "driver",
        ),
        Box(600, 250, 244, 64, "device with its own memory", (), "driver"),
        right(246, 40, 354, "lent: 0 copies"),
        Arrow(((246, 64), (400, 64), (400, 132), (600, 132)), "1 copy each way", (500, 126)),
        Arrow(((246, 154), (600, 154)), "its descriptor once: 0 copies", (500, 149)),
        Arrow(((246, 212), (330, 212), (330, 194), (600, 194)), "1 copy each way", (470, 188)),
        Arrow(((400, 132), (400, 264), (600, 264)), "1 copy at each boundary", (500, 258)),
        right(246, 294, 354, "its token: 0 copies"),
    ),
)

ACCURACY: Final = Diagram(
    860,
    250,
    "The accuracy classes, from exact to relaxed: what each allows.",
    (
        Box(
            16,
            20,
            828,
            214,
            "relaxed: an engine's own arithmetic; the same best class, the same boxes",
            (),
            "frame",
        ),
        Box(
            34,
            56,
            792,
            164,
            "stepwise: each integer operation within one quantisation step",
            (),
            "frame",
        ),
        Box(
            52,
            92,
            756,
            114,
            "faithful (default): and the network no farther off than LiteRT's own kernels",
            (),
            "frame",
        ),
        Box(
            70,
            128,
            720,
            64,
            "exact",
            ("integers bit for bit TFLite's reference kernels, floats within float32 rounding",),
            "driver",
        ),
    ),
)

DIAGRAMS: Final = {
    "pipeline": PIPELINE,
    "fallback": FALLBACK,
    "isolation": ISOLATION,
    "copies": COPIES,
    "accuracy": ACCURACY,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail unless all are up to date")
    check = parser.parse_args(arguments).check
    stale = []
    for name, diagram in DIAGRAMS.items():
        target = IMAGES / f"{name}.svg"
        drawn = diagram.svg()
        if check and (not target.exists() or target.read_text("utf-8") != drawn):
            stale.append(target.name)
        elif not check:
            target.write_text(drawn, "utf-8")
    if stale:
        print(f"out of date: {', '.join(stale)}; run tools/diagrams.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
