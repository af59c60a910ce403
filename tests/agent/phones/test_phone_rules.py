"""How the state of a phone is read from its commands, and the rules for measuring on it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_agent.board.conditions import BoardReadiness
from latfarm_agent.errors import AgentUsageError
from latfarm_agent.phones.rules import PhoneRules, mode, unfit
from latfarm_agent.phones.state import MARK, PhoneIdentity, PhoneState, sections
from tests.agent.phones.kit import BATTERY, FOREGROUND, POWER, PROPS, THERMAL

CLOCKS = """\
0 scaling_cur_freq 1785600
0 scaling_max_freq 1785600
0 scaling_min_freq 300000
0 cpuinfo_max_freq 1785600
0 scaling_governor schedutil
4 scaling_cur_freq 2419200
4 scaling_max_freq 2016000
4 scaling_min_freq 710400
4 cpuinfo_max_freq 2419200
4 scaling_governor schedutil
"""
TEXTS = {
    "battery": BATTERY,
    "thermal": THERMAL,
    "power": POWER,
    "foreground": FOREGROUND,
    "saver": "0\n",
    "clocks": CLOCKS,
    "zones": "39000 battery\n52000 cpu-0-0\n-273000 cpu-1-0\n",
    "load": "3.25 2.0 1.0 1/900 77\n",
}
CALM = PhoneState.read("".join(f"{MARK}{name}\n{text}" for name, text in TEXTS.items()))


def read(**texts: str) -> PhoneState:
    return PhoneState.read("".join(f"{MARK}{k}\n{v}" for k, v in {**TEXTS, **texts}.items()))


def test_a_phone_as_it_tells_of_itself() -> None:
    assert (
        PhoneState(
            battery_percent=87,
            battery_c=29.1,
            charging="charging",
            power_source="usb",
            thermal_status=0,
            temperature_c=44.25,
            screen="on",
            foreground="com.acme.launcher",
            saver="normal",
            clocks_mhz={"0": 1785.6, "4": 2419.2},
            governors="schedutil",
            clock_max_khz="0:1785600,4:2419200",
            clock_min_khz="0:300000,4:710400",
            capped=1,
            load_1m="3.25",
        )
        == CALM
    )


def test_who_it_is() -> None:
    told = {
        "props": PROPS,
        "kernel": "4.14.276-g8ae7b4ca8564\n",
        "boot": "6f1c\n",
        "memory": "MemTotal:        5629576 kB\n",
        "cores": "0-7\n",
        "home": "priority=0\ncom.acme.launcher/.Home\n",
    }
    found = PhoneIdentity.read("".join(f"{MARK}{name}\n{text}" for name, text in told.items()))
    assert found == PhoneIdentity(
        serial="R58M1",
        model="Acme Phone 4",
        android="13",
        build="acme/phone4/phone4:13/TQ1/77:user/release-keys",
        soc="SM8150",
        abi="arm64-v8a",
        kernel="4.14.276-g8ae7b4ca8564",
        boot_id="6f1c",
        cores=8,
        memory_bytes=5629576 * 1024,
        home="com.acme.launcher",
    )


def test_a_phone_that_tells_nothing() -> None:
    assert PhoneState.read("") == PhoneState()
    assert PhoneIdentity.read("Permission denied\n") == PhoneIdentity()
    assert unfit(PhoneState(), PhoneRules()) == ""


@pytest.mark.parametrize(
    ("texts", "field", "value"),
    [
        ({"battery": BATTERY.replace("level: 87", "level: 870")}, "battery_percent", None),
        ({"battery": BATTERY.replace(": 291", ": 99999999999999")}, "battery_c", None),
        ({"battery": BATTERY.replace("status: 2", "status: 5")}, "charging", "full"),
        ({"battery": BATTERY.replace("USB powered: true", "")}, "power_source", "battery"),
        ({"thermal": ""}, "temperature_c", 52.0),
        ({"thermal": "", "zones": "-273000 cpu-1-0\n"}, "temperature_c", None),
        ({"power": "  mWakefulness=Dozing\n"}, "screen", "off"),
        ({"power": "mWakefulness=Awake\nDisplay Power: state=OFF\n"}, "screen", "off"),
        ({"foreground": ""}, "foreground", ""),
        ({"saver": "1\n"}, "saver", "saver"),
        ({"saver": "null\n"}, "saver", ""),
        ({"clocks": ""}, "clocks_mhz", None),
        ({"clocks": "0 scaling_cur_freq <unsupported>\n"}, "clocks_mhz", None),
        ({"clocks": ""}, "capped", None),
        ({"load": "nonsense"}, "load_1m", ""),
    ],
)  # fmt: skip
def test_single_readings(texts: dict[str, str], field: str, value: object) -> None:
    assert getattr(read(**texts), field) == value


def test_damaged_texts_are_read_or_not_known() -> None:
    draw = random.Random(1)
    whole = "".join(f"{MARK}{name}\n{text}" for name, text in TEXTS.items())
    for _ in range(300):
        cut = draw.randrange(len(whole))
        noise = "".join(chr(draw.randrange(1, 600)) for _ in range(draw.randrange(1, 40)))
        text = whole[:cut] + noise + whole[cut + draw.randrange(60) :]
        state = PhoneState.read(text)
        assert state.battery_percent is None or 0 <= state.battery_percent <= 100
        assert state.temperature_c is None or 1 <= state.temperature_c <= 125
        PhoneIdentity.read(text)


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    PhoneState.read(MARK + text)
    PhoneIdentity.read(MARK + text)
    assert all("\n" not in name for name in sections(text))


FIT = replace(CALM, thermal_status=1)


@pytest.mark.parametrize(
    ("state", "rules", "says"),
    [
        (FIT, PhoneRules(), ""),
        (replace(FIT, battery_percent=19), PhoneRules(), "battery at 19 %"),
        (replace(FIT, battery_c=42.5), PhoneRules(), "battery at 42.5 degC"),
        (replace(FIT, thermal_status=2), PhoneRules(), "thermal status moderate"),
        (replace(FIT, thermal_status=9), PhoneRules(), "thermal status shutdown"),
        (FIT, PhoneRules(max_thermal_status=0), "thermal status light"),
        (FIT, PhoneRules(charging="no"), "the battery is charging"),
        (replace(FIT, charging="full"), PhoneRules(charging="yes"), "the battery is full"),
        (replace(FIT, charging="full"), PhoneRules(charging="no"), ""),
        (FIT, PhoneRules(screen="off"), "the screen is on"),
        (FIT, PhoneRules(screen="on"), ""),
        (replace(FIT, foreground="com.game"), PhoneRules(), "com.game is in front"),
        (replace(FIT, foreground=""), PhoneRules(), ""),
        (replace(FIT, foreground="com.game"), PhoneRules(foreground="any"), ""),
        (replace(FIT, foreground="com.game"), PhoneRules(foreground="com.game"), ""),
        (FIT, PhoneRules(foreground="com.game"), "com.acme.launcher is in front"),
    ],
)
def test_when_a_phone_may_be_measured(state: PhoneState, rules: PhoneRules, says: str) -> None:
    found = unfit(state, rules, home="com.acme.launcher")
    assert found.startswith(says)
    assert bool(found) == bool(says)


def test_all_reasons_are_told() -> None:
    state = replace(FIT, battery_percent=3, battery_c=50.0, thermal_status=4)
    assert len(unfit(state, PhoneRules()).split("; ")) == 3


def test_without_a_known_launcher_nothing_is_held_against_what_is_in_front() -> None:
    assert unfit(replace(FIT, foreground="com.game"), PhoneRules(), home="") == ""


def test_what_must_not_change() -> None:
    before = BoardReadiness(mode(FIT))
    for changed, says in (
        (replace(FIT, charging="full", battery_percent=100), ""),
        (replace(FIT, foreground=""), ""),
        (replace(FIT, charging="discharging"), "charging: charging -> discharging"),
        (replace(FIT, power_source="battery"), "power source: usb -> battery"),
        (replace(FIT, screen="off"), "screen: on -> off"),
        (replace(FIT, saver="saver"), "battery saver: normal -> saver"),
        (replace(FIT, foreground="com.game"), "foreground: com.acme.launcher -> com.game"),
    ):
        assert before.changes(BoardReadiness(mode(changed))) == says


def test_rules_from_the_configuration() -> None:
    assert PhoneRules.from_json({}) == PhoneRules()
    rules = PhoneRules.from_json({"min_battery_percent": 50, "foreground": "org.x.y"})
    assert (rules.min_battery_percent, rules.foreground) == (50, "org.x.y")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "must be an object"),
        ({"min_battery": 1}, "rules.min_battery is unknown"),
        ({"min_battery_percent": 101}, "from 0 to 100"),
        ({"max_battery_c": True}, "rules.max_battery_c must be a number"),
        ({"max_thermal_status": "none"}, "from 0 to 6"),
        ({"charging": "maybe"}, "must be one of any, yes, no"),
        ({"screen": 1}, "rules.screen"),
        ({"foreground": "not a package"}, "rules.foreground"),
    ],
)
def test_wrong_rules_are_named(data: object, says: str) -> None:
    with pytest.raises(AgentUsageError, match=says):
        PhoneRules.from_json(data)
