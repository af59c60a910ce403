"""Measures whole networks: given ones, or a set from the zoo that calibrates a predictor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from statistics import median
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import NETWORK, Measurement, Settings
from latfarm_predictors.samples import NetworkSample
from pydantic import Field, model_validator

from latfarm_controller.campaigns.energy import energy_story, network_energy
from latfarm_controller.campaigns.networks.calibration import VARIANTS, Draw, calibration_networks
from latfarm_controller.campaigns.options import CampaignOptions, SettingsChange, read_graphs
from latfarm_controller.campaigns.plans import Asker, Batch, Plan, PlannedCampaign

SETTINGS = replace(NETWORK, warmup_runs=2, warmup_ms=50.0, min_runs=3, max_ms=700.0)
"""How networks are measured: five sessions of at most a second each, for latencies up to 150 ms."""
PURPOSE = "network"
"""The purpose, in the store, of whole networks."""


class NetworkOptions(CampaignOptions):
    """Configuration of a campaign that measures networks, either given or drawn.

    Attributes:
        graphs: the networks, in JSON form.
        calibration: without `graphs`, how many networks to draw from the zoo.
        passes: how often each network is measured, at different times. The sessions in the settings
            are divided among the passes.
        earlier_passes: number of passes of the same networks that other campaigns measure. Without
            it, a pass with the same settings would be the same request as theirs, and would not be
            measured again while theirs is under way.
        seed: random seed of the draw and of the order of measurements.
        exclude_lineages: lineages whose families are left out of the draw.
        least_macs: least multiply-adds of a drawn network.
        most_macs: most multiply-adds of a drawn network.
        draw: how networks are drawn, see `networks.calibration`.
        exclude: hashes of networks that must not be drawn.
        profile: ask for layer times in the first pass; only for platforms that have a profiler.
        settings: changes of the measurement settings.
    """

    graphs: list[dict[str, Any]] = Field(default_factory=list)
    calibration: int = Field(default=0, ge=0)
    passes: int = Field(default=1, ge=1)
    earlier_passes: int = Field(default=0, ge=0)
    seed: int = 0
    exclude_lineages: list[str] = Field(default_factory=list)
    least_macs: float = Field(default=6e7, gt=0)
    most_macs: float = Field(default=6e9, gt=0)
    draw: Draw = VARIANTS
    exclude: list[str] = Field(default_factory=list)
    profile: bool = False
    settings: SettingsChange = SettingsChange()

    @model_validator(mode="after")
    def _one_of_two(self) -> NetworkOptions:
        if bool(self.graphs) == bool(self.calibration):
            raise ValueError("give either graphs or calibration (a number of networks)")
        if self.least_macs >= self.most_macs:
            raise ValueError("least_macs must be less than most_macs")
        return self


def pooled_network(graph: Graph, passes: list[Measurement]) -> NetworkSample | None:
    """One sample from a network's good measurements; None without any.

    The latency is the median over the passes. Each pass counts the same however many sessions it
    has, because what changes on a host changes between passes. The deviation is the largest of
    three: that between passes, that between all sessions, and that between runs.
    """
    good = [m for m in passes if m.ok and m.latency_ms is not None]
    if not good:
        return None
    told = [m.latency_ms or 0.0 for m in good]
    middle = median(told)
    sessions = [t for m in good for t in (m.session_ms or (m.latency_ms or 0.0,))]
    apart = [median(abs(t - middle) for t in times) for times in (told, sessions)]
    return NetworkSample(graph, middle, max(*apart, median(m.mad_ms or 0.0 for m in good)))


class NetworkCampaign(PlannedCampaign):
    """Measures whole networks in several passes, each in another order."""

    kind = "networks"
    stages = ("networks",)

    def __init__(self, platform: str, options: NetworkOptions) -> None:
        super().__init__(platform)
        self.asker = Asker(platform, earlier=options.earlier_passes)
        self._options = options
        self._settings = options.settings.apply(SETTINGS)
        self._given = read_graphs(self.kind, "graphs", options.graphs)
        self._graphs: dict[str, Graph] = {}
        self._answers: dict[str, list[Measurement]] = {}

    def plan(self) -> Plan:
        """All passes in one batch, since nothing depends on an answer."""
        options = self._options
        graphs = self._given or calibration_networks(
            options.calibration,
            exclude_lineages=options.exclude_lineages,
            seed=options.seed,
            macs=(options.least_macs, options.most_macs),
            draw=options.draw,
            exclude=options.exclude,
        )
        self._graphs = {hash_of(graph): graph for graph in graphs}
        random = Random(options.seed)
        requests = []
        for number, settings in enumerate(self._pass_settings()):
            order = list(self._graphs.values())
            random.shuffle(order)
            profile = options.profile and number == 0
            requests += [
                self.asker.request(graph, PURPOSE, settings, label=graph.name, profile=profile)
                for graph in order
            ]
        answers = yield Batch("networks", requests, 0, len(requests))
        for request in requests:
            self._answers.setdefault(hash_of(request.graph), []).append(answers[request.request_id])

    def _pass_settings(self) -> list[Settings]:
        """The settings of each pass, with the sessions divided among the passes."""
        each, rest = divmod(self._settings.sessions, self._options.passes)
        return [
            replace(self._settings, sessions=max(1, each + (number < rest)))
            for number in range(self._options.passes)
        ]

    def samples(self) -> list[NetworkSample]:
        """What was measured for each network, in the order in which they were chosen."""
        found = []
        for key, graph in self._graphs.items():
            sample = pooled_network(graph, self._answers.get(key, []))
            if sample is not None:
                found.append(sample)
        return found

    def outcome(self) -> Mapping[str, Any]:
        """The latency of each network, and the failures."""
        samples = self.samples()
        known = {hash_of(sample.graph) for sample in samples}
        return {
            "networks": [
                {
                    "name": sample.graph.name,
                    "hash": hash_of(sample.graph),
                    "latency_ms": sample.latency_ms,
                    "mad_ms": sample.mad_ms,
                    **self._energy(sample.graph),
                }
                for sample in samples
            ],
            **({} if self._given else {"draw": self._options.draw}),
            **self._energy_story(),
            "failed": {
                self._graphs[key].name: next(
                    (m.error_message or m.error_code for m in answers), "not measured"
                )
                for key, answers in self._answers.items()
                if key not in known
            },
        }

    def _energy(self, graph: Graph) -> dict[str, float]:
        found = network_energy(graph, self._answers.get(hash_of(graph), []))
        if found is None:
            return {}
        return {"energy_mj": found.energy_mj, "energy_spread_mj": found.spread_mj}

    def _energy_story(self) -> dict[str, Any]:
        if not self._settings.energy_ms:
            return {}
        return {"energy": energy_story(m for answers in self._answers.values() for m in answers)}
