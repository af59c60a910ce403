"""How `latfarm graph` shows the layers of a network: a table for people, and plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from latfarm_controller.cli.shell import output

if TYPE_CHECKING:
    from latfarm_predictors.features.layers import Layer, Peaks
    from latfarm_predictors.graph.graph import Graph


def typed(graph: Graph, tensor: str) -> dict[str, Any]:
    """The data type and the shape of a tensor, as plain JSON types."""
    kind = graph.type_of(tensor)
    return {"dtype": kind.dtype, "shape": list(kind.shape)}


def _end(graph: Graph, tensor: str) -> str:
    kind = graph.type_of(tensor)
    return f"{kind.dtype} {'x'.join(str(size) for size in kind.shape) or 'scalar'}"


def plain(layer: Layer) -> dict[str, Any]:
    """A layer as plain JSON types."""
    return asdict(layer) | {"intensity": layer.intensity}


def cells(layer: Layer, bounded: bool) -> list[str]:
    """A layer as a row of the table; with `bounded`, its roofline bound too."""
    row = [
        layer.name,
        layer.op,
        "x".join(str(size) for size in layer.output_shape),
        f"{layer.macs / 1e6:.3f}",
        str(layer.parameters),
        f"{layer.traffic_bytes / 1024:.1f}",
        f"{layer.intensity:.2f}",
    ]
    if bounded:
        side = {True: "compute", False: "memory", None: ""}[layer.compute_bound]
        row += ["" if layer.bound_ms is None else f"{layer.bound_ms:.4f}", side]
    return row


def show(graph: Graph, rows: Sequence[Layer], platform: str, peaks: Peaks | None) -> None:
    """Print the network's ends and a table of its layers, the last row being their sum."""
    from latfarm_predictors.graph.equivalences import network_hash_of

    console = output.out()
    console.print(f"{graph.name}  {network_hash_of(graph)}", style="bold")
    for kind, tensors in (("input", graph.inputs), ("output", graph.outputs)):
        for tensor in tensors:
            console.print(f"{kind} {tensor}: {_end(graph, tensor)}")
    bounded = peaks is not None
    header = ["layer", "ops", "output", "MMACs", "params", "KiB moved", "MACs/byte"]
    output.table(
        "",
        header + (["bound ms", "by"] if bounded else []),
        [cells(row, bounded) for row in rows],
    )
    if platform and not bounded:
        output.error(
            f"the bundle of {platform} has no peak rates, so no roofline is drawn;"
            f" to make one that has: latfarm characterize --platform {platform}"
        )
    if peaks is not None:
        console.print(
            f"roofline of {platform}: {peaks.macs_per_ms / 1e6:.1f} GMAC/s, "
            f"{peaks.bytes_per_ms / 1e6:.1f} GB/s, as its kernels reached them"
        )
