"""Trains the digit classifier and writes every file of `examples/digits`.

    python -m examples.digits.train [--out DIRECTORY] [--epochs N]

The data are scikit-learn's 8 x 8 handwritten digits. The result is bit-identical on every machine.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image
from sklearn.datasets import load_digits

import penstock
from examples.digits.models import LABEL_FILE, LABEL_TEXT, float_model, int8_model
from examples.digits.network import EPOCHS, Floats, forward, train
from penstock.export import tflite

HERE: Final = Path(__file__).parent
SEED: Final = 7
TEST_SHARE: Final = 5
"""One image in five is held out for testing."""

PICTURES: Final = {"zero": 1, "three": 17, "seven": 338}
"""Pictures to save: images of the test split, by number."""

PICTURE_SIDE: Final = 256


@dataclass(frozen=True, slots=True)
class Data:
    """Grey levels, uint8 [n, 8, 8], white on black, and the digit of each."""

    train_images: npt.NDArray[np.uint8]
    train_labels: npt.NDArray[np.int64]
    test_images: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.int64]


def load_data() -> Data:
    """scikit-learn's digits, 0..16 made 0..255, split by a seeded permutation."""
    found = load_digits()
    grey = np.round(np.asarray(found.images, np.float64) * 255 / 16).astype(np.uint8)
    labels = np.asarray(found.target, np.int64)
    order = np.random.default_rng(SEED).permutation(len(grey))
    test, rest = np.split(order, [len(order) // TEST_SHARE])
    return Data(grey[rest], labels[rest], grey[test], labels[test])


def unit(grey: npt.NDArray[np.uint8]) -> Floats:
    """[n, 8, 8, 1] in [0, 1]."""
    return grey[..., None] / 255.0


def accuracy(model: penstock.Model, data: Data) -> tuple[int, int]:
    """How many test images Penstock classifies correctly with *model*, and how many there are."""
    with penstock.compile(model) as compiled:
        quantised = compiled.inputs[0].quantization is not None
        right = 0
        for grey, label in zip(data.test_images, data.test_labels.tolist(), strict=True):
            image = grey[None, :, :, None]
            stored = (
                (image.astype(np.int16) - 128).astype(np.int8)
                if quantised
                else np.float32(image) / np.float32(255)
            )
            right += int(np.argmax(compiled(stored)[0])) == label
    return right, len(data.test_labels)


def draw(grey: npt.NDArray[np.uint8]) -> Image.Image:
    """An 8 x 8 image, enlarged for viewing."""
    return Image.fromarray(grey).resize((PICTURE_SIDE, PICTURE_SIDE), Image.Resampling.BICUBIC)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the digit classifier.")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    data = load_data()
    parameters = train(
        unit(data.train_images), data.train_labels, seed=SEED, epochs=arguments.epochs
    )
    models = {
        "digits_float32": float_model(parameters),
        "digits_int8": int8_model(parameters, forward(parameters, unit(data.train_images))),
    }
    results: dict[str, dict[str, float]] = {}
    for name, model in models.items():
        (out / f"{name}.tflite").write_bytes(tflite.write(model))
        right, total = accuracy(model, data)
        results[name] = {"right": right, "of": total, "accuracy": round(right / total, 4)}
        print(f"{name}: {right} of {total} test images right ({100 * right / total:.1f} %)")
    for name, number in PICTURES.items():
        draw(data.test_images[number]).save(out / f"{name}.png", optimize=True)
    (out / LABEL_FILE).write_text(LABEL_TEXT, "utf-8")
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
