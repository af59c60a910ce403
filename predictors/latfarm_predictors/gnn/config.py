"""The shape of an NNLP network and how it is trained, as immutable options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

Encoder = Literal["sage", "gcn", "none"]
"""sage: GraphSAGE, as NNLP. gcn: BRP-NAS' graph convolutions with a global node. none: the ablation
"wo/gnn" (Table 4), where the features of the nodes are summed as they are."""
Loss = Literal["relative", "squared", "log"]
"""relative: squared relative error, as in the paper's code. squared: squared error, as in the
paper; latencies count in units of their typical one. log: squared error of the logarithm."""
Output = Literal["linear", "log", "correction"]
"""linear: the head gives the latency, as in the paper. log: it gives the logarithm. correction:
each node, a kernel, gets a bounded correction of its predicted time, and these times are summed."""


@dataclass(frozen=True)
class NNLPConfig:
    """Options of NNLP; the defaults are those of the paper (section 8.1) and of its code.

    Attributes:
        encoder: how the nodes of a network see their neighbours.
        layers: number of layers of the encoder.
        hidden: width of each layer of the encoder.
        head_hidden: width of both hidden layers of a head.
        dropout: share of the values between the layers of a head that training sets to zero.
        node_features: False is the ablation "wo/F_v^0": only overall values are used.
        static_features: False is the ablation "wo/F_G^static": only nodes are used.
        log_sizes: whether sizes are read as logarithms. The paper reads them as they are.
        output: what a head gives.
        bound: largest size of the logarithm of a correction, where `output` is correction.
        loss: what training minimises.
        learning_rate: of Adam.
        decay: whether the learning rate falls to zero along a cosine.
        batch: number of networks in a step.
        epochs: largest number of passes over the training set.
        patience: training ends when so many epochs brought no better validation error.
        validation_share: share of the given networks that decides when training ends.
        calibration_share: share of the given networks that calibrates intervals.
        seed: random seed of first values, order, dropout and of the shares.

    Raises:
        ValueError: on construction, when a value is not allowed.
    """

    encoder: Encoder = "sage"
    layers: int = 2
    hidden: int = 512
    head_hidden: int = 512
    dropout: float = 0.05
    node_features: bool = True
    static_features: bool = True
    log_sizes: bool = False
    output: Output = "linear"
    bound: float = 0.7
    loss: Loss = "relative"
    learning_rate: float = 1e-3
    decay: bool = False
    batch: int = 16
    epochs: int = 50
    patience: int = 10
    validation_share: float = 0.1
    calibration_share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values that are not allowed."""
        for name, known in (("encoder", Encoder), ("loss", Loss), ("output", Output)):
            if getattr(self, name) not in get_args(known):
                raise ValueError(f"{name}: {getattr(self, name)!r} is none of {get_args(known)}")
        for name in ("layers", "hidden", "head_hidden", "batch", "epochs", "patience"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1e5:
                raise ValueError(f"{name}: {value!r} is no whole number from 1 to 100,000")
        for name, most in (("dropout", 1.0), ("learning_rate", 1e3), ("bound", 10.0)):
            if not 0 <= getattr(self, name) < most:
                raise ValueError(f"{name}: {getattr(self, name)} is not in [0, {most})")
        shares = (self.validation_share, self.calibration_share)
        if min(shares) < 0 or sum(shares) >= 1:
            raise ValueError("the shares for validation and calibration must leave some networks")
        if not (self.node_features or self.static_features):
            raise ValueError("without features of nodes and overall values nothing is left")
        if self.output == "linear" and self.loss == "log":
            raise ValueError("a linear output may be negative, so its loss cannot be a logarithm")
        if self.output == "correction" and not (self.node_features and self.encoder != "none"):
            raise ValueError("a correction of kernels needs their features and an encoder")

    def to_json(self) -> dict[str, Any]:
        """The options as plain JSON types."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> NNLPConfig:
        """Read what `to_json` wrote.

        Raises:
            ValueError: an option is unknown, or its value is not allowed.
        """
        unknown = sorted(set(data) - {each.name for each in fields(NNLPConfig)})
        if unknown:
            raise ValueError(f"unknown option {unknown[0]!r}")
        try:
            return NNLPConfig(**data)
        except TypeError as error:
            raise ValueError(f"an option has a value of a wrong type: {error}") from error


PAPER = NNLPConfig()
"""NNLP as published."""

BRP_NAS = replace(PAPER, encoder="gcn", layers=4, hidden=600, static_features=False)
"""BRP-NAS (Dudziak et al. 2020, section 3.1: four layers of 600 values and a global node), on the
features of NNLP's nodes, as NNLQP's appendix E does."""

ABLATIONS: Mapping[str, NNLPConfig] = {
    "wo/F_v^0": replace(PAPER, node_features=False),
    "wo/gnn": replace(PAPER, encoder="none"),
    "wo/F_G^static": replace(PAPER, static_features=False),
}
"""The three ablations of NNLQP's Table 4, by the names that it gives them."""

SMALL = replace(
    PAPER,
    hidden=128,
    head_hidden=128,
    log_sizes=True,
    output="log",
    loss="log",
    decay=True,
)
"""A smaller network on logarithms, which a processor with two cores trains in minutes."""

CORRECTION = replace(SMALL, output="correction")
"""Bounded corrections of the predicted times of kernels (not in the paper)."""
