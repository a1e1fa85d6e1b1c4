"""The attributes of NNAPI's DETECTION_POSTPROCESSING."""

from __future__ import annotations

from msgspec import Struct


class DetectionAttributes(Struct, frozen=True):
    """The attributes, by their names in the table of operations."""

    scale_y: float
    scale_x: float
    scale_h: float
    scale_w: float
    use_regular_nms: bool
    max_detections: int
    max_classes_per_detection: int
    detections_per_class: int
    score_threshold: float
    iou_threshold: float
    background_in_labels: bool

    @property
    def scales(self) -> tuple[float, ...]:
        """What box regressions are divided by: y, x, height, width."""
        return self.scale_y, self.scale_x, self.scale_h, self.scale_w
