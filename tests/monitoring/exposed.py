"""Names of metrics: those that agent and controller expose, and those that expressions use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from latfarm_agent.service.monitoring.metrics import AgentMetrics as AgentMetrics
from latfarm_agent.service.tls import AgentTlsFiles
from latfarm_controller.config import ControllerConfig
from latfarm_controller.farm.observer import FarmState, QueueState
from latfarm_controller.metrics.metrics import ControllerMetrics as ControllerMetrics
from latfarm_controller.metrics.state import ControllerCertificateCollector, StoreCollector
from prometheus_client import CollectorRegistry

PROMETHEUS = frozenset({"up", "ALERTS"})
_NAME = re.compile(r"\b(?:latfarm[a-z_]*:[a-z_]+:[a-z0-9_]+|latfarm_[a-z_0-9]+|up)\b(?!\s*\()")


def names_in(expression: str) -> set[str]:
    """The metrics that an expression uses, without the values of its labels."""
    plain = re.sub(
        r'\{__name__=~"latfarm_\(agent\|controller\)(\w+)"\}',
        r"latfarm_agent\1 latfarm_controller\1",
        expression,
    )
    return set(_NAME.findall(re.sub(r'"[^"]*"', "", plain)))


def metrics() -> set[str]:
    """All names of series that may be scraped, from the registries themselves."""
    nowhere = Path("/nonexistent")
    agent = AgentMetrics()
    agent.watch_files(Path("/"), AgentTlsFiles(nowhere, nowhere, nowhere))
    agent.conditions.saw(
        {"temperature_c": "40", "clock_mhz": "1000", "throttling": "0", "load_1m": "0.1"}
    )
    controller = ControllerMetrics()
    controller.farm.saw(FarmState({"p": QueueState(1, 1, 1.0)}, {"b": "ready"}))
    controller.registry.register(StoreCollector(Path("/store.duckdb")))
    controller.registry.register(ControllerCertificateCollector(ControllerConfig(home=nowhere)))
    return names_of(agent.registry) | names_of(controller.registry) | PROMETHEUS


def names_of(registry: CollectorRegistry) -> set[str]:
    """The names of all series of a registry, even of those without a sample yet."""
    found: set[str] = set()
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    for family in registry.collect():
        found |= {f"{family.name}{end}" for end in suffixes.get(family.type, ("",))}
    return found


def rules(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """All rules in these files."""
    files = [yaml.safe_load(path.read_text()) for path in paths]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def expressions_of_rules(paths: Iterable[Path]) -> list[str]:
    """The expressions of the rules."""
    return [rule["expr"] for rule in rules(paths)]


def records(paths: Iterable[Path]) -> set[str]:
    """The names of the series that recording rules make."""
    return {rule["record"] for rule in rules(paths) if "record" in rule}
