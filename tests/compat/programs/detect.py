"""Finds things in pictures: python detect.py MODEL LABELS THRESHOLD DIGITS PICTURE..."""
# mypy: ignore-errors
# ruff: noqa: T201

import sys
from pathlib import Path

import ai_edge_litert.interpreter as tflite
import numpy as np
from PIL import Image


class Detector:
    def __init__(self, model_path, labels_path):
        self.interpreter = tflite.Interpreter(str(model_path))
        self.interpreter.allocate_tensors()
        self.input = self.interpreter.get_input_details()[0]
        self.outputs = self.interpreter.get_output_details()
        lines = Path(labels_path).read_text(encoding="utf-8").splitlines()
        self.labels = dict(enumerate(line.strip() for line in lines))

    def input_tensor(self):
        return self.interpreter.tensor(self.input["index"])()[0]

    def detect(self, picture, threshold):
        _, height, width, _ = self.input["shape"]
        self.input_tensor()[:, :] = np.asarray(picture.convert("RGB").resize((width, height)))
        self.interpreter.invoke()
        boxes, classes, scores, count = (
            np.squeeze(self.interpreter.get_tensor(detail["index"])) for detail in self.outputs
        )
        found = []
        for k in range(int(count)):
            if scores[k] < threshold:
                continue
            ymin, xmin, ymax, xmax = boxes[k]
            found.append(
                (
                    self.labels.get(int(classes[k]), "?"),
                    float(scores[k]),
                    (float(xmin), float(ymin), float(xmax), float(ymax)),
                )
            )
        return found


def main():
    model, labels, threshold, digits, *pictures = sys.argv[1:]
    detector = Detector(model, labels)
    for path in pictures:
        with Image.open(path) as picture:
            found = detector.detect(picture, float(threshold))
        print(f"{Path(path).name}: {len(found)} objects")
        for name, score, box in found:
            place = ", ".join(f"{v:.{digits}f}" for v in box)
            print(f"  {name:12s} {score:.{digits}f} at {place}")
    return 0 if pictures else 1


if __name__ == "__main__":
    sys.exit(main())
