"""Identity and state of a phone, read from what its commands print. No I/O.

The output of each command follows a line that names the command. Values that are missing or have an
unexpected form are not known: phones differ by vendor and Android version, and these outputs are no
stable interface.

Sources: Android's documentation of "Thermal mitigation" (statuses 0 to 6), "dumpsys" and
BatteryManager.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping

MARK = "latfarm-section:"
"""Begins the line before the output of a command; the command's name follows."""

STATIC = f"""\
echo '{MARK}props'; getprop
echo '{MARK}kernel'; uname -r
echo '{MARK}boot'; cat /proc/sys/kernel/random/boot_id
echo '{MARK}memory'; head -n 1 /proc/meminfo
echo '{MARK}cores'; cat /sys/devices/system/cpu/present
echo '{MARK}home'; cmd package resolve-activity --brief -a android.intent.action.MAIN \
-c android.intent.category.HOME
"""
"""Script whose output `PhoneIdentity.read` takes."""

DYNAMIC = f"""\
echo '{MARK}battery'; dumpsys battery
echo '{MARK}thermal'; dumpsys thermalservice
echo '{MARK}power'; dumpsys power | grep -E '^ *(mWakefulness|Display Power: state)='
echo '{MARK}foreground'; dumpsys activity activities | \
grep -E '(topR|mR|R)esumedActivity[:=]' | head -n 4
echo '{MARK}saver'; settings get global low_power
echo '{MARK}clocks'
for p in /sys/devices/system/cpu/cpufreq/policy*; do
  for f in scaling_cur_freq scaling_max_freq scaling_min_freq cpuinfo_max_freq scaling_governor; do
    read -r v <"$p/$f" && echo "${{p##*/policy}} $f $v"
  done
done
echo '{MARK}zones'
for z in /sys/class/thermal/thermal_zone*; do
  read -r t <"$z/type" && read -r v <"$z/temp" && echo "$v $t"
done
echo '{MARK}load'; cat /proc/loadavg
"""
"""Script whose output `PhoneState.read` takes."""

_PROPERTY = re.compile(r"^\[([A-Za-z0-9._-]{1,128})\]: \[(.{0,256})\]\s*$", re.MULTILINE)
_FIELD = re.compile(r"^\s*([A-Za-z ]{1,40}): (\S.{0,60}?)\s*$", re.MULTILINE)
_STATUS = re.compile(r"^\s*Thermal Status: (\d)\s*$", re.MULTILINE)
_TEMPERATURE = re.compile(r"Temperature\{mValue=(-?\d{1,4}(?:\.\d{1,9})?), mType=(\d{1,2}),")
_COMPONENT = re.compile(r"\b([A-Za-z][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)+)/[A-Za-z0-9_.$]+")
_CLOCK = re.compile(r"^(\d{1,3}) ([a-z_]{1,32}) (\S{1,32})\s*$", re.MULTILINE)
_ZONE = re.compile(r"^(-?\d{1,7}) (\S{1,64})\s*$", re.MULTILINE)
_CPU, _SKIN = 0, 3  # temperature types of Android's thermal HAL
_CHARGING = {"1": "unknown", "2": "charging", "3": "discharging", "4": "not charging", "5": "full"}
_SOURCES = (("AC powered", "mains"), ("USB powered", "usb"), ("Wireless powered", "wireless"))
_WAKING = {"awake": "on", "asleep": "off", "dozing": "off", "dreaming": "on"}


def sections(text: str) -> dict[str, str]:
    """The outputs of the commands by their names."""
    found: dict[str, str] = {}
    for part in f"\n{text}".split(f"\n{MARK}")[1:]:
        name, _, rest = part.partition("\n")
        found.setdefault(name.strip(), rest)
    return found


@dataclass(frozen=True)
class PhoneIdentity:
    """What does not change until a phone is restarted; empty values are not known.

    `build` names the system software with all its patches. `home` is the package of the launcher.
    """

    serial: str = ""
    model: str = ""
    android: str = ""
    build: str = ""
    soc: str = ""
    abi: str = ""
    kernel: str = ""
    boot_id: str = ""
    cores: int = 0
    memory_bytes: int = 0
    home: str = ""

    @staticmethod
    def read(text: str) -> PhoneIdentity:
        """The identity from the output of `STATIC`."""
        told = sections(text)
        props = dict(_PROPERTY.findall(told.get("props", "")))

        def first(*names: str) -> str:
            return next((props[name] for name in names if props.get(name)), "")

        maker, name = first("ro.product.manufacturer"), first("ro.product.model")
        memory = re.search(r"MemTotal:\s+(\d{1,12}) kB", told.get("memory", ""))
        present = re.match(r"\s*0-(\d{1,3})\s*$", told.get("cores", ""))
        home = _COMPONENT.search(told.get("home", ""))
        return PhoneIdentity(
            serial=first("ro.serialno", "ro.boot.serialno"),
            model=name if name.lower().startswith(maker.lower()) else f"{maker} {name}".strip(),
            android=first("ro.build.version.release"),
            build=first("ro.build.fingerprint", "ro.build.id"),
            soc=first("ro.soc.model", "ro.board.platform", "ro.hardware"),
            abi=first("ro.product.cpu.abi"),
            kernel=_line(told.get("kernel", "")),
            boot_id=_line(told.get("boot", "")),
            cores=int(present[1]) + 1 if present else 0,
            memory_bytes=int(memory[1]) * 1024 if memory else 0,
            home=home[1] if home else "",
        )


@dataclass(frozen=True)
class PhoneState:
    """The state of a phone at one moment; None and empty values are not known.

    `thermal_status`: 0 none, 1 light, 2 moderate, 3 severe, and worse. `capped`: how many clusters
    of cores may not reach their highest clock. Each cluster has its own clock and governor.
    """

    battery_percent: int | None = None
    battery_c: float | None = None
    charging: str = ""
    power_source: str = ""
    thermal_status: int | None = None
    temperature_c: float | None = None
    screen: str = ""
    foreground: str = ""
    saver: str = ""
    clocks_mhz: Mapping[str, float] | None = None
    governors: str = ""
    clock_max_khz: str = ""
    clock_min_khz: str = ""
    capped: int | None = None
    load_1m: str = ""

    @staticmethod
    def read(text: str) -> PhoneState:
        """The state from the output of `DYNAMIC`."""
        told = sections(text)
        battery = dict(_FIELD.findall(told.get("battery", "")))
        percent = _whole(battery.get("level"))
        tenths = _whole(battery.get("temperature"))
        status = _STATUS.search(told.get("thermal", ""))
        power = told.get("power", "")
        waking = re.search(r"mWakefulness=(\w{1,16})", power)
        display = re.search(r"Display Power: state=(\w{1,16})", power)
        screen = _WAKING.get(waking[1].lower(), "") if waking else ""
        if display:
            screen = "on" if display[1] == "ON" else "off"
        shown = _COMPONENT.search(told.get("foreground", ""))
        clusters: dict[str, dict[str, str]] = {}
        for cluster, field, value in _CLOCK.findall(told.get("clocks", "")):
            clusters.setdefault(cluster, {})[field] = value
        load = re.match(r"(\d{1,6}\.\d{1,4}) ", told.get("load", ""))
        sources = [name for field, name in _SOURCES if battery.get(field) == "true"]
        return PhoneState(
            battery_percent=percent if percent is not None and 0 <= percent <= 100 else None,
            battery_c=tenths / 10 if tenths is not None and -400 < tenths < 1000 else None,
            charging=_CHARGING.get(battery.get("status", ""), ""),
            power_source="+".join(sources) or ("battery" if battery else ""),
            thermal_status=int(status[1]) if status else None,
            temperature_c=_temperature(told.get("thermal", ""), told.get("zones", "")),
            screen=screen,
            foreground=shown[1] if shown else "",
            saver={"0": "normal", "1": "saver"}.get(_line(told.get("saver", "")), ""),
            clocks_mhz={
                name: khz / 1e3
                for name, fields in clusters.items()
                for khz in [_whole(fields.get("scaling_cur_freq"))]
                if khz is not None
            }
            or None,
            governors=_each(clusters, "scaling_governor"),
            clock_max_khz=_each(clusters, "cpuinfo_max_freq"),
            clock_min_khz=_each(clusters, "scaling_min_freq"),
            capped=_capped(clusters),
            load_1m=load[1] if load else "",
        )


def _temperature(thermal: str, zones: str) -> float | None:
    """Temperature of the hottest plausible CPU sensor, from the thermal service or the kernel."""
    # The service first prints what it has cached, then what the hardware tells now.
    now = thermal.partition("Current temperatures from HAL")[2] or thermal
    told = [(float(value), int(kind)) for value, kind in _TEMPERATURE.findall(now)]
    found = [value for value, kind in told if kind == _CPU]
    if not found:
        found = [int(v) / 1e3 for v, kind in _ZONE.findall(zones) if "cpu" in kind.lower()]
    if not found:
        found = [value for value, kind in told if kind == _SKIN]
    plausible = [value for value in found if 1.0 <= value <= 125.0]
    return max(plausible) if plausible else None


def _each(clusters: Mapping[str, Mapping[str, str]], field: str) -> str:
    """A field of all clusters: one value if they agree, otherwise the value of each cluster."""
    told = {name: fields[field] for name, fields in clusters.items() if field in fields}
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return ",".join(f"{name}:{told[name]}" for name in sorted(told, key=int))


def _capped(clusters: Mapping[str, Mapping[str, str]]) -> int | None:
    pairs = [
        (_whole(fields.get("scaling_max_freq")), _whole(fields.get("cpuinfo_max_freq")))
        for fields in clusters.values()
    ]
    known = [(now, most) for now, most in pairs if now is not None and most is not None]
    return sum(now < most for now, most in known) if known else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d{1,10}", text) else None


def _line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0].strip()[:128] if lines else ""
