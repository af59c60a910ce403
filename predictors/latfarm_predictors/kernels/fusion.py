"""Fusion rules of a platform: which ops it executes as one kernel (nn-Meter, section 4).

Rules say for an ordered pair of ops whether the runtime executes the second op within the kernel of
the first, and which branch, if any, is fused where a tensor has several readers or an op several
producers (the paper's Fig. 4). They are plain JSON, which people can read and edit:

```
{"format": 1, "platform": "pixel4-tflite2.14-fp32-1t", "multi_inbound": 1, "multi_outbound": 0,
 "attach_free_ops": true, "pairs": {"Conv+Relu": "fused", "MaxPool+Conv": "separate"}}
```
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, cast, get_args

from latfarm_predictors.errors import FusionRulesError
from latfarm_predictors.kernels.composites import COMPOSITES, LAYER_NORM, RMS_NORM, UNITS

Verdict = Literal["fused", "separate", "undecided"]
"""What is known about a pair of ops; "undecided": measurements did not settle it."""
Branch = Literal[0, 1, 2]
"""Which branch is fused where several meet: 0 none, 1 the first, 2 the last."""

FORMAT = 1
"""Version of the JSON format of fusion rules."""


UNIT_PAIRS = (
    (LAYER_NORM, "Mul:const"),
    (LAYER_NORM, "Add:const"),
    (RMS_NORM, "Mul:const"),
    ("MatMul", "Add:const"),
    ("MatMul", "Mul:const"),
    ("MatMul", "Div:const"),
)
"""Pairs that `with_units` cuts out together: scale and bias of a norm, bias of a linear layer, and
the scale of attention's scores."""


@dataclass(frozen=True)
class FusionRules:
    """What a runtime fuses. A pair of ops that is not listed is not fused.

    The product of a tensor and its own sigmoid does not count as a place where branches meet:
    "Sigmoid+Mul:gate" decides, or "Sigmoid+Mul" if no rule mentions gates. When both are one
    kernel, rules may call it Swish or HardSwish (`fusion_ops.GATED`).

    Attributes:
        pairs: verdicts by pair of ops; names as `fusion_ops.rule_op` gives them.
        multi_inbound: where an op has several producers, the branch that is fused, of those that
            the pairs allow.
        multi_outbound: where a tensor has several readers, the reader that is fused, of those that
            the pairs allow.
        platform: whose rules they are.
        version: of the JSON format.
        attach_free_ops: whether a view (Flatten, Dropout...) belongs to the kernel of its producer.
        whole: composites (`composites.COMPOSITES`) whose ops are one kernel wherever they occur.
            Pairs name these kernels by the composite, as in "LayerNorm+Mul:const". Rules of older
            campaigns have none.

    Raises:
        FusionRulesError: on construction, when a value is not allowed.
    """

    pairs: Mapping[tuple[str, str], Verdict] = field(default_factory=dict)
    multi_inbound: Branch = 0
    multi_outbound: Branch = 0
    platform: str = ""
    version: int = FORMAT
    attach_free_ops: bool = True
    whole: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse values that are not allowed."""
        if self.version != FORMAT:
            raise FusionRulesError(
                f"fusion rules of format {self.version!r}; this version reads {FORMAT}"
            )
        for name in ("multi_inbound", "multi_outbound"):
            value = getattr(self, name)
            if value not in (0, 1, 2) or isinstance(value, bool):
                raise FusionRulesError(
                    f"{name} is 0 (none), 1 (first) or 2 (last branch), not {value!r}"
                )
        unknown = sorted(self.whole.difference(COMPOSITES))
        if unknown:
            raise FusionRulesError(
                f"{unknown[0]!r} in whole is no composite; known: {', '.join(COMPOSITES)}"
            )
        for pair, verdict in self.pairs.items():
            if not (len(pair) == 2 and all(isinstance(op, str) and op for op in pair)):
                raise FusionRulesError(f"{pair!r} is not a pair of ops")
            if verdict not in get_args(Verdict):
                raise FusionRulesError(
                    f"{'+'.join(pair)} is fused, separate or undecided, not {verdict!r}"
                )

    @staticmethod
    def none(platform: str = "") -> FusionRules:
        """Rules without any fusion: every node is a kernel of its own, views too."""
        return FusionRules(platform=platform, attach_free_ops=False)

    def verdict(self, first: str, second: str) -> Verdict:
        """The verdict about a pair; "undecided" if it is not listed."""
        return self.pairs.get((first, second), "undecided")

    def fuses(self, first: str, second: str) -> bool:
        """Whether `second` right behind `first` runs within the kernel of `first`."""
        return self.verdict(first, second) == "fused"

    @cached_property
    def followers(self) -> frozenset[str]:
        """Ops that are fused behind some op; every other op begins a kernel."""
        return frozenset(second for (_, second), v in self.pairs.items() if v == "fused")

    @cached_property
    def named(self) -> frozenset[str]:
        """All ops that a pair names, whatever its verdict."""
        return frozenset(op for pair in self.pairs for op in pair)

    def replace_pairs(self, pairs: Mapping[tuple[str, str], Verdict]) -> FusionRules:
        """The same rules with these pairs added or replaced."""
        return replace(self, pairs={**self.pairs, **pairs})

    def to_json(self) -> dict[str, Any]:
        """The rules as plain JSON types; `from_json` reads equal rules from them."""
        return {
            "format": self.version,
            "platform": self.platform,
            "multi_inbound": self.multi_inbound,
            "multi_outbound": self.multi_outbound,
            "attach_free_ops": self.attach_free_ops,
            **({"whole": sorted(self.whole)} if self.whole else {}),
            "pairs": {"+".join(pair): self.pairs[pair] for pair in sorted(self.pairs)},
        }

    @staticmethod
    def from_json(data: Any) -> FusionRules:
        """Read what `to_json` wrote.

        Raises:
            FusionRulesError: the data are not valid rules; the message names the entry.
        """
        if not isinstance(data, Mapping):
            raise FusionRulesError(f"fusion rules are a JSON object, not {type(data).__name__}")
        if "format" not in data:
            raise FusionRulesError('fusion rules name their "format"; this version reads 1')
        unknown = sorted(set(data) - {*FusionRules().to_json(), "whole"})
        if unknown:
            raise FusionRulesError(f"fusion rules have no entry {unknown[0]!r}")
        listed = data.get("pairs", {})
        if not isinstance(listed, Mapping):
            raise FusionRulesError('"pairs" is an object such as {"Conv+Relu": "fused"}')
        pairs: dict[tuple[str, str], Verdict] = {}
        for key, verdict in listed.items():
            first, plus, second = str(key).partition("+")
            if not plus or "+" in second:
                raise FusionRulesError(f'a pair is written "Conv+Relu", not {key!r}')
            pairs[first, second] = verdict
        attach = data.get("attach_free_ops", True)
        if not isinstance(attach, bool):
            raise FusionRulesError(f'"attach_free_ops" is true or false, not {attach!r}')
        whole = data.get("whole", [])
        if not isinstance(whole, list) or not all(isinstance(name, str) for name in whole):
            raise FusionRulesError(f'"whole" is a list of composites, not {whole!r}')
        return FusionRules(
            pairs=pairs,
            multi_inbound=data.get("multi_inbound", 0),
            multi_outbound=data.get("multi_outbound", 0),
            platform=str(data.get("platform", "")),
            version=data["format"],
            attach_free_ops=attach,
            whole=frozenset(whole),
        )

    def dumps(self) -> str:
        """Readable JSON text of `to_json`."""
        return json.dumps(self.to_json(), indent=2) + "\n"

    @staticmethod
    def loads(text: str) -> FusionRules:
        """Read what `dumps` wrote.

        Raises:
            FusionRulesError: the text is not JSON, or not valid rules.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise FusionRulesError(f"fusion rules are not JSON: {error}") from error
        return FusionRules.from_json(data)


def all_pairs(ops: Iterable[str], verdict: str = "fused") -> dict[tuple[str, str], Verdict]:
    """Every ordered pair of `ops` with the same verdict: a start for rules written by hand."""
    names = list(ops)
    return {(first, second): cast(Verdict, verdict) for first in names for second in names}


def with_units(rules: FusionRules) -> FusionRules:
    """The rules, with the parts of transformers cut out as the units that networks have them in.

    Layer norms, RMS norms and Gelus become kernels of their own, and the pairs of `UNIT_PAIRS` that
    are undecided run together. This needs no test: the time of several ops together is a kernel's
    time too, whether or not the runtime runs them as one.
    """
    undecided = [pair for pair in UNIT_PAIRS if rules.verdict(*pair) == "undecided"]
    joined = rules.replace_pairs(dict.fromkeys(undecided, "fused"))
    return replace(joined, whole=joined.whole.union(UNITS))
