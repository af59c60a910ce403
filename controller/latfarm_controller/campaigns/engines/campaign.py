"""Compares all platforms of one board on the same networks (MNN, Jiang et al. 2020, section 4).

A change of the board that affects all engines must not look like a difference between them. So
everything is measured in several passes, each in another random order, with a sentinel before each
group of platforms that share a model. Where the sentinel shifts, the group is measured again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.measurement import NETWORK, Measurement, Outcome, Settings
from pydantic import Field, field_validator

from latfarm_controller import zoo
from latfarm_controller.campaigns import sentinels
from latfarm_controller.campaigns.engines.platforms import ComparedPlatform
from latfarm_controller.campaigns.engines.results import Cell, cells_json, pooled
from latfarm_controller.campaigns.options import CampaignOptions, SettingsChange
from latfarm_controller.campaigns.plans import Asker, Batch, Plan, PlannedCampaign
from latfarm_controller.errors import UsageError

NETWORKS = ("mobilenet-v1", "squeezenet", "resnet18", "inception-v3")
"""The paper's networks: MobileNet-v1, SqueezeNet-v1.1 and ResNet-18 at 224 pixels, and
Inception-v3 (Figure 8) as published, at 299."""

PURPOSE = "engine"
"""The purpose, in the store, of networks measured for a comparison."""
Protocol = Literal["latfarm", "mnn"]
"""How a network is measured. `latfarm`: the median of sessions. `mnn`: the mean of 10 runs after
one warm-up, as in the paper's section 4.1."""

SETTINGS: Mapping[str, Settings] = {
    "latfarm": replace(NETWORK, sessions=2),
    # One warm-up after the first run, then ten runs, however long or steady they are.
    "mnn": replace(
        NETWORK,
        sessions=1,
        warmup_runs=0,
        warmup_ms=0.0,
        min_runs=10,
        max_runs=10,
        max_ms=120_000.0,
        precision=0.0,
    ),
}
"""The settings of one pass, by protocol."""


MARK = replace(NETWORK, sessions=1, max_ms=300.0)
"""How the sentinel is measured: short, since it only shows whether the board has changed."""


class EngineOptions(CampaignOptions):
    """Configuration of a comparison.

    Attributes:
        networks: names of zoo families.
        resolution: height and width of images in pixels; None: as published.
        passes: how often each network is measured on each platform.
        protocol: how a network is measured.
        settings: changes of the measurement settings.
        seed: random seed of the order of measurements.
        threads: numbers of threads to keep; empty keeps all.
        dtypes: element types to keep; empty keeps all.
        simulated: also take platforms whose latencies are simulated.
        board: name of the board; it may be empty where only one board offers such platforms.
        board_id: id of the board; filled in when the campaign starts.
        hardware: description of the board; filled in when the campaign starts.
        offers: the platforms; filled in when the campaign starts.
        missing: platforms that the board lacks, and why; filled in when the campaign starts.
    """

    networks: list[str] = Field(default_factory=lambda: list(NETWORKS), min_length=1)
    resolution: int | None = Field(default=None, ge=1)
    passes: int = Field(default=3, ge=1, le=100)
    protocol: Protocol = "latfarm"
    settings: SettingsChange = SettingsChange()
    seed: int = 0
    threads: list[int] = Field(default_factory=list)
    dtypes: list[str] = Field(default_factory=list)
    simulated: bool = False
    board: str = ""
    board_id: str = ""
    hardware: dict[str, str] = Field(default_factory=dict)
    offers: list[ComparedPlatform] = Field(default_factory=list)
    missing: dict[str, str] = Field(default_factory=dict)

    @field_validator("networks")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        for name in names:
            try:
                zoo.find(name)
            except UsageError as error:
                raise ValueError(str(error)) from error
        if len(set(names)) < len(names):
            raise ValueError("name each network once only")
        return names


@dataclass(frozen=True)
class _Unit:
    """Platforms that run the same built model of a network, measured one after the other."""

    network: str
    offers: tuple[ComparedPlatform, ...]


class EnginesCampaign(PlannedCampaign):
    """Measures each network on each platform in every pass."""

    kind = "engines"
    stages = ("engines",)

    def __init__(self, pattern: str, options: EngineOptions) -> None:
        super().__init__(pattern)
        self.options = options
        self._settings = options.settings.apply(SETTINGS[options.protocol])
        self._askers = {found.name: Asker(found.name, options.board_id) for found in options.offers}
        self._graphs: dict[str, Graph] = {}
        self._passes: dict[tuple[str, str], list[Measurement]] = {}
        self._sentinels: list[Measurement] = []
        self._void: dict[str, float] = {}
        self._done_steps = 0

    def plan(self) -> Plan:
        """Pass by pass and unit by unit, with sentinels; then once more what a shift made void."""
        options = self.options
        for name in options.networks:
            family, seed = zoo.find(name)
            self._graphs[name] = family.build(resolution=options.resolution, seed=seed, label=name)
        units = list(self._units())
        steps = sum(len(unit.offers) for unit in units)
        total = options.passes * (steps + (len(units) + 1) * bool(self._reference))
        for number in range(options.passes):
            random = Random(f"{options.seed} {number}")
            random.shuffle(units)
            for unit in units:
                order = [found for found in unit.offers if not self._hopeless(unit, found)]
                random.shuffle(order)
                if order:
                    yield from self._measure(unit.network, order, total)
            yield from self._measure("", [], total)
        judged = [m for found in self._passes.values() for m in found]
        self._void = sentinels.void_shifts(self._sentinels, judged)
        yield from self._again()

    def _units(self) -> Iterator[_Unit]:
        """For each network, the platforms grouped by the model that they run."""
        for network in self.options.networks:
            by_model: dict[tuple[str, str], list[ComparedPlatform]] = {}
            for found in self.options.offers:
                by_model.setdefault((found.model_format, found.dtype), []).append(found)
            for offers in by_model.values():
                yield _Unit(network, tuple(offers))

    def _hopeless(self, unit: _Unit, found: ComparedPlatform) -> bool:
        """Whether the model itself failed on this platform, so that it would fail again."""
        passes = self._passes.get((unit.network, found.name), [])
        return any(m.outcome is Outcome.MODEL_ERROR for m in passes)

    @property
    def _reference(self) -> ComparedPlatform | None:
        """The platform of the sentinel: fp32 if there is one, then as few threads as possible."""
        timed = [found for found in self.options.offers if found.real_time]
        return min(
            timed,
            key=lambda found: (found.dtype != "fp32", found.threads or 1000, found.name),
            default=None,
        )

    def _measure(self, network: str, order: list[ComparedPlatform], total: int) -> Plan:
        """A sentinel, then one network on platforms in this order."""
        requests = []
        reference = self._reference
        if reference is not None:
            mark = self._askers[reference.name].request(
                sentinels.sentinel_kernel(), sentinels.PURPOSE, MARK, label="sentinel"
            )
            requests.append(mark)
        asked = {}
        for found in order:
            request = self._askers[found.name].request(
                self._graphs[network],
                PURPOSE,
                self._settings,
                label=f"{network} on {found.name}",
            )
            asked[request.request_id] = (network, found.name)
            requests.append(request)
        answers = yield Batch("engines", requests, self._done_steps, max(total, self._done_steps))
        self._done_steps += len(requests)
        for request_id, measurement in answers.items():
            if request_id in asked:
                self._passes.setdefault(asked[request_id], []).append(measurement)
            else:
                self._sentinels.append(measurement)

    def _again(self) -> Plan:
        """Measure once more what was measured while the sentinel had shifted."""
        lost: dict[str, list[ComparedPlatform]] = {}
        by_name = {found.name: found for found in self.options.offers}
        for (network, platform), passes in self._passes.items():
            bad = [m for m in passes if m.request_id in self._void]
            if bad:
                lost.setdefault(network, []).extend(by_name[platform] for _ in bad)
        first = self._done_steps
        total = sum(len(offers) + bool(self._reference) for offers in lost.values())
        for network, offers in sorted(lost.items()):
            yield from self._measure(network, offers, first + total)

    def cells(self) -> list[Cell]:
        """The table's cells so far, in the order of networks and platforms."""
        return [
            self._cell(network, found) for network in self._graphs for found in self.options.offers
        ]

    def _cell(self, network: str, found: ComparedPlatform) -> Cell:
        """A network on a platform, without its void passes where there is another good one.

        A drifted latency is better than none, but it is told as unstable.
        """
        passes = self._passes.get((network, found.name), [])
        kept = [m for m in passes if m.request_id not in self._void]
        steady = any(m.ok for m in kept)
        mean = self.options.protocol == "mnn"
        cell = pooled(network, self._graphs[network], found, kept if steady else passes, mean=mean)
        return cell if steady or cell.latency_ms is None else replace(cell, unstable=True)

    def outcome(self) -> Mapping[str, Any]:
        """The table's cells, how steady the board was, and the conditions of the measurements."""
        options = self.options
        measured = [m for found in self._passes.values() for m in found]
        conditions = next((dict(m.conditions) for m in measured if m.ok), {})
        times = [m.told_at_s for m in measured if m.ok]
        return {
            "protocol": options.protocol,
            "passes": options.passes,
            "settings": {
                name: getattr(self._settings, name) for name in Settings.__dataclass_fields__
            },
            "board": options.board,
            "board_id": options.board_id,
            "hardware": dict(options.hardware),
            "networks": [
                {"name": name, "graph": graph.name, "hash": hash_of(graph), "macs": macs_of(graph)}
                for name, graph in self._graphs.items()
            ],
            "resolution": options.resolution,
            "platforms": [found.model_dump() for found in options.offers],
            "missing": dict(options.missing),
            "cells": cells_json(self.cells()),
            "sentinel_platform": self._reference.name if self._reference else "",
            "sentinel": [drift.to_json() for drift in sentinels.drift_of(self._sentinels)],
            "void": len(self._void),
            "conditions": conditions,
            "measured_at_s": [min(times, default=0.0), max(times, default=0.0)],
        }
