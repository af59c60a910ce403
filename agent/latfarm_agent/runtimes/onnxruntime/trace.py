"""What onnxruntime reports about a run: the kernels of its trace, and who executed which nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Collection, Mapping, Sequence

from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.onnx.covers import Cover, covers, known_name
from latfarm_agent.runtimes.onnx.wire import WireNode

CPU = "CPUExecutionProvider"
RECORD_PLACES = "session.record_ep_graph_assignment_info"
"""Session option that makes onnxruntime record what `read_places` returns. Versions before 1.24
ignore it."""
_KERNEL = "_kernel_time"
_NUMBERED = re.compile(r"_(?P<number>\d+)$")
_SHOWN = 12  # at most this many nodes are named in a condition


@dataclass
class TracedKernel:
    """One kernel of a trace.

    `host_ms`: time of each run by the host's clock. `device_ms`: time of each run by the GPU's own
    clock, empty where the trace has none.
    """

    name: str
    op: str
    provider: str
    host_ms: list[float] = field(default_factory=list)
    device_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class ProviderPart:
    """Nodes that one provider executes as one piece, each as (name, op).

    On the CPU, each piece has one node.
    """

    provider: str
    nodes: tuple[tuple[str, str], ...]


def read_kernels(events: Sequence[Mapping[str, Any]]) -> list[TracedKernel]:
    """Return the kernels of a trace in the order of their first run, with the time of each run.

    In a trace, the events of a GPU stand behind the event of the node that launched them. The time
    of the node itself is then only what launching took on the host.
    """
    found: dict[str, TracedKernel] = {}
    last: TracedKernel | None = None
    for event in events:
        name = str(event.get("name", ""))
        spent_ms = float(event.get("dur", 0)) / 1e3
        if event.get("cat") == "Kernel" and last is not None:
            last.device_ms[-1] += spent_ms
        if event.get("cat") != "Node" or not name.endswith(_KERNEL):
            continue
        args = event["args"]
        told = name[: -len(_KERNEL)], str(args["op_name"]), str(args.get("provider", ""))
        last = found.setdefault(str(args.get("node_index", name)), TracedKernel(*told))
        last.host_ms.append(spent_ms)
        last.device_ms.append(0.0)
    for kernel in found.values():
        if not any(kernel.device_ms):
            kernel.device_ms = []
    return list(found.values())


def read_places(session: Any) -> list[ProviderPart] | None:
    """Return which provider executes which nodes of a session; None if onnxruntime does not say.

    The session must have been made with RECORD_PLACES. The nodes are those that exist after the
    first optimisations, which do not depend on the provider.
    """
    ask = getattr(session, "get_provider_graph_assignment_info", None)
    if ask is None:
        return None
    return [
        ProviderPart(
            str(piece.ep_name), tuple((str(n.name), str(n.op_type)) for n in piece.get_nodes())
        )
        for piece in ask()
    ]


def placement(places: Sequence[ProviderPart] | None, wanted: Collection[str]) -> dict[str, str]:
    """Return conditions that say how much of a model ran outside of the `wanted` providers.

    Raises:
        RuntimeFailure: MODEL_UNSUPPORTED if no node ran on them: the time would then be the time of
            another provider.
    """
    if places is None:
        return {"nodes_on_cpu": "unknown"}
    left = [node for place in places if place.provider not in wanted for node in place.nodes]
    count = sum(len(place.nodes) for place in places)
    if count and len(left) == count:
        raise RuntimeFailure(
            "MODEL_UNSUPPORTED",
            f"{next(iter(wanted))} takes no node of the model: it does not know them in these "
            "element types, or its backend does not load",
        )
    told = {"nodes_on_cpu": f"{len(left)} of {count}"}
    if left:
        names = [f"{name or '?'} ({op})" for name, op in left[:_SHOWN]]
        more = len(left) - _SHOWN
        told["on_cpu"] = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    return told


def compiled_covers(
    original: Sequence[WireNode],
    kernels: Sequence[TracedKernel],
    places: Sequence[ProviderPart] | None,
    inputs: Collection[str],
) -> list[Cover]:
    """Return what each kernel covers if a provider compiled whole pieces of the graph.

    Such a session cannot save its optimised graph. The numbers in the names of compiled kernels
    follow the order in which `places` lists the pieces.

    Args:
        original: nodes of the model.
        kernels: kernels of the trace.
        places: what `read_places` returned.
        inputs: names of the model's inputs.
    """
    pieces = _pieces(kernels, places or ())
    owner = _owners(original, kernels, pieces)
    readers: dict[str, set[int | None]] = {}
    for index, node in enumerate(original):
        for tensor in node.inputs:
            readers.setdefault(tensor, set()).add(owner.get(index))
    made: dict[int, list[str]] = {position: [] for position in pieces}
    for index, node in enumerate(original):
        position = owner.get(index)
        if position in made:
            # Tensors that leave the piece: read by other pieces, or outputs of the model.
            made[position] += [t for t in node.outputs if t and readers.get(t) != {position}]
    wired = [
        WireNode(kernel.name, kernel.op, ("",), tuple(made.get(at, ())) or (f"kernel {at}",))
        for at, kernel in enumerate(kernels)
    ]
    return covers(original, wired, inputs)


def _pieces(
    kernels: Sequence[TracedKernel], places: Sequence[ProviderPart]
) -> dict[int, ProviderPart]:
    """Return the positions of the kernels that are compiled pieces, with the pieces."""
    single = {place.nodes[0][1] for place in places if len(place.nodes) == 1}
    found: dict[int, ProviderPart] = {}
    for provider in {place.provider for place in places} - {CPU}:
        mine = [place for place in places if place.provider == provider]
        numbered = []
        for position, kernel in enumerate(kernels):
            match = _NUMBERED.search(kernel.op)
            if kernel.provider == provider and match and kernel.op not in single:
                numbered.append((int(match.group("number")), position))
        if len(numbered) == len(mine):
            found.update((at, place) for (_, at), place in zip(sorted(numbered), mine))
    return found


def _owners(
    original: Sequence[WireNode],
    kernels: Sequence[TracedKernel],
    pieces: Mapping[int, ProviderPart],
) -> dict[int, int]:
    """Return node of the model -> position of its kernel.

    A node that was folded away belongs to the kernel of its neighbour.
    """
    index_of = {node.name: index for index, node in enumerate(original) if node.name}
    owner: dict[int, int] = {}
    for position, kernel in enumerate(kernels):
        names = [kernel.name]
        if position in pieces:
            names = [name for name, _ in pieces[position].nodes]
        for name in names:
            index = index_of.get(known_name(name, index_of))
            if index is not None:
                owner.setdefault(index, position)
    maker = {tensor: index for index, node in enumerate(original) for tensor in node.outputs}
    for index, node in enumerate(original):
        before = [owner[maker[t]] for t in node.inputs if maker.get(t) in owner]
        if index not in owner and before and before[-1] in pieces:
            owner[index] = before[-1]
    readers: dict[str, int] = {}
    for index in range(len(original) - 1, -1, -1):
        behind = [readers[t] for t in original[index].outputs if t in readers]
        if index not in owner and behind and behind[0] in pieces:
            owner[index] = behind[0]
        if index in owner:
            readers.update((tensor, owner[index]) for tensor in original[index].inputs)
    return owner
