"""The true behaviour of a simulated board: which ops it fuses, and what each kernel costs.

All functions are pure functions of a graph (the project's Graph as plain JSON) and a profile. They
share no code with the predictors, so that predictions of a simulated board are a fair test.
"""

from __future__ import annotations

import math
import typing
from typing import Any, Mapping, Sequence

from latfarm_agent.runtimes.base import LayerTime, RuntimeFailure
from latfarm_agent.runtimes.simulated.chains import chains_of
from latfarm_agent.runtimes.simulated.profile import BoardProfile, SimulatedTiles
from latfarm_agent.runtimes.simulated.together import makespan_ms

GraphJson = typing.Mapping[str, Any]

# Bytes of an element; all other types have 4.
_ELEMENT_BYTES = {
    "float64": 8,
    "int64": 8,
    "float16": 2,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
_POOLS = ("MaxPool", "AveragePool")
# Ops that only move or rename data: they compute nothing.
_MOVES = frozenset(
    {
        "Concat",
        "Flatten",
        "Gather",
        "Identity",
        "Pad",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)


def exact_latency_ms(graph: GraphJson, profile: BoardProfile) -> float:
    """Return the true latency of a model without noise: its kernels, its I/O and the call."""
    latency_ms = profile.call_overhead_ms + _running_ms(graph, profile)
    if profile.io_bytes_per_ms > 0:
        boundary = sum(_bytes(graph, name) for name in [*graph["inputs"], *graph["outputs"]])
        latency_ms += boundary / profile.io_bytes_per_ms
    return latency_ms


def _running_ms(graph: GraphJson, profile: BoardProfile) -> float:
    """Return the time in which all kernels of a model run.

    It is the sum of `exact_layers`, unless the board runs kernels at the same time, or keeps what
    the next kernel reads on the chip.
    """
    links = _Links(graph)
    kernels = true_kernels(graph, profile)
    times_ms = _read_again_ms(graph, kernels, links, profile)
    for at, kernel in enumerate(kernels):
        kept = _handed_on(graph, kernels[at - 1], kernel) if at and profile.overlap else 0
        times_ms[at] += _kernel_ms(graph, kernel, links, profile, profile.overlap * kept)
    if profile.streams == 1:
        return sum(times_ms)
    place = {index: at for at, kernel in enumerate(kernels) for index in kernel}
    waits = [
        {place[maker] for index in kernel for maker in links.makers[index]} - {at}
        for at, kernel in enumerate(kernels)
    ]
    return makespan_ms(times_ms, waits, profile.streams, profile.sync_ms)


def _handed_on(graph: GraphJson, before: Sequence[int], kernel: Sequence[int]) -> int:
    """Return the bytes that a kernel reads of what the kernel before it has made."""
    nodes = graph["nodes"]
    made = {tensor for index in before for tensor in nodes[index]["outputs"] if tensor}
    read = {tensor for index in kernel for tensor in nodes[index]["inputs"]}
    return sum(_bytes(graph, tensor) for tensor in made & read)


def exact_cold_ms(graph: GraphJson, profile: BoardProfile) -> float:
    """Return the true latency of a run with cold caches, which reads all weights again."""
    latency_ms = exact_latency_ms(graph, profile)
    if profile.cold_bytes_per_ms > 0:
        weights = sum(_bytes(graph, name) for name in graph["weights"])
        latency_ms += weights / profile.cold_bytes_per_ms
    return latency_ms


def exact_energy_mj(graph: GraphJson, profile: BoardProfile) -> float:
    """Return the energy of a run beyond that of the board at rest, without noise.

    It is 0 for a board without a power rail. One milliwatt for one millisecond is one microjoule.
    """
    power = profile.power
    if power is None:
        return 0.0
    active_uj = power.active_mw * exact_latency_ms(graph, profile)
    return (active_uj + power.call_uj + exact_work_uj(graph, profile)) / 1e3


def exact_work_uj(graph: GraphJson, profile: BoardProfile) -> float:
    """Return the part of a run's energy that depends on its work and not on its latency."""
    power = profile.power
    if power is None:
        return 0.0
    links = _Links(graph)
    picojoules = 0.0
    for kernel in true_kernels(graph, profile):
        macs, vector, moved = _kernel_work(graph, kernel, links, profile)
        picojoules += macs * power.mac_pj + vector * power.vector_pj + moved * power.byte_pj
    return picojoules / 1e6


def exact_layers(graph: GraphJson, profile: BoardProfile) -> list[LayerTime]:
    """Return the true time of each kernel by itself, in the order of execution."""
    links = _Links(graph)
    nodes = graph["nodes"]
    kernels = true_kernels(graph, profile)
    again_ms = _read_again_ms(graph, kernels, links, profile)
    return [
        LayerTime(
            name="+".join(str(nodes[index]["name"]) for index in kernel),
            op="+".join(str(nodes[index]["op"]) for index in kernel),
            latency_ms=_kernel_ms(graph, kernel, links, profile) + extra_ms,
            device="simulated",
        )
        for kernel, extra_ms in zip(kernels, again_ms)
    ]


def _read_again_ms(
    graph: GraphJson, kernels: Sequence[Sequence[int]], links: _Links, profile: BoardProfile
) -> list[float]:
    """Return the time that each kernel takes to read what the cache has lost since its last use.

    The model runs again and again: all of its data are used between two uses of a weight or of an
    input of the model. A tensor was last used by the kernel that wrote it.
    """
    if profile.cache_bytes_per_ms <= 0:
        return [0.0] * len(kernels)
    used: list[tuple[set[str], set[str]]] = []
    for kernel in kernels:
        nodes = [graph["nodes"][index] for index in kernel]
        inside = {tensor for node in nodes for tensor in node["outputs"] if tensor}
        read = {t for node in nodes for t in node["inputs"] if t and t not in inside}
        leaving = {
            tensor
            for tensor in inside
            if tensor in graph["outputs"] or set(links.readers.get(tensor, ())) - set(kernel)
        }
        used.append((read, leaving))
    sizes = [sum(_bytes(graph, tensor) for tensor in read | made) for read, made in used]
    every = {tensor for read, made in used for tensor in read | made}
    whole = sum(_bytes(graph, tensor) for tensor in every)
    writer = {tensor: at for at, (_, made) in enumerate(used) for tensor in made}
    found = []
    for at, (read, _) in enumerate(used):
        lost = 0
        for tensor in read:
            own = _bytes(graph, tensor)
            since = own + sum(sizes[writer[tensor] + 1 : at]) if tensor in writer else whole
            lost += own if since > profile.cache_bytes else 0
        found.append(lost / profile.cache_bytes_per_ms)
    return found


class _Links:
    """Which nodes make and which nodes read each tensor, by index of the node."""

    def __init__(self, graph: GraphJson) -> None:
        self.maker: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}
        for index, node in enumerate(graph["nodes"]):
            for tensor in node["outputs"]:
                if tensor:
                    self.maker[tensor] = index
            for tensor in dict.fromkeys(node["inputs"]):
                if tensor:
                    self.readers.setdefault(tensor, []).append(index)
        self.makers: list[list[int]] = [
            [self.maker[t] for t in dict.fromkeys(node["inputs"]) if t in self.maker]
            for node in graph["nodes"]
        ]


def true_kernels(graph: GraphJson, profile: BoardProfile) -> list[list[int]]:
    """Return the kernels of a graph, each as the indices of its nodes.

    The nodes are visited in topological order. A node joins the kernel that makes one of its
    operands if the pair (type of that kernel, op) is fused, the rules for branches allow it, and no
    cycle between kernels would arise.
    """
    nodes = graph["nodes"]
    links = _Links(graph)
    kernels: dict[int, list[int]] = {}  # index of a kernel's first node -> all its nodes
    head_of: list[int] = []
    chained = {
        index: chain[0]
        for chain in chains_of(graph, links.readers, profile.fused_chains)
        for index in chain
    }
    for index, node in enumerate(nodes):
        first = chained.get(index, index)
        if first != index:
            head_of.append(head_of[first])
            kernels[head_of[first]].append(index)
            continue
        head_of.append(index)
        operands = [t for t in node["inputs"] if t and t not in graph["weights"]]
        makers = links.makers[index]
        if len(operands) > 1:
            order = {0: [], 1: makers, 2: makers[::-1]}
            makers = order[profile.multi_inbound]
        for maker in makers:
            head = head_of[maker]
            if (
                (nodes[head]["op"], node["op"]) in profile.fused_pairs
                and _branch_allows(graph, maker, index, links, profile.multi_outbound)
                and not _closes_cycle(kernels, head_of, head, index, links)
            ):
                head_of[index] = head
                break
        kernels.setdefault(head_of[index], []).append(index)
    return _in_order(kernels, head_of, links)


def _in_order(
    kernels: Mapping[int, list[int]], head_of: Sequence[int], links: _Links
) -> list[list[int]]:
    """Order the kernels so that they can run; of several that can, the one that ends first runs."""
    waits = {
        head: {head_of[maker] for index in members for maker in links.makers[index]} - {head}
        for head, members in kernels.items()
    }
    ordered: list[list[int]] = []
    while waits:
        ready = [head for head, before in waits.items() if not before & waits.keys()]
        head = min(ready, key=lambda head: kernels[head][-1])
        del waits[head]
        ordered.append(kernels[head])
    return ordered


def _branch_allows(graph: GraphJson, maker: int, reader: int, links: _Links, rule: int) -> bool:
    outputs = graph["nodes"][maker]["outputs"]
    branches = sorted({index for tensor in outputs for index in links.readers.get(tensor, ())})
    leaves = any(tensor in graph["outputs"] for tensor in outputs)
    if len(branches) == 1 and not leaves:
        return True
    if rule == 0:
        return False
    return reader == (branches[0] if rule == 1 else branches[-1])


def _closes_cycle(
    kernels: Mapping[int, Sequence[int]],
    head_of: Sequence[int],
    head: int,
    joining: int,
    links: _Links,
) -> bool:
    """Whether another operand of `joining` depends on kernel `head` through other kernels."""
    seen = set()
    ahead = [head_of[maker] for maker in links.makers[joining] if head_of[maker] != head]
    while ahead:
        other = ahead.pop()
        if other in seen:
            continue
        seen.add(other)
        for member in kernels[other]:
            for maker in links.makers[member]:
                before = head_of[maker]
                if before == head:
                    return True
                if before != other:
                    ahead.append(before)
    return False


def _kernel_ms(
    graph: GraphJson,
    kernel: Sequence[int],
    links: _Links,
    profile: BoardProfile,
    spared_bytes: float = 0.0,
) -> float:
    macs, vector, moved = _kernel_work(graph, kernel, links, profile)
    moved -= spared_bytes
    vector_rate = profile.vector_ops_per_ms or profile.peak_macs_per_ms
    compute_ms = macs / profile.peak_macs_per_ms + vector / vector_rate
    return profile.overhead_ms + max(compute_ms, moved / profile.bandwidth_bytes_per_ms)


def _kernel_work(
    graph: GraphJson, kernel: Sequence[int], links: _Links, profile: BoardProfile
) -> tuple[float, float, float]:
    """Return a kernel's multiply-adds in whole tiles, element-wise operations, and moved bytes."""
    nodes = [graph["nodes"][index] for index in kernel]
    inside = {tensor for node in nodes for tensor in node["outputs"] if tensor}
    read = {t for node in nodes for t in node["inputs"] if t and t not in inside}
    written = {
        tensor
        for tensor in inside
        if tensor in graph["outputs"] or set(links.readers.get(tensor, ())) - set(kernel)
    }
    moved = sum(_bytes(graph, tensor) for tensor in read | written)
    works = [_work(graph, node, profile.tiles) for node in nodes]
    return sum(macs for macs, _ in works), sum(vector for _, vector in works), float(moved)


def _work(graph: GraphJson, node: Mapping[str, Any], tiles: SimulatedTiles) -> tuple[float, float]:
    """Return the multiply-adds in whole tiles and the element-wise operations of one op."""
    op, attrs = node["op"], node.get("attrs", {})
    out = _shape(graph, node["outputs"][0])
    out_elements = math.prod(out)
    if op in ("Conv", "ConvTranspose") and len(out) >= 3:
        first = _shape(graph, node["inputs"][0])
        weight = _shape(graph, node["inputs"][1])
        groups = int(attrs.get("group", 1))
        in_channels, out_channels = first[1] // groups, out[1] // groups
        grid = out if op == "Conv" else first
        positions = math.prod(grid[2:-1]) * _up(grid[-1], tiles.width) * grid[0]
        channels = _up(in_channels, tiles.in_channels) * _up(out_channels, tiles.out_channels)
        if groups > 1 and in_channels == 1:
            # Depthwise: the tile of output channels applies to the groups instead.
            channels, groups = _up(groups, tiles.out_channels) * out_channels, 1
        return float(positions * channels * groups * math.prod(weight[2:])), 0.0
    if op in ("Gemm", "MatMul"):
        first = _shape(graph, node["inputs"][0])
        depth = first[-2] if attrs.get("transA") else first[-1]
        wide = _up(depth, tiles.in_channels) * _up(out[-1], tiles.out_channels)
        return float(math.prod(out[:-1]) * wide), 0.0
    if op in _POOLS:
        return 0.0, float(out_elements * math.prod(attrs.get("kernel_shape", [1])))
    if op in _MOVES:
        return 0.0, 0.0
    read = max((math.prod(_shape(graph, t)) for t in node["inputs"] if t), default=1)
    return 0.0, float(max(read, out_elements))


def _up(size: int, tile: int) -> int:
    return -(-size // tile) * tile


def _type(graph: GraphJson, tensor: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = graph["types"].get(tensor) or graph["weights"].get(tensor)
    if found is None:
        raise RuntimeFailure("MODEL_INVALID", f"tensor {tensor!r} has no type")
    return found


def _shape(graph: GraphJson, tensor: str) -> list[int]:
    return [int(size) for size in _type(graph, tensor)["shape"]]


def _bytes(graph: GraphJson, tensor: str) -> int:
    kind = _type(graph, tensor)
    return int(math.prod(_shape(graph, tensor))) * _ELEMENT_BYTES.get(kind["dtype"], 4)
