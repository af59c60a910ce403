"""A question about the latency of a network, and its answer.

This module imports little, because every command that asks a question needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import (
    ENERGY_MS,
    NETWORK,
    PUBLISH,
    PUBLISH_ENERGY_MS,
    Measurement,
    Settings,
)

from latfarm_controller.errors import ControllerError, NotMeasuredError, UsageError
from latfarm_controller.store.base import FOREIGN

TIERS = ("", "survey", "publish")
"""Tiers of a question; see `QueryOptions`."""
MOST_REPEATS = 100
"""The largest number of measurements that one question may ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """What answers a question, and how a missing answer is measured.

    Attributes:
        tier: "": any stored answer will do, and a measurement is as thorough as for a publication;
            "survey": any stored answer, and a measurement takes seconds; "publish": only what was
            measured for a publication.
        refresh: measure even if the store has an answer.
        energy: the energy of an inference is asked for, too.
        max_age_s: oldest stored answer that will do, in seconds; 0: of any age.
        measure: whether a board may be asked.
        repeat: how many times to measure; more than once: measure even if the store has an answer.
        foreign: whether measurements of other farms may answer.
        tags: if a board is asked, it must have all of these tags.
    """

    tier: str = ""
    refresh: bool = False
    energy: bool = False
    max_age_s: float = 0.0
    measure: bool = True
    repeat: int = 1
    foreign: bool = False
    tags: tuple[str, ...] = ()


ANY_ANSWER = QueryOptions()
"""Any stored answer will do, and a board measures what the store does not know."""


@dataclass(frozen=True, slots=True)
class Question(QueryOptions):
    """How long does a network take on a platform?

    The options of a question are its attributes, too.

    Attributes:
        platform: the platform.
        graph_hash: exact hash of the network's graph.
        network_hash: hash that all exports of the network share; empty: not known.
        user: who asks, as the audit log names actors; a board that is asked must be for them.
        graph: the network; None where only its hashes were sent.
    """

    platform: str
    graph_hash: str
    network_hash: str = ""
    user: str = ""
    graph: Graph | None = field(default=None, compare=False)

    @staticmethod
    def about(graph: Graph, platform: str) -> Question:
        """The question about a network that is at hand. Its hashes are computed here."""
        return Question(platform, hash_of(graph), network_hash_of(graph), graph=graph)

    @property
    def settings(self) -> Settings:
        """How to measure if the store has no answer."""
        survey = self.tier == NETWORK.tier
        settings = NETWORK if survey else PUBLISH
        if not self.energy:
            return settings
        return replace(settings, energy_ms=ENERGY_MS if survey else PUBLISH_ENERGY_MS)

    @property
    def stored(self) -> bool:
        """Whether a stored measurement may answer."""
        return not self.refresh and self.repeat <= 1

    def check(self) -> None:
        """Refuse a question that makes no sense.

        Raises:
            UsageError: it says what is wrong.
        """
        if self.tier not in TIERS:
            raise UsageError(f"there is no tier {self.tier!r}; give survey or publish")
        if not self.platform:
            raise UsageError(
                "a question needs the name of a platform; latfarm platforms lists them"
            )
        if not (self.graph_hash or self.network_hash):
            raise UsageError("a question needs a network, or the hash of one")
        if not 0.0 <= self.max_age_s < float("inf"):
            raise UsageError(f"the largest age of an answer is {self.max_age_s} s; give seconds")
        if not 1 <= self.repeat <= MOST_REPEATS:
            raise UsageError(f"{self.repeat} repeats: a question takes 1 to {MOST_REPEATS}")
        if not self.measure and not self.stored:
            raise UsageError("a new measurement was asked for and forbidden at the same time")


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a question.

    Attributes:
        measurement: the latency as a board timed it, with what corrects it; it may have failed.
        hit: whether the store had it.
        repeats: all measurements that were taken for the question; `measurement` is the one with
            the median latency. Empty for a hit.
    """

    measurement: Measurement
    hit: bool
    repeats: tuple[Measurement, ...] = ()

    @property
    def origin(self) -> dict[str, str]:
        """Source, licence and method of a measurement of another farm; empty for an own one."""
        told = self.measurement.conditions
        return {name: told[name] for name in FOREIGN if name in told}


@dataclass(frozen=True, slots=True)
class GraphNeeded:
    """The store has no answer, and only a hash was sent: a board needs the network itself."""


Event = str | Found | GraphNeeded
"""What a question leads to: texts about the progress, then an answer or that the graph is needed.
"""
Ended = Found | GraphNeeded | Exception
"""The end of one question among many; an error is the end of that question alone."""
ALONE = (ControllerError, PredictorsError, OSError)
"""Errors that end one question among many, and not the others."""


def named(missed: Exception, question: Question, name: str) -> Exception:
    """An error of the store that tells the name of a network in the place of its hash."""
    if not (name and question.graph_hash) or not isinstance(missed, NotMeasuredError):
        return missed
    return NotMeasuredError(str(missed).replace(question.graph_hash, name, 1))
