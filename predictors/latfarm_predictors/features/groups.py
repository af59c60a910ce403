"""Groups and routes: which regressor predicts which kernel, also if its op was never measured.

A group is a set of kernel families that share one regressor (nn-Meter: Conv+x share one, DWConv+x
another). A kernel with too few measurements, or of an op that was never measured, is predicted by
the regressor of the most similar kernels; the answer says so in its source, and its standard
deviation is larger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from latfarm_predictors.features.table import Table, main_op
from latfarm_predictors.graph.op_sets import FREE_OPS, RECURRENT
from latfarm_predictors.kernels.families import MOVING_FAMILIES

LEAST_ROWS = 8
"""The smallest number of kernels from which a regressor of a group is fitted."""
_APART_ROWS = 30
"""With fewer kernels than this, a group is learned together with another."""
_JOINED = (("grouped_conv", "conv", 80), ("matmul", "fc", _APART_ROWS))
"""Groups, each with the group that it is learned with while it has fewer kernels than the number.

Grouped convolutions run at as many rates as there are widths of groups; fifty of them alone are
predicted up to twice as badly as beside the convolutions, which they do not disturb.
"""
MEMORY = "memory"
"""The group in which families with few kernels are learned together.

They have no group in `_GROUPS`. Bundles of older versions learned all such families together, so
that their routers know this group alone.
"""
_MOST_STAND_INS = 6
"""The largest number of measured ops over which a kernel of an unmeasured op is averaged."""

FAMILY_DOUBT = 0.4
"""Added log-sigma of a kernel that is predicted as other ops of its family."""
NEAREST_DOUBT = 0.7
"""Added log-sigma of a kernel that is predicted as ops of another, similar family."""
UNKNOWN_DOUBT = 1.2
"""Added log-sigma of a kernel that resembles nothing that was measured."""

_VIEW_GROUP = "view"
"""The group of views that were measured by themselves."""
VIEW = "fallback:view"
"""Source in answers for kernels that take next to no time: views (Reshape, Dropout...) that were
never measured by themselves, and ops that took no time in measured networks."""

# The group of each family; a family that is not listed has a group of its own name.
_GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "conv": "conv",
        "grouped_conv": "grouped_conv",
        "dwconv": "dwconv",
        "fc": "fc",
        "matmul": "matmul",
        "attention": "matmul",
        "pool": "pool",
        "global_pool": "pool",
    }
)

# For each family, the families that stand in for it, the most similar first.
_NEAREST: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "conv": ("grouped_conv", "dwconv"),
        "grouped_conv": ("conv", "dwconv"),
        "dwconv": ("grouped_conv", "conv"),
        "fc": ("matmul", "conv"),
        "matmul": ("fc", "attention", "conv"),
        "attention": ("matmul", "fc", "conv"),
        "pool": ("global_pool", "eltwise"),
        "global_pool": ("pool", "reduce"),
        "reduce": ("global_pool", "pool", "softmax", "eltwise"),
        "eltwise": ("norm", "concat", "move"),
        "norm": ("eltwise", "lrn"),
        "lrn": ("norm", "softmax", "eltwise"),
        "softmax": ("norm", "lrn", "eltwise"),
        "concat": ("move", "eltwise"),
        "move": ("concat", "eltwise"),
    }
)


def family_group(family: str, kernel_type: str) -> str:
    """The group of a kernel, before small groups are joined with others."""
    if family == "move" and main_op(kernel_type) in FREE_OPS:
        return _VIEW_GROUP
    return _GROUPS.get(family, family)


def broad_group(family: str, kernel_type: str) -> str:
    """The group of a kernel where all families without a listed group are one, `MEMORY`.

    Campaigns draw kernels of every such group, so that a few draws see all kinds of kernels.
    """
    return _broad(family_group(family, kernel_type))


def joined_group(joined: Mapping[str, str], family: str, kernel_type: str) -> str:
    """The group in which a kernel was learned, or would have been; "" if there is none.

    Args:
        joined: the group that is really used, by group before small groups are joined. That of an
            older bundle may name `MEMORY` instead of the kernel's own group.
        family: family of the kernel.
        kernel_type: type of the kernel.
    """
    return _learned(joined, family_group(family, kernel_type))


@dataclass(frozen=True, slots=True)
class Route:
    """How a kernel is predicted.

    Attributes:
        group: whose regressor predicts it; "" for the roofline over all kernels.
        types: kernel types as which it is predicted; the predictions are averaged.
        source: of the answer; "" stands for the name of the group's regressor.
        doubt: log-sigma that is added because other kernels stand in for it.
        reason: why its op counts as unknown; "" if it does not.
    """

    group: str
    types: tuple[str, ...]
    source: str = ""
    doubt: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Router:
    """Groups of a training set, and the route of any kernel.

    Attributes:
        joined: the group that is really used, by group before small groups are joined.
        seen: number of training kernels, by family and main op.
        tokens: ops that were measured fused behind others, by family.
        devices: device of the ops that run on another device than most, by family and main op: ops
            that a delegate leaves to the CPU have a regressor of their own.
        free: family and main op of kernels that took no time in measured networks.
    """

    joined: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[tuple[str, str], int] = field(default_factory=dict)
    tokens: Mapping[str, frozenset[str]] = field(default_factory=dict)
    devices: Mapping[tuple[str, str], str] = field(default_factory=dict)
    free: frozenset[tuple[str, str]] = frozenset()

    @staticmethod
    def of(table: Table, devices: Sequence[str] = ()) -> tuple[Router, dict[str, list[int]]]:
        """The router of a training table, and the rows of each of its groups.

        Args:
            table: n kernels.
            devices: the device of each, shape (n,); empty if all ran on the same.
        """
        elsewhere = _elsewhere(table, devices)
        rows: dict[str, list[int]] = {}
        kinds = zip(table.families, table.types, table.main_ops, strict=True)
        for row, (family, kind, op) in enumerate(kinds):
            rows.setdefault(
                _on(family_group(family, kind), elsewhere.get((family, op))), []
            ).append(row)
        joined = _join(rows)
        seen = Counter(zip(table.families, table.main_ops, strict=True))
        tokens: dict[str, set[str]] = {}
        for family, ops in zip(table.families, table.appended_ops, strict=True):
            tokens.setdefault(family, set()).update(ops)
        frozen = {family: frozenset(ops) for family, ops in tokens.items()}
        router = Router(joined, dict(seen), frozen, elsewhere)
        return router, rows

    def route(self, family: str, kernel_type: str) -> Route:
        """How a kernel of this family and type is predicted."""
        op = main_op(kernel_type)
        group = self.group(family, kernel_type)
        if (family, op) in self.seen:
            return Route(self._learned(group), (kernel_type,))
        if (family, op) in self.free:
            return Route("", (kernel_type,), VIEW, UNKNOWN_DOUBT)
        siblings = self._ops(family)
        if op in RECURRENT and siblings:  # many small products in turn, not a large one
            return self._stand_in(family, siblings, kernel_type, "nearest", NEAREST_DOUBT)
        if siblings and family != "other":
            return self._stand_in(family, siblings, kernel_type, "family", FAMILY_DOUBT)
        if group == _VIEW_GROUP:
            return Route("", (kernel_type,), VIEW, UNKNOWN_DOUBT)
        for near in _NEAREST.get(family, ()):
            relatives = self._ops(near)
            if relatives:
                return self._stand_in(near, relatives, kernel_type, "nearest", NEAREST_DOUBT)
        reason = f"no {family} kernel was ever measured: {op} is priced by an analytic roofline"
        if family == "other":
            reason = f"{op} was never measured and resembles nothing that was"
        return Route("", (kernel_type,), "fallback:analytic", UNKNOWN_DOUBT, reason)

    def group(self, family: str, kernel_type: str) -> str:
        """The group of a kernel before small groups are joined; it includes the device."""
        device = self.devices.get((family, main_op(kernel_type)))
        return _on(family_group(family, kernel_type), device)

    def unseen_tokens(self, family: str, kernel_type: str) -> int:
        """Number of ops behind the main one that were never measured behind this family."""
        _, *rest = _main_first(kernel_type)
        known = self.tokens.get(family, frozenset())
        return sum(op not in known and op not in FREE_OPS for op in rest)

    def to_json(self) -> dict[str, object]:
        """Return this object as plain JSON types."""
        return {
            "joined": dict(self.joined),
            "seen": [[family, op, count] for (family, op), count in self.seen.items()],
            "tokens": {family: sorted(ops) for family, ops in self.tokens.items()},
            "devices": [[family, op, device] for (family, op), device in self.devices.items()],
            "free": [[family, op] for family, op in sorted(self.free)],
        }

    @staticmethod
    def from_json(data: Mapping[str, object]) -> Router:
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: the data do not describe a router.
        """
        joined, seen, tokens = data["joined"], data["seen"], data["tokens"]
        if not (isinstance(joined, dict) and isinstance(seen, list) and isinstance(tokens, dict)):
            raise TypeError("a router holds two objects and a list")
        return Router(
            {str(k): str(v) for k, v in joined.items()},
            {(str(family), str(op)): int(count) for family, op, count in seen},
            {str(family): frozenset(map(str, ops)) for family, ops in tokens.items()},
            {(str(f), str(op)): str(device) for f, op, device in _list(data.get("devices", []))},
            frozenset((str(family), str(op)) for family, op in _list(data.get("free", []))),
        )

    def _ops(self, family: str) -> list[str]:
        """Measured main ops of a family without views, the most frequent first."""
        counts = {op: n for (name, op), n in self.seen.items() if name == family}
        working = [op for op in counts if op not in FREE_OPS]
        return sorted(working, key=lambda op: (-counts[op], op))[:_MOST_STAND_INS]

    def _stand_in(
        self, family: str, ops: Sequence[str], kernel_type: str, how: str, doubt: float
    ) -> Route:
        _, *rest = _main_first(kernel_type)
        types = tuple("+".join([op, *rest]) for op in ops)
        group = self._learned(self.group(family, ops[0]))
        return Route(group, types, f"fallback:{how}:{family}", doubt)

    def _learned(self, group: str) -> str:
        """The group in which kernels of a measured op were learned.

        Raises:
            KeyError: the router names no such group, so that it is damaged.
        """
        found = _learned(self.joined, group)
        if not found:
            raise KeyError(group)
        return found


def _main_first(kernel_type: str) -> list[str]:
    """The ops of a type with the main one in front."""
    ops = kernel_type.split("+")
    main = main_op(kernel_type)
    ops.remove(main)
    return [main, *ops]


def _on(group: str, device: str | None) -> str:
    return group if device is None else f"{group}@{device}"


def _broad(group: str) -> str:
    """The group before families without a listed group had their own; it keeps the device."""
    family, at, device = group.partition("@")
    listed = family == _VIEW_GROUP or family in _GROUPS.values()
    return group if listed else f"{MEMORY}{at}{device}"


def _learned(joined: Mapping[str, str], group: str) -> str:
    """The group in which kernels were or would have been learned; "" if there is none."""
    if found := joined.get(group):
        return found
    broad = _broad(group)
    return joined.get(broad) or (broad if broad in joined.values() else "")


def _join(rows: dict[str, list[int]]) -> dict[str, str]:
    """Join groups of few rows in `rows` with others.

    Returns:
        The group that is really used, by group before small groups are joined.
    """
    joined = {name: name for name in rows}
    families: dict[str, list[str]] = {}
    for name in rows:
        if (broad := _broad(name)) != name:
            families.setdefault(broad, []).append(name)
    both = [pair for pair in _JOINED if pair[0] in rows and pair[1] in rows]
    into = [(name, other) for name, other, least in both if len(rows[name]) < least]
    for broad, names in families.items():
        into += [(name, broad) for name in _few(rows, names)]
    for name, other in into:
        joined[name] = other
        rows[other] = sorted([*rows.get(other, ()), *rows.pop(name)])
    return joined


def _few(rows: Mapping[str, Sequence[int]], names: Sequence[str]) -> list[str]:
    """The families that are learned together.

    They are those of few kernels, and the one of most kernels where they are few together: a family
    of many kernels is predicted next to no worse because some others are learned with it. A family
    that computes is preferred: one process has one noise, and that of moves is large.
    """
    few = [name for name in names if len(rows[name]) < _APART_ROWS]
    many = [name for name in names if len(rows[name]) >= _APART_ROWS]
    if few and many and sum(len(rows[name]) for name in few) < _APART_ROWS:
        computing = [name for name in many if name.partition("@")[0] not in MOVING_FAMILIES]
        few.append(max(computing or many, key=lambda name: (len(rows[name]), name)))
    return few


def _elsewhere(table: Table, devices: Sequence[str]) -> dict[tuple[str, str], str]:
    """The device of most kernels of a family and main op, if most of all ran on another."""
    if len(set(devices)) < 2:
        return {}
    usual = Counter(devices).most_common(1)[0][0]
    counts: dict[tuple[str, str], Counter[str]] = {}
    ops = zip(table.families, table.main_ops, devices, strict=True)
    for family, op, device in ops:
        counts.setdefault((family, op), Counter())[device] += 1
    most = {place: found.most_common(1)[0][0] for place, found in counts.items()}
    return {place: device for place, device in most.items() if device != usual}


def _list(data: object) -> list[tuple[object, ...]]:
    if not isinstance(data, list):
        raise TypeError("a router's devices and free ops are lists")
    return [tuple(row) for row in data]
