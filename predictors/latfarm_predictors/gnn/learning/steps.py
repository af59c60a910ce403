"""One training run of an NNLP network: steps of Adam, and errors of validation networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import Any

import numpy as np

from latfarm_predictors.features.table import Array, Rows
from latfarm_predictors.gnn.config import NNLPConfig
from latfarm_predictors.gnn.encoded import GraphBatch, stack
from latfarm_predictors.gnn.labelled import Labelled, by_platform, latencies
from latfarm_predictors.gnn.learning.device import torch_module
from latfarm_predictors.gnn.learning.torch_ops import Tensor, TorchOps
from latfarm_predictors.gnn.network import forward
from latfarm_predictors.gnn.nnlp import ratios
from latfarm_predictors.gnn.parameters import Single
from latfarm_predictors.gnn.scaling import Scaling

_VALIDATE_AT_ONCE = 64
"""Number of networks that are validated together."""


@dataclass(frozen=True)
class _Ready:
    """Measured networks with scaled features.

    Attributes:
        rows: the networks.
        nodes: scaled features of the nodes of each.
        static: scaled overall values, shape (n, 4).
        latency_ms: of each, shape (n,).
    """

    rows: Sequence[Labelled]
    nodes: Sequence[Array]
    static: Array
    latency_ms: Array

    @staticmethod
    def of(rows: Sequence[Labelled], scaling: Scaling) -> _Ready:
        """Scale the features once, before all epochs."""
        graphs = [row.graph for row in rows]
        nodes = [scaling.nodes(graph) for graph in graphs]
        return _Ready(rows, nodes, scaling.static(graphs), latencies(rows))

    def batch(self, places: Sequence[int], *, global_node: bool) -> GraphBatch:
        """Some of the networks side by side."""
        return stack(
            [self.nodes[at] for at in places],
            self.static[list(places)],
            [self.rows[at].graph for at in places],
            global_node=global_node,
        )


class TrainingRun:
    """Parameters under training.

    Args:
        config: the network and how it is trained.
        scaling: of its features.
        scales_ms: typical latency of each platform.
        parameters: their first values.
        device: on which torch computes.
    """

    def __init__(
        self,
        config: NNLPConfig,
        scaling: Scaling,
        scales_ms: Mapping[str, float],
        parameters: Mapping[str, Single],
        device: str,
    ) -> None:
        torch = torch_module()
        self._config, self._scaling, self._scales_ms = config, scaling, scales_ms
        self._parameters: dict[str, Tensor] = {
            name: torch.tensor(value, device=device, requires_grad=True)
            for name, value in parameters.items()
        }
        self._adam = torch.optim.Adam(self._parameters.values(), lr=config.learning_rate)
        self._training = TorchOps(device, config.dropout, config.seed)
        self._plain = TorchOps(device)
        self._global_node = config.encoder == "gcn"
        self._steps = 0

    def values(self) -> dict[str, Single]:
        """A copy of the parameters."""
        return {
            name: np.array(each.detach().cpu().numpy(), dtype=np.float32)
            for name, each in self._parameters.items()
        }

    def ready(self, rows: Sequence[Labelled]) -> _Ready:
        """Measured networks as `epoch` and `error` take them."""
        return _Ready.of(rows, self._scaling)

    def epoch(self, seen: _Ready, number: int) -> float:
        """Take each network once, in an order that the seed and the number of the epoch draw.

        Returns:
            The mean loss over all networks.
        """
        config = self._config
        count = len(seen.rows)
        order: Rows = np.random.default_rng([config.seed, number]).permutation(count)
        every = -(-count // config.batch) * config.epochs
        total = 0.0
        for start in range(0, count, config.batch):
            part = order[start : start + config.batch].tolist()
            self._adam.zero_grad()
            loss = self._loss(seen, part)
            loss.backward()
            if config.decay:
                rate = config.learning_rate * 0.5 * (1.0 + cos(pi * min(self._steps / every, 1.0)))
                for group in self._adam.param_groups:
                    group["lr"] = rate
            self._adam.step()
            self._steps += 1
            total += float(loss.detach()) * len(part)
        return total / count

    def error(self, seen: _Ready) -> float:
        """Mean absolute relative error of networks, without dropout."""
        predicted = np.empty(len(seen.rows))
        for platform, places in by_platform(seen.rows).items():
            scale_ms = self._scales_ms[platform]
            for start in range(0, len(places), _VALIDATE_AT_ONCE):
                part = places[start : start + _VALIDATE_AT_ONCE]
                with torch_module().no_grad():
                    values = self._forward(self._plain, seen, part, platform)
                told = values.cpu().numpy().astype(np.float64)
                predicted[part] = scale_ms * ratios(told, self._config)
        return float(np.mean(np.abs(predicted / seen.latency_ms - 1.0)))

    def _loss(self, seen: _Ready, part: Sequence[int]) -> Tensor:
        """The mean loss of some networks; each is seen by its platform's head (Algorithm 1)."""
        losses: list[Any] = []
        for platform, inside in by_platform([seen.rows[at] for at in part]).items():
            places = [part[at] for at in inside]
            values = self._forward(self._training, seen, places, platform)
            ratio = self._plain.array(seen.latency_ms[places] / self._scales_ms[platform])
            losses.append(self._errors(values, ratio).sum())
        return sum(losses[1:], losses[0]) / len(part)

    def _errors(self, values: Tensor, ratio: Tensor) -> Tensor:
        """The loss of each network, from what the head says and latency / typical latency."""
        loss = self._config.loss
        if self._config.output == "linear":
            return (values / ratio - 1.0) ** 2 if loss == "relative" else (values - ratio) ** 2
        off = values - ratio.log()
        if loss == "log":
            return off**2
        return (off.exp() - 1.0) ** 2 if loss == "relative" else (values.exp() - ratio) ** 2

    def _forward(self, ops: TorchOps, seen: _Ready, places: Sequence[int], platform: str) -> Tensor:
        batch = seen.batch(places, global_node=self._global_node)
        scale_ms = self._scales_ms[platform]
        return forward(ops, self._config, self._parameters, batch, platform, scale_ms)
