"""The configuration of campaigns: strict pydantic models whose errors name the wrong key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.measurement import Settings
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from latfarm_controller.errors import UsageError


class CampaignOptions(BaseModel):
    """Base of all campaign configurations: they are immutable, and unknown keys are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Chosen = TypeVar("Chosen", bound=CampaignOptions)


class SettingsChange(CampaignOptions):
    """The settings in which a campaign differs from its defaults; see `measurement.Settings`."""

    tier: str | None = None
    sessions: int | None = None
    warmup_runs: int | None = None
    warmup_ms: float | None = None
    min_runs: int | None = None
    max_runs: int | None = None
    max_ms: float | None = None
    cold_runs: int | None = None
    compile_timeout_ms: float | None = None
    run_timeout_ms: float | None = None
    precision: float | None = None
    energy_ms: float | None = None

    @field_validator("sessions", "min_runs", "max_runs")
    @classmethod
    def _at_least_one(cls, value: int | None) -> int | None:
        if value is not None and value < 1:
            raise ValueError("must be at least 1")
        return value

    def apply(self, settings: Settings) -> Settings:
        """`settings` with these changes."""
        names = {field.name for field in fields(Settings)}
        return replace(settings, **self.model_dump(include=names, exclude_none=True))


def read_options(model: type[Chosen], kind: str, config: Mapping[str, Any]) -> Chosen:
    """Validate a configuration.

    Raises:
        UsageError: one line that names the first bad key, what is wrong, and the known keys.
    """
    try:
        return model.model_validate(dict(config))
    except ValidationError as error:
        # A misspelt key leaves another key missing: the misspelt one is reported first.
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        # The place also names alternatives of a type, as "literal['a']" or "list[...]": left out.
        place = [str(part) for part in first["loc"] if "[" not in str(part)]
        key = ".".join(place)
        if first["type"] == "extra_forbidden":
            known = ", ".join(sorted(_owner(model, place[:-1]).model_fields))
            raise UsageError(
                f"campaign {kind}: unknown key {key!r}; known keys: {known}"
            ) from error
        message = first["msg"].removeprefix("Value error, ")
        named = f"key {key!r}: " if key else ""
        raise UsageError(f"campaign {kind}: {named}{message}") from error


def _owner(model: type[BaseModel], place: Sequence[str]) -> type[BaseModel]:
    """The model that the keys at a nested place belong to."""
    for name in place:
        field = model.model_fields.get(name)
        if field is None or not isinstance(field.annotation, type):
            return model
        model = field.annotation if issubclass(field.annotation, BaseModel) else model
    return model


def read_graph(kind: str, key: str, data: Any) -> Graph:
    """A graph from its JSON form.

    Raises:
        UsageError: the data is no graph; the message names the key.
    """
    try:
        return Graph.from_json(data)
    except (PredictorsError, ValueError) as error:
        raise UsageError(f"campaign {kind}: key {key!r}: {error}") from error


def read_graphs(kind: str, key: str, data: Sequence[Any]) -> list[Graph]:
    """Graphs from their JSON forms.

    Raises:
        UsageError: one of them is no graph; the message names the key and its place.
    """
    return [read_graph(kind, f"{key}.{index}", item) for index, item in enumerate(data)]


def read_rules(kind: str, data: Mapping[str, Any]) -> FusionRules:
    """Fusion rules from their JSON form.

    Raises:
        UsageError: the data is not in the form of rules.
    """
    try:
        return FusionRules.from_json(data)
    except PredictorsError as error:
        raise UsageError(f"campaign {kind}: key 'rules': {error}") from error
