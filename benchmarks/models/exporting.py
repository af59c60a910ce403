"""Exports one model with the defaults of torch's exporter; runs in an environment of its own.

Usage: `python exporting.py NAME FOLDER`, which writes FOLDER/model.onnx, its data beside it, and
FOLDER/export.json with the versions and the duration. The environment has torch, timm and
transformers, but nothing of latfarm.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.models.suite import Export, named

TOKENS = 1000
"""Token ids are below this number, which every vocabulary holds."""


class FirstTensor(nn.Module):
    """A model whose first output is told alone, as people export models of transformers."""

    def __init__(self, inner: nn.Module, name: str) -> None:
        super().__init__()
        self.inner = inner
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The first output for one input."""
        found: torch.Tensor = self.inner(**{self.name: x})[0]
        return found


class LastOutput(nn.Module):
    """A recurrent layer with a classifier."""

    def __init__(self, layer: nn.Module, hidden: int) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classes from the last step of a sequence (N, steps, features)."""
        steps, _ = self.layer(x)
        found: torch.Tensor = self.head(steps[:, -1])
        return found


def _block(before: int, after: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """A small U-Net (Ronneberger et al. 2015) with transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        widths = (16, 32, 64, 128)
        self.down = nn.ModuleList(
            _block(before, after) for before, after in zip((3, *widths), widths, strict=False)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(after, before, 2, 2)
            for before, after in zip(widths[-2::-1], widths[:0:-1], strict=True)
        )
        self.join = nn.ModuleList(_block(2 * width, width) for width in widths[-2::-1])
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores for each pixel."""
        kept = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for up, join, skipped in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat((up(x), skipped), 1))
        found: torch.Tensor = self.head(x)
        return found


class Pyramid(nn.Module):
    """A feature pyramid (Lin et al. 2017) with upsampling by interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            _block(before, after, 2) for before, after in ((3, 32), (32, 64), (64, 128))
        )
        self.side = nn.ModuleList(nn.Conv2d(width, 64, 1) for width in (32, 64, 128))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Features of three resolutions."""
        found = []
        for stage, side in zip(self.stages, self.side, strict=True):
            x = stage(x)
            found.append(side(x))
        for index in (1, 0):
            found[index] = found[index] + nn.functional.interpolate(
                found[index + 1], scale_factor=2.0, mode="nearest"
            )
        return tuple(found)


def unet() -> nn.Module:
    """See `UNet`."""
    return UNet()


def pyramid() -> nn.Module:
    """See `Pyramid`."""
    return Pyramid()


def lstm() -> nn.Module:
    """Two layers of an LSTM."""
    return LastOutput(nn.LSTM(128, 256, 2, batch_first=True), 256)


def gru() -> nn.Module:
    """Two directions of a GRU."""
    return LastOutput(nn.GRU(128, 128, 1, batch_first=True, bidirectional=True), 256)


def tcn() -> nn.Module:
    """Dilated convolutions over time."""
    layers: list[nn.Module] = []
    for index in range(4):
        layers += [nn.Conv1d(40 if index == 0 else 64, 64, 3, dilation=2**index), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 12))


def encoder() -> nn.Module:
    """Four layers of torch's own transformer encoder."""
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


SUPPRESSIONS = ("nms", "qnms")
"""Operators of torchvision that its import registers, whether or not they were compiled."""


def lend_operators() -> None:
    """Let timm and transformers import a torchvision that was built for another build of torch.

    Its compiled part is then missing, and its import fails because operators are not there. No
    model of the suite needs these operators.
    """
    try:
        import_module("torchvision")
    except RuntimeError:
        for name in SUPPRESSIONS:
            torch.library.define(
                f"torchvision::{name}", "(Tensor boxes, Tensor scores, float overlap) -> Tensor"
            )
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


def made(export: Export) -> nn.Module:
    """The model, with random weights."""
    lend_operators()
    if export.library == "timm":
        import timm

        model: nn.Module = timm.create_model(export.name, pretrained=False)
        return model
    if export.library == "torch":
        written: nn.Module = globals()[export.model]()
        return written
    import transformers

    found: Any = getattr(transformers, export.model)
    (name,) = export.inputs
    return FirstTensor(found(found.config_class(**export.config)), name)


def main() -> None:
    """Export the model that the command line names."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    (export,) = named((name,))
    torch.manual_seed(0)
    model = made(export).eval()
    inputs = tuple(
        torch.randint(0, TOKENS, shape) if name == "input_ids" else torch.randn(shape)
        for name, shape in export.inputs.items()
    )
    began_s = time.monotonic()
    torch.onnx.export(model, inputs, str(folder / "model.onnx"))
    told = {
        "export_s": round(time.monotonic() - began_s, 1),
        "versions": {name: version(name) for name in ("torch", "timm", "transformers", "onnx")},
        "files_bytes": {path.name: path.stat().st_size for path in sorted(folder.glob("model*"))},
    }
    (folder / "export.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main()
