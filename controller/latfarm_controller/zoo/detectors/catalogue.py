"""The detectors of the zoo, with the sizes that their publications say.

YOLO has no paper. The source "Ultralytics" is the summary that its code prints and its tables
repeat: parameters before batch norms are folded, and GFLOPs after that, two for each multiply-add.
RetinaNet's parameters are those of the named implementation: torchvision's ResNet-34 without its
classifier (21,284,672); laterals, outputs and coarse levels (3,770,368); heads (6,463,220, the same
as in detectron2).

No detector is `sampled`: priors and calibration draw from image classifiers, which are smaller and
have the same kernels.
"""

from __future__ import annotations

from latfarm_controller.zoo.family import Family, Published, family


def _yolo(name: str, parameters: int, gflops: float, source: str) -> Family:
    """A YOLO; the tolerance of its multiply-adds is 0.01, or the rounding of GFLOPs if coarser."""
    return family(
        name,
        f"detectors.{name[:-1]}",
        source,
        "yolo",
        "darknet",
        resolution=640,
        task="detection",
        sampled=False,
        published=Published(parameters, 0, gflops * 5e8, max(0.01, 0.05 / gflops), "Ultralytics"),
    )


_V5 = "Jocher 2020, YOLOv5 version 7.0, github.com/ultralytics/yolov5"
_V8 = "Jocher et al. 2023, YOLOv8, github.com/ultralytics/ultralytics"

ALL = (
    _yolo("yolov5n", 1_872_157, 4.5, _V5),
    _yolo("yolov5s", 7_235_389, 16.5, _V5),
    _yolo("yolov5m", 21_190_557, 49.0, _V5),
    _yolo("yolov5l", 46_563_709, 109.1, _V5),
    # The summary also counts 16 fixed weights, those of the distribution's mean; not counted here.
    _yolo("yolov8n", 3_157_184, 8.7, _V8),
    _yolo("yolov8s", 11_166_544, 28.6, _V8),
    _yolo("yolov8m", 25_902_624, 78.9, _V8),
    _yolo("yolov8l", 43_691_504, 165.2, _V8),
    _yolo("yolov8x", 68_229_632, 257.8, _V8),
    family(
        "retinanet-r34",
        "detectors.retinanet",
        "Lin et al. 2017, Focal Loss for Dense Object Detection, ICCV",
        "retinanet",
        "resnet",
        resolution=640,
        task="detection",
        sampled=False,
        published=Published(31_518_260, 0, None, 0, "yhenon/pytorch-retinanet, resnet34"),
    ),
)
