"""The TFLite metadata schema (semantic version 1.5) as data; `fields.py` explains the notation."""

from __future__ import annotations

from typing import Final

from penstock.export.tflite.fields import Schema

FILE_IDENTIFIER: Final = b"M001"

ENUMS: Final[dict[str, str]] = {
    "AssociatedFileType": (
        "int8: UNKNOWN DESCRIPTIONS TENSOR_AXIS_LABELS TENSOR_VALUE_LABELS "
        "TENSOR_AXIS_SCORE_CALIBRATION VOCABULARY SCANN_INDEX_FILE"
    ),
    "ColorSpaceType": "int8: UNKNOWN RGB GRAYSCALE",
    "BoundingBoxType": "int8: UNKNOWN BOUNDARIES UPPER_LEFT CENTER",
    "CoordinateType": "int8: RATIO PIXEL",
    "ScoreTransformationType": "int8: IDENTITY LOG INVERSE_LOGISTIC",
}

UNIONS: Final[dict[str, str]] = {
    "ContentProperties": (
        "NONE FeatureProperties ImageProperties BoundingBoxProperties AudioProperties"
    ),
    "ProcessUnitOptions": (
        "NONE NormalizationOptions ScoreCalibrationOptions ScoreThresholdingOptions "
        "BertTokenizerOptions SentencePieceTokenizerOptions RegexTokenizerOptions"
    ),
}

TABLES: Final[dict[str, str]] = {
    "AssociatedFile": (
        "name: string; description: string; type: AssociatedFileType; locale: string; version: "
        "string"
    ),
    "FeatureProperties": "",
    "ImageSize": "width: uint32; height: uint32",
    "ImageProperties": "color_space: ColorSpaceType; default_size: ImageSize",
    "BoundingBoxProperties": (
        "index: [uint32]; type: BoundingBoxType; coordinate_type: CoordinateType"
    ),
    "AudioProperties": "sample_rate: uint32; channels: uint32",
    "ValueRange": "min: int32; max: int32",
    "Content": "content_properties: ContentProperties; range: ValueRange",
    "NormalizationOptions": "mean: [float32]; std: [float32]",
    "ScoreCalibrationOptions": (
        "score_transformation: ScoreTransformationType; default_score: float32"
    ),
    "ScoreThresholdingOptions": "global_score_threshold: float32",
    "BertTokenizerOptions": "vocab_file: [AssociatedFile]",
    "SentencePieceTokenizerOptions": (
        "sentence_piece_model: [AssociatedFile]; vocab_file: [AssociatedFile]"
    ),
    "RegexTokenizerOptions": "delim_regex_pattern: string; vocab_file: [AssociatedFile]",
    "ProcessUnit": "options: ProcessUnitOptions",
    "Stats": "max: [float32]; min: [float32]",
    "TensorGroup": "name: string; tensor_names: [string]",
    "TensorMetadata": (
        "name: string; description: string; dimension_names: [string]; content: Content; "
        "process_units: [ProcessUnit]; stats: Stats; associated_files: [AssociatedFile]"
    ),
    "CustomMetadata": "name: string; data: [uint8]",
    "SubGraphMetadata": (
        "name: string; description: string; input_tensor_metadata: [TensorMetadata]; "
        "output_tensor_metadata: [TensorMetadata]; associated_files: [AssociatedFile]; "
        "input_process_units: [ProcessUnit]; output_process_units: [ProcessUnit]; "
        "input_tensor_groups: [TensorGroup]; output_tensor_groups: [TensorGroup]; "
        "custom_metadata: [CustomMetadata]"
    ),
    "ModelMetadata": (
        "name: string; description: string; version: string; subgraph_metadata: "
        "[SubGraphMetadata]; "
        "author: string; license: string; associated_files: [AssociatedFile]; min_parser_version: "
        "string"
    ),
}


METADATA: Final = Schema(FILE_IDENTIFIER, "ModelMetadata", TABLES, ENUMS, UNIONS)
"""TensorFlow Lite metadata schema 1.5."""
