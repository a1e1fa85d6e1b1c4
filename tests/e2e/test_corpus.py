"""`penstock run` on the corpus's networks, pictures and recordings gives recorded answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import CORPUS, IN_CI, NO_CORPUS, corpus_parameters
from tests.e2e.conftest import Program

HEAVY_MACS = 1_000_000_000

SCHEMES = {
    "pm1": "pm1",
    "unit": "unit",
    "f255": "f255",
    "imagenet": "imagenet",
    "gray_unit": "unit",
    "rgba_unit": "unit",
    "m127d128": "m127d128",
    "bgr255": "bgr255",
}
"""The corpus's pre-processing names for float inputs, as `--normalize` has them."""

GAPS: dict[str, str] = {}
"""Networks that do not run yet, each with its reason; strict: one that starts to pass must
leave.
"""

COCO = "labels/coco_labels.txt"
PASCAL = "labels/pascal_voc_segmentation_labels.txt"


def cases(key: str) -> Iterator[Any]:
    """Cases of real inputs whose manifest entry has *key*."""
    if CORPUS is None:
        return
    manifest = json.loads((CORPUS / "models" / "manifest.json").read_bytes())
    for entry in manifest["entries"]:
        if entry["kind"] != "network" or entry["format"] != "tflite":
            continue
        marks: list[pytest.MarkDecorator] = []
        if entry["id"] in GAPS:
            marks.append(pytest.mark.xfail(strict=True, reason=GAPS[entry["id"]]))
        if (entry["macs"] or 0) > HEAVY_MACS:
            marks.append(pytest.mark.slow)
        for case in entry["golden"]["cases"]:
            if key in case:
                yield pytest.param(entry, case, id=f"{entry['id']}-{case['id']}", marks=marks)


def answer(program: Program, entry: dict[str, Any], case: dict[str, Any], *more: object) -> Any:
    """The JSON of `penstock run` on this case."""
    assert CORPUS is not None
    models = CORPUS / "models"
    arguments: list[object] = ["run", models / entry["file"], models / case["source_file"]]
    if entry["inputs"][0]["dtype"] == "FLOAT32" and "preprocess" in case:
        arguments += ["--normalize", SCHEMES[case["preprocess"]]]
    if "labels" in case:
        arguments += ["--labels", models / case["labels"]]
    result = program(*arguments, *more, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_corpus_has_recorded_answers() -> None:
    if CORPUS is None:
        if IN_CI:
            pytest.fail(NO_CORPUS)
        pytest.skip(NO_CORPUS)
    assert len(list(cases("expected_top1"))) >= 20
    assert len(list(cases("top_detections"))) >= 2


@pytest.mark.parametrize(("entry", "case"), corpus_parameters(cases("expected_top1"), arguments=2))
def test_top_class_equals_the_recorded_class(
    command: Program, entry: dict[str, Any], case: dict[str, Any]
) -> None:
    found = answer(command, entry, case)
    assert found["task"] == "classification"
    assert found["top"][0]["index"] == case["expected_top1"]
    assert found["top"][0]["label"] == case["expected_label"]
    assert all(0 <= row["score"] <= 1.001 for row in found["top"])
    assert len(found["top"]) == min(5, found["outputs"][0]["shape"][-1])


@pytest.mark.parametrize(("entry", "case"), corpus_parameters(cases("top_detections"), arguments=2))
def test_boxes_equal_the_recorded_boxes(
    program: Program, entry: dict[str, Any], case: dict[str, Any], tmp_path: Any
) -> None:
    found = answer(program, entry, case, "--min-score", "0.3", "--out", tmp_path / "boxes.png")
    assert found["task"] == "detection"
    assert len(found["boxes"]) >= len(case["top_detections"])
    for box, wanted in zip(found["boxes"], case["top_detections"], strict=False):
        assert (box["index"], box["label"]) == (wanted["cls"], wanted["label"])
        assert box["score"] == pytest.approx(wanted["score"], abs=0.01)
        assert box["box"] == pytest.approx(wanted["box"], abs=0.02)
    assert (tmp_path / "boxes.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("entry", "case"), corpus_parameters(cases("class_fraction"), arguments=2))
def test_class_shares_equal_the_recorded_shares(
    command: Program, entry: dict[str, Any], case: dict[str, Any], tmp_path: Any
) -> None:
    assert CORPUS is not None
    found = answer(
        command, entry, case, "--labels", CORPUS / "models" / PASCAL, "--out", tmp_path / "mask.png"
    )
    assert found["task"] == "segmentation"
    shares = {row["label"]: row["fraction"] for row in found["mask"]["classes"]}
    # The recorded answer is that of LiteRT's optimised kernels; its reference kernels differ in so
    # many pixels.
    differing = entry["golden"]["agreement"]["reference_vs_builtin"]["max_fraction_differing"]
    pixels = differing if found["outputs"][0]["dtype"] == "int64" else 0.0
    for label, share in case["class_fraction"].items():
        assert shares[label] == pytest.approx(share, abs=pixels + 1e-4)
    assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")


def real_case(network: str) -> tuple[dict[str, Any], dict[str, Any]]:
    assert CORPUS is not None
    manifest = json.loads((CORPUS / "models" / "manifest.json").read_bytes())
    entry = next(e for e in manifest["entries"] if e["id"] == network)
    return entry, next(c for c in entry["golden"]["cases"] if c["group"] == "i")


@pytest.mark.parametrize(
    ("network", "least_score", "count", "distance"),
    [
        ("movenet_lightning_int8", 0.3, 14, 0.05),
        # Its grid is 17 x 17: a heat map's cell is 0.06 of the picture.
        pytest.param("posenet_257_int8", 0.25, 4, 0.08, marks=pytest.mark.slow),
    ],
)
def test_key_points_lie_on_the_person(
    corpus: Any,
    command: Program,
    network: str,
    least_score: float,
    count: int,
    distance: float,
    tmp_path: Any,
) -> None:
    """Two networks of unlike build place the joints they are sure of where a list made elsewhere
    has them.
    """
    import csv

    found = answer(command, *real_case(network), "--out", tmp_path / "pose.png")
    assert found["task"] == "pose"
    listed = corpus / "models" / "labels" / "movenet_single_pose_lightning_ptq_reference.csv"
    with listed.open(newline="") as stream:
        wanted = {int(row["keypoint_id"]): row for row in csv.DictReader(stream)}
    sure = [p for p in found["keypoints"] if p["score"] >= least_score]
    assert len(sure) >= count
    for point in sure:
        row = wanted[point["index"]]
        assert point["x"] == pytest.approx(float(row["keypoint_x"]), abs=distance), point["name"]
        assert point["y"] == pytest.approx(float(row["keypoint_y"]), abs=distance), point["name"]
    assert (tmp_path / "pose.png").read_bytes().startswith(b"\x89PNG")


def test_labels_of_the_model_are_the_default(corpus: Any, command: Program) -> None:
    models = corpus / "models"
    result = command(
        "run",
        models / "networks" / "mobilenet_v1_0.25_128_uint8.tflite",
        models / "images" / "cat.bmp",
    )
    assert result.returncode == 0, result.stderr
    assert "Egyptian cat" in result.stdout
    assert "; 1 step, 31 operations (reference 31)\n" in result.stdout
    assert "time: load" in result.stdout


def test_a_detector_without_post_processing_is_summarised(corpus: Any, command: Program) -> None:
    found = answer(command, *real_case("blazeface_front_fp16"))
    assert found["task"] == "outputs"
    assert [v["shape"] for v in found["values"]] == [[1, 896, 16], [1, 896, 1]]
