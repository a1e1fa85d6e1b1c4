"""`penstock run MODEL FILE` alone, on networks and files of the corpus and on pictures made of
them: never a wrong class with exit code 0.

What is right is the class under the preparation that the corpus's manifest has for the network.
"""

from __future__ import annotations

import json
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from tests.conftest import CORPUS
from tests.e2e.conftest import Program
from tests.e2e.test_corpus import SCHEMES, cases

ANSWERED = 19
"""Labelled cases whose class is found without options, at least; the other 8 are asked about, or
have no class to name.
"""

BYTES = frozenset({"raw", "gray_raw", "q_gray_unit", "q_f255", "q_unit"})
"""Preparations of quantised inputs that leave a picture's bytes as they are, or shift them
by 128.
"""

GREY = {"gray_unit": "unit", "gray255_nchw": "f255"}

SMALL = (
    "lstm_mnist_float",
    "lstm_mnist_uint8_io",
    "mnist_cntk_onnx",
    "mnist_conv_float",
    "mnist_conv_int8_a8w8",
    "mobilenet_v1_0.25_128_uint8",
    "mobilenet_v1_0.25_224_float",
    "resnet8_cifar10_float",
    "resnet8_cifar10_int8",
    "vww_96_float",
    "vww_96_int8",
)
"""Classifiers of pictures in the corpus that take less than a second a picture."""

Change = Callable[[Image.Image], Image.Image]

CHANGES: dict[str, Change] = {
    "left": lambda p: p.crop((0, 0, p.width // 2, p.height)),
    "right": lambda p: p.crop((p.width // 2, 0, p.width, p.height)),
    "middle": lambda p: p.crop((p.width // 4, p.height // 4, 3 * p.width // 4, 3 * p.height // 4)),
    "mirrored": ImageOps.mirror,
    "upside down": ImageOps.flip,
    "dark": lambda p: ImageEnhance.Brightness(p).enhance(0.4),
    "pale": lambda p: ImageEnhance.Contrast(p).enhance(0.3),
    "grey": lambda p: p.convert("L"),
    "negative": lambda p: ImageOps.invert(p.convert("RGB")),
    "blurred": lambda p: p.filter(ImageFilter.GaussianBlur(6)),
}


def labelled() -> Iterator[Any]:
    """The manifest's cases with a class to expect, of either format."""
    if CORPUS is None:
        return
    manifest = json.loads((CORPUS / "models" / "manifest.json").read_bytes())
    for entry in manifest["entries"]:
        for case in entry.get("golden", {}).get("cases", ()):
            if "expected_top1" in case:
                yield entry, case


def outcome(program: Program, *arguments: object) -> tuple[int, int | None, Any]:
    """Exit code, best class if there is one, and the JSON object."""
    result = program("run", *arguments, "--json")
    assert result.returncode in {0, 2, 3}, result.stderr
    found = json.loads(result.stdout)
    top = found.get("top")
    return result.returncode, top[0]["index"] if top else None, found


@pytest.mark.slow
def test_no_labelled_case_of_the_corpus_is_wrong_in_silence(corpus: Path, command: Program) -> None:
    models, right, wrong = corpus / "models", 0, []
    every = list(labelled())
    assert len(every) >= 27
    for entry, case in every:
        given = (models / entry["file"], models / case["source_file"])
        code, best, found = outcome(command, *given)
        if code == 0 and best is not None and best != case["expected_top1"]:
            wrong.append((entry["id"], case["source_file"], best))
        right += code == 0 and best == case["expected_top1"]
        if code == 2 and "preparations" in found:
            shown = {p["top"][0]["index"] for p in found["preparations"] if p["top"]}
            assert case["expected_top1"] in shown, entry["id"]
    assert wrong == []
    assert right >= ANSWERED


def true_scheme(entry: dict[str, Any]) -> str:
    """The `--normalize` that the manifest says."""
    case = next(c for c in entry["golden"]["cases"] if "expected_top1" in c)
    preprocess = case["preprocess"]
    if preprocess in BYTES:
        return "raw"
    return GREY.get(preprocess) or SCHEMES[preprocess]


def made(corpus: Path, folder: Path, network: str) -> list[Path]:
    """Pictures that are not in the corpus, for the kind that *network* takes."""
    digit = "mnist" in network
    # What the file states holds for any picture: those of which it states nothing get more.
    photographs = ["cat", "grace_hopper", "dragonfly"] if network.endswith("float") else ["cat"]
    names = ["mnist_nine"] if digit else photographs
    paths = []
    for name in names:
        with Image.open(corpus / "models" / "images" / f"{name}.bmp") as opened:
            source = opened.convert("RGB")
        pictures = [change(source) for change in CHANGES.values()]
        if digit:
            pictures += [source.rotate(degrees) for degrees in (15, 90, 180, 270)]
        for number, picture in enumerate(pictures):
            path = folder / f"{name}-{number}.png"
            picture.save(path)
            paths.append(path)
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("network", SMALL)
def test_no_picture_made_of_the_corpus_is_wrong_in_silence(
    corpus: Path, command: Program, tmp_path: Path, network: str
) -> None:
    entries = {entry["id"]: entry for entry, _ in labelled()}
    model, labels = corpus / "models" / entries[network]["file"], corpus / "models" / "labels"
    more = ("--labels", labels / "digits.txt") if "mnist" in network else ()
    scheme, wrong, answered = true_scheme(entries[network]), [], 0
    pictures = made(corpus, tmp_path, network)
    for picture in pictures:
        _, right, _ = outcome(command, model, picture, "--normalize", scheme, *more)
        code, best, found = outcome(command, model, picture, *more)
        # Steps of 8 bits may not tell two likely classes apart, whatever is known of the
        # preparation.
        tied = "no class stands out" in found.get("error", {}).get("message", "")
        answered += code == 0 or tied
        if code == 0 and best != right:
            wrong.append((picture.name, best, right))
    assert wrong == []
    assert len(pictures) >= 10
    if entries[network]["inputs"][0]["dtype"] != "FLOAT32" and "onnx" not in network:
        assert answered == len(pictures)


def test_network_with_equal_scores_gives_no_class(corpus: Path, command: Program) -> None:
    models = corpus / "models"
    network = models / "networks" / "light_squeezenet_onnx.onnx"
    result = command("run", network, models / "images" / "sunflower.bmp")
    assert result.returncode == 2
    assert "1000 of 1000 classes share the best score" in result.stderr


def test_an_onnx_classifier_without_labels_is_compared_and_names_the_task(
    corpus: Path, command: Program
) -> None:
    models = corpus / "models"
    given = (models / "networks" / "mnist_cntk_onnx.onnx", models / "images" / "mnist_nine.bmp")
    code, best, found = outcome(command, *given)
    assert (code, best) == (2, None)
    assert {p["top"][0]["index"] for p in found["preparations"]} == {9}
    assert "say --task classification" in found["error"]["message"]
    assert outcome(command, *given, "--task", "classification")[:2] == (0, 9)


def test_a_sound_for_a_network_of_spectrograms_is_refused(corpus: Path, command: Program) -> None:
    models = corpus / "models"
    for network in ("micro_speech_int8", "kws_dscnn_int8", "ad01_toycar_int8", "ad01_toycar_float"):
        result = command(
            "run", models / "networks" / f"{network}.tflite", models / "audio" / "yes_1000ms.wav"
        )
        assert result.returncode == 3, network
        assert "it looks like" in result.stderr or "is not that of a waveform" in result.stderr
        assert result.stdout == ""


def test_a_sound_at_another_rate_is_answered_only_with_the_rate(
    corpus: Path, command: Program, tmp_path: Path
) -> None:
    models, path = corpus / "models", tmp_path / "yes.wav"
    with wave.open(str(models / "audio" / "yes_1000ms.wav")) as opened:
        samples = np.frombuffer(opened.readframes(opened.getnframes()), "<i2")
    places = np.arange(0, len(samples), 16000 / 44100)
    with wave.open(str(path), "wb") as made:
        made.setparams((1, 2, 44100, 0, "NONE", ""))
        made.writeframes(np.interp(places, range(len(samples)), samples).astype("<i2").tobytes())
    given = ("run", models / "networks" / "kwt1_transformer_float.tflite", path)
    labels = ("--labels", models / "labels" / "kws12.txt")
    result = command(*given, *labels)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "say --rate 44100 if it takes 44100" in result.stderr
    assert command(*given, *labels, "--rate", 44100).returncode == 0
    wrong = command(*given, *labels, "--rate", 16000)
    assert wrong.returncode == 3
    assert "resample the sound to 16000 Hz" in wrong.stderr


def test_a_sound_that_is_cut_is_named_before_the_answer(corpus: Path, command: Program) -> None:
    models = corpus / "models"
    sound = models / "audio" / "speech.wav"
    result = command("run", models / "networks" / "yamnet_int8.tflite", sound)
    assert result.returncode == 0, result.stderr
    with wave.open(str(sound)) as opened:
        frames = opened.getnframes()
    cut = result.stdout.index(f"the sound is cut from {frames} to 15600 samples")
    assert cut < result.stdout.index("probability")


@pytest.mark.parametrize(
    "network",
    ["kws_dscnn_int8", "ad01_toycar_float", "sdpa_composite", "wakeword_vad", "basic_pitch_float"],
)
def test_a_picture_for_a_network_of_something_else_is_refused(
    corpus: Path, command: Program, network: str
) -> None:
    models = corpus / "models"
    result = command(
        "run", models / "networks" / f"{network}.tflite", models / "images" / "cat.bmp", "random"
    )
    assert result.returncode == 3, network
    assert "is a picture, but input" in result.stderr


@pytest.mark.parametrize("key", ["class_fraction", "top_detections"])
def test_a_segmentation_or_detection_is_right_or_asks(
    corpus: Path, command: Program, key: str
) -> None:
    seen = 0
    for parameter in cases(key):
        entry, case = parameter.values
        models = corpus / "models"
        if (entry["macs"] or 0) > 900_000_000:
            continue
        result = command("run", models / entry["file"], models / case["source_file"], "--json")
        seen += 1
        found = json.loads(result.stdout)
        if entry["inputs"][0]["dtype"] == "FLOAT32":
            assert result.returncode == 2, entry["id"]
            assert "--normalize" in found["error"]["message"]
            continue
        assert result.returncode == 0, result.stderr
        assert found["inputs"][0]["normalize_from"] in {"quantization", "metadata", "type"}
    assert seen >= 1
