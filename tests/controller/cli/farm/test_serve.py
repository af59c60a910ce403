"""`latfarm serve`: its flags become settings of the controller."""

from __future__ import annotations

import pytest
from latfarm_controller.cli.farm import serve
from latfarm_controller.config import ControllerConfig, load_config
from latfarm_controller.errors import UsageError


def settings_of(monkeypatch: pytest.MonkeyPatch, ray_address: str | None) -> ControllerConfig:
    """The settings with which `latfarm serve` would run a controller."""
    found = []

    async def instead(config: ControllerConfig, wait_s: float, listen: str) -> None:
        found.append(config)

    monkeypatch.setattr(serve, "_serve", instead)
    with pytest.raises(KeyboardInterrupt):
        serve.serve(ray_address=ray_address)
    return found[0]


def test_the_address_of_a_ray_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATFARM_RAY_ADDRESS", "192.0.2.9:6379")
    assert settings_of(monkeypatch, "192.0.2.10:6379").ray_address == "192.0.2.10:6379"
    assert settings_of(monkeypatch, None).ray_address == "192.0.2.9:6379"
    monkeypatch.delenv("LATFARM_RAY_ADDRESS")
    assert settings_of(monkeypatch, None).ray_address == ""


@pytest.mark.parametrize("address", ["192.0.2.9", "ray://192.0.2.9", "a b:1"])
def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="ray_address"):
        load_config({"ray_address": address}, {})
