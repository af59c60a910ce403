"""Chains of ops that a simulated board runs as one kernel, for example a decomposed layer norm."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

Nodes = Sequence[Mapping[str, Any]]


def chains_of(
    graph: Mapping[str, Any], readers: Mapping[str, Sequence[int]], wanted: Sequence[Sequence[str]]
) -> list[list[int]]:
    """Return the groups of nodes that are chains, each as ascending indices; none overlap.

    A chain begins with a node of its first op. Each further op is the next node of that op in the
    file that reads a result of the chain or, besides weights, only what its first node reads. Only
    the last result of a chain is read outside.

    Args:
        graph: the graph as plain JSON.
        readers: indices of the nodes that read each tensor.
        wanted: the ops of each chain, in the order of the file; longer chains come first.
    """
    nodes: Nodes = graph["nodes"]
    taken: set[int] = set()
    found: list[list[int]] = []
    for start in range(len(nodes)):
        for ops in wanted:
            chain = None if start in taken else _chain(graph, start, ops)
            if chain is None or taken.intersection(chain):
                continue
            if _is_closed(graph, chain, readers):
                taken.update(chain)
                found.append(chain)
                break
    return found


def _chain(graph: Mapping[str, Any], start: int, ops: Sequence[str]) -> list[int] | None:
    nodes: Nodes = graph["nodes"]
    if not ops or nodes[start]["op"] != ops[0]:
        return None
    source = _activations(graph, nodes[start])
    made = set(nodes[start]["outputs"])
    chain = [start]
    for op in ops[1:]:
        following = None
        for index in range(chain[-1] + 1, len(nodes)):
            read = _activations(graph, nodes[index])
            if nodes[index]["op"] == op and (made & read or (read and read <= source)):
                following = index
                break
        if following is None:
            return None
        chain.append(following)
        made.update(nodes[following]["outputs"])
    return chain


def _activations(graph: Mapping[str, Any], node: Mapping[str, Any]) -> set[str]:
    return {tensor for tensor in node["inputs"] if tensor and tensor not in graph["weights"]}


def _is_closed(
    graph: Mapping[str, Any], chain: Sequence[int], readers: Mapping[str, Sequence[int]]
) -> bool:
    """Tell whether nothing outside a chain reads its inner tensors."""
    inner = [tensor for index in chain[:-1] for tensor in graph["nodes"][index]["outputs"]]
    return all(
        tensor not in graph["outputs"] and set(chain).issuperset(readers.get(tensor, ()))
        for tensor in inner
    )
