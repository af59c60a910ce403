"""Fusion rules of a platform, and the kernels of a network under them (nn-Meter, section 4).

Rules say for an ordered pair of ops whether the runtime executes the second within the first's
kernel, and which branch, if any, is fused where a tensor forks or joins (the paper's Fig. 4).
They are plain JSON, made to be read and edited:

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

Verdict = Literal["fused", "separate", "undecided"]
Branch = Literal[0, 1, 2]

FORMAT = 1


@dataclass(frozen=True)
class FusionRules:
    """What a runtime fuses, by the ops' names (`rule_op`). A pair that is not listed is not fused.

    `multi_inbound` and `multi_outbound`: where an op has several producers, or a tensor several
    readers, 0 fuses none of them, 1 the first and 2 the last that the pairs allow. A product of a
    tensor and its own sigmoid joins no branches: "Sigmoid+Mul:gate" decides, or where no rule tells
    of gates "Sigmoid+Mul"; once both are one, rules may call them Swish or HardSwish. With
    `attach_free_ops` a view (Flatten, Dropout...) belongs to its producer's kernel.

    Raises:
        FusionRulesError: on construction, when a value is none of the allowed.
    """

    pairs: Mapping[tuple[str, str], Verdict] = field(default_factory=dict)
    multi_inbound: Branch = 0
    multi_outbound: Branch = 0
    platform: str = ""
    version: int = FORMAT
    attach_free_ops: bool = True

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
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
        for pair, verdict in self.pairs.items():
            if not (len(pair) == 2 and all(isinstance(op, str) and op for op in pair)):
                raise FusionRulesError(f"{pair!r} is no pair of ops")
            if verdict not in get_args(Verdict):
                raise FusionRulesError(
                    f"{'+'.join(pair)} is fused, separate or undecided, not {verdict!r}"
                )

    @staticmethod
    def none(platform: str = "") -> FusionRules:
        """Nothing fuses: every node is a kernel of its own, views too."""
        return FusionRules(platform=platform, attach_free_ops=False)

    def verdict(self, first: str, second: str) -> Verdict:
        """What is known of a pair; "undecided" when it is not listed."""
        return self.pairs.get((first, second), "undecided")

    def fuses(self, first: str, second: str) -> bool:
        """Whether `second` right after `first` runs within its kernel."""
        return self.verdict(first, second) == "fused"

    @cached_property
    def followers(self) -> frozenset[str]:
        """What is fused behind anything at all: all other ops begin kernels."""
        return frozenset(second for (_, second), v in self.pairs.items() if v == "fused")

    @cached_property
    def named(self) -> frozenset[str]:
        """What any rule at all, of whatever verdict, tells of."""
        return frozenset(op for pair in self.pairs for op in pair)

    def replace_pairs(self, pairs: Mapping[tuple[str, str], Verdict]) -> FusionRules:
        """The same rules with these pairs added or overruled."""
        return replace(self, pairs={**self.pairs, **pairs})

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types; `from_json` reads it back equal."""
        return {
            "format": self.version,
            "platform": self.platform,
            "multi_inbound": self.multi_inbound,
            "multi_outbound": self.multi_outbound,
            "attach_free_ops": self.attach_free_ops,
            "pairs": {"+".join(pair): self.pairs[pair] for pair in sorted(self.pairs)},
        }

    @staticmethod
    def from_json(data: Any) -> FusionRules:
        """Read what `to_json` wrote.

        Raises:
            FusionRulesError: the data are no rules; the message names the entry.
        """
        if not isinstance(data, Mapping):
            raise FusionRulesError(f"fusion rules are a JSON object, not {type(data).__name__}")
        if "format" not in data:
            raise FusionRulesError('fusion rules name their "format"; this version reads 1')
        unknown = sorted(set(data) - set(FusionRules().to_json()))
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
        return FusionRules(
            pairs=pairs,
            multi_inbound=data.get("multi_inbound", 0),
            multi_outbound=data.get("multi_outbound", 0),
            platform=str(data.get("platform", "")),
            version=data["format"],
            attach_free_ops=attach,
        )

    def dumps(self) -> str:
        """Readable JSON text of `to_json`."""
        return json.dumps(self.to_json(), indent=2) + "\n"

    @staticmethod
    def loads(text: str) -> FusionRules:
        """Read what `dumps` wrote.

        Raises:
            FusionRulesError: the text is no JSON, or no rules.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise FusionRulesError(f"fusion rules are no JSON: {error}") from error
        return FusionRules.from_json(data)


def all_pairs(ops: Iterable[str], verdict: str = "fused") -> dict[tuple[str, str], Verdict]:
    """Every ordered pair of `ops` with one verdict; a start for rules written by hand."""
    names = list(ops)
    return {(first, second): cast(Verdict, verdict) for first in names for second in names}
