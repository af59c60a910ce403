"""When a phone may be measured, and what must not change during a measurement. No I/O.

A phone that is hot, has a nearly empty battery or is being used has other latencies. The rules
stand in the configuration, among the options of the runtime "adb":

```json
{"rules": {"min_battery_percent": 30, "max_battery_c": 40, "charging": "any",
           "screen": "any", "foreground": "home", "max_thermal_status": 1}}
```
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from latfarm_agent.errors import AgentUsageError
from latfarm_agent.phones.state import PhoneState

_PACKAGE = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)+")
SLOWED_FROM = 2
"""Android's thermal status (moderate) from which it slows the phone."""
_STATUSES = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")


@dataclass(frozen=True)
class PhoneRules:
    """The state that a phone must be in. Values that it does not tell break no rule.

    Attributes:
        min_battery_percent: least charge of the battery.
        max_battery_c: highest temperature of the battery.
        charging: "any", "yes" or "no".
        screen: "any", "on" or "off".
        foreground: which app may be in front: "home" (the launcher or none), "any", or the name of
            one package.
        max_thermal_status: highest of Android's thermal statuses, from 0 (none) to 6. From 2
            (moderate) on, Android itself slows the phone.
    """

    min_battery_percent: float = 20.0
    max_battery_c: float = 42.0
    charging: str = "any"
    screen: str = "any"
    foreground: str = "home"
    max_thermal_status: int = 1

    @staticmethod
    def from_json(data: Any) -> PhoneRules:
        """The rules from the configuration.

        Raises:
            AgentUsageError: a value is unknown or wrong; the message says which, and what belongs
                there.
        """
        known = tuple(PhoneRules.__dataclass_fields__)
        if not isinstance(data, dict):
            raise AgentUsageError("adb: rules must be an object")
        for name in data:
            if name not in known:
                raise AgentUsageError(f"adb: rules.{name} is unknown; known: {', '.join(known)}")
        for name, low, high in (
            ("min_battery_percent", 0, 100),
            ("max_battery_c", 0, 100),
            ("max_thermal_status", 0, 6),
        ):
            value = data.get(name, low)
            right = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not right or not low <= value <= high:
                raise AgentUsageError(f"adb: rules.{name} must be a number from {low} to {high}")
        for name, words in (("charging", ("any", "yes", "no")), ("screen", ("any", "on", "off"))):
            if data.get(name, "any") not in words:
                raise AgentUsageError(f"adb: rules.{name} must be one of {', '.join(words)}")
        foreground = data.get("foreground", "home")
        if not isinstance(foreground, str) or not (
            foreground in ("home", "any") or _PACKAGE.fullmatch(foreground)
        ):
            raise AgentUsageError('adb: rules.foreground must be "home", "any" or a package name')
        return PhoneRules(**data)


def unfit(state: PhoneState, rules: PhoneRules, home: str = "") -> str:
    """All reasons why a phone must not be measured now, in one line; empty: it may be measured.

    `home`: package of the phone's launcher; empty: not known.
    """
    reasons = []
    percent, battery_c = state.battery_percent, state.battery_c
    if percent is not None and percent < rules.min_battery_percent:
        least = f"{rules.min_battery_percent:g} %"
        reasons.append(f"battery at {percent} %, but at least {least} is required")
    if battery_c is not None and battery_c > rules.max_battery_c:
        most = f"{rules.max_battery_c:g} degC"
        reasons.append(f"battery at {battery_c:g} degC, but at most {most} is allowed")
    status = state.thermal_status
    if status is not None and status > rules.max_thermal_status:
        reasons.append(f"thermal status {_STATUSES[min(status, 6)]}")
    charges = state.charging == "charging"
    if state.charging and rules.charging != "any" and charges != (rules.charging == "yes"):
        reasons.append(f"the battery is {state.charging}, charging must be {rules.charging!r}")
    if state.screen and rules.screen != "any" and state.screen != rules.screen:
        reasons.append(f"the screen is {state.screen}, must be {rules.screen}")
    wanted = home if rules.foreground == "home" else rules.foreground
    if rules.foreground != "any" and wanted and state.foreground not in ("", wanted):
        reasons.append(f"{state.foreground} is in front, only {wanted} may be")
    return "; ".join(reasons)


def mode(state: PhoneState) -> dict[str, str]:
    """What must not change during a measurement; empty values are not known.

    A battery that becomes full is still powered from outside, so that is no change.
    """
    return {
        "charging": "charging" if state.charging == "full" else state.charging,
        "power_source": state.power_source,
        "screen": state.screen,
        "foreground": state.foreground,
        "battery_saver": state.saver,
    }
