"""A runtime that computes networks in the format graph-json op by op with numpy.

The format has no values of weights, so the weights are random numbers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from latfarm_agent.runtimes.base import (
    Description,
    Job,
    LayerTime,
    PlatformSpec,
    Prepared,
    RuntimeFailure,
)


class NumpyRuntime:
    """The runtime. One instance in a worker process runs one model after the other.

    Args:
        threads: number of threads that the agent allows; this runtime uses one.
        precision: option from the agent's configuration, "float32" or "float16".

    Raises:
        RuntimeFailure: RUNTIME_MISSING: an option is unknown or has a wrong value.
    """

    def __init__(self, threads: int = 1, precision: str = "float32", **unknown: object) -> None:
        del threads
        if unknown:
            raise RuntimeFailure(
                "RUNTIME_MISSING", f"numpy has no option {min(unknown)!r}; it has: precision"
            )
        if precision not in ("float32", "float16"):
            raise RuntimeFailure(
                "RUNTIME_MISSING", f'precision is {precision!r}; set it to "float32" or "float16"'
            )
        self._precision = precision
        self._steps: list[tuple[str, str, Callable[[], None]]] = []

    def describe(self) -> Description:
        """The version and the platforms.

        Everything that changes latencies belongs into the platform's name or its settings.
        """
        numpy = _import()
        short = ".".join(numpy.__version__.split(".")[:2])
        dtype = {"float32": "fp32", "float16": "fp16"}[self._precision]
        settings = {"precision": self._precision, "threads": "1"}
        spec = PlatformSpec(f"numpy{short}-{dtype}-1t", "graph-json", dtype, settings)
        return Description(numpy.__version__, (spec,))

    def prepare(self, job: Job) -> Prepared:
        """Read a model and make its inputs, so that `run` can run it."""
        self._steps = self._load(job.model_path)
        return Prepared(cpu_clock="thread")

    def run(self) -> float | None:
        """Run one inference.

        Returns:
            None: the agent measures the time. A runtime with its own clock returns milliseconds.
        """
        for _, _, step in self._steps:
            step()
        return None

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """The mean time of each op over `runs` runs, in the order in which the ops ran."""
        steps = self._load(job.model_path)
        spent_ms = [0.0] * len(steps)
        for _ in range(runs):
            for index, (_, _, step) in enumerate(steps):
                began = time.perf_counter()
                step()
                spent_ms[index] += (time.perf_counter() - began) * 1e3
        return [
            LayerTime(name, op, spent_ms[index] / runs, "CPU")
            for index, (name, op, _) in enumerate(steps)
        ]

    def _load(self, path: Path) -> list[tuple[str, str, Callable[[], None]]]:
        try:
            graph = json.loads(path.read_text())
            shapes = {name: entry["shape"] for name, entry in graph["types"].items()}
            weights = {name: entry["shape"] for name, entry in graph["weights"].items()}
            nodes = [(str(n["name"]), str(n["op"]), n) for n in graph["nodes"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RuntimeFailure("MODEL_INVALID", f"not a graph: {error!r}") from error
        lacking = sorted({op for _, op, _ in nodes} - set(OPS))
        if lacking:
            raise RuntimeFailure(
                "MODEL_UNSUPPORTED", f"this runtime has no op {', '.join(lacking)}"
            )
        noise = _import().random.default_rng(0)
        values: dict[str, Any] = {
            name: noise.standard_normal(shape).astype(self._precision)
            for name, shape in {**weights, **{i: shapes[i] for i in graph["inputs"]}}.items()
        }
        return [(name, op, _step(OPS[op], node, values)) for name, op, node in nodes]


def _step(
    compute: Callable[..., Any], node: Mapping[str, Any], values: dict[str, Any]
) -> Callable[[], None]:
    """A function that computes a node from `values` and puts the result there."""
    read, made, attrs = node["inputs"], node["outputs"][0], node.get("attrs", {})

    def step() -> None:
        values[made] = compute(attrs, *(values[name] for name in read))

    return step


def _windows(attrs: Mapping[str, Any], x: Any, fill: float) -> Any:
    """The windows of an image as a view of shape [n, c, h, w, kernel height, kernel width]."""
    numpy = _import()
    top, left, bottom, right = attrs.get("pads", [0, 0, 0, 0])
    x = numpy.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    views = numpy.lib.stride_tricks.sliding_window_view(x, attrs["kernel_shape"], axis=(2, 3))
    down, across = attrs.get("strides", [1, 1])
    return views[:, :, ::down, ::across]


def _conv(attrs: Mapping[str, Any], x: Any, weight: Any, bias: Any = None) -> Any:
    numpy = _import()
    groups = attrs.get("group", 1)
    views = _windows(attrs, x, 0.0)
    per_group = views.shape[1] // groups
    outs = [
        numpy.tensordot(
            views[:, group * per_group : (group + 1) * per_group], part, ((1, 4, 5), (1, 2, 3))
        )
        for group, part in enumerate(numpy.split(weight, groups))
    ]
    y = numpy.moveaxis(numpy.concatenate(outs, axis=-1), -1, 1)
    return y if bias is None else y + bias.reshape(1, -1, 1, 1)


def _softmax(attrs: Mapping[str, Any], x: Any) -> Any:
    numpy = _import()
    powers = numpy.exp(x - x.max(attrs.get("axis", -1), keepdims=True))
    return powers / powers.sum(attrs.get("axis", -1), keepdims=True)


OPS: Mapping[str, Callable[..., Any]] = {
    "Add": lambda _, x, y: x + y,
    "Concat": lambda attrs, *parts: _import().concatenate(parts, axis=attrs["axis"]),
    "Conv": _conv,
    "Flatten": lambda _, x: x.reshape(x.shape[0], -1),
    "GlobalAveragePool": lambda _, x: x.mean((2, 3), keepdims=True),
    "MaxPool": lambda attrs, x: _windows(attrs, x, -_import().inf).max((4, 5)),
    "Relu": lambda _, x: _import().maximum(x, 0),
    "Sigmoid": lambda _, x: 1 / (1 + _import().exp(-x)),
    "Softmax": _softmax,
}
"""For each ONNX op, a function that computes its first output from its attributes and inputs."""


def _import() -> Any:
    """Import numpy only in the worker, because it is large and may be missing."""
    try:
        import numpy
    except ImportError as error:
        raise RuntimeFailure(
            "RUNTIME_MISSING", f"numpy cannot be imported ({error}); install it: pip install numpy"
        ) from error
    return numpy
