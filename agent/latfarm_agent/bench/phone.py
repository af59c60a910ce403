"""The sensors of a phone, which are read over adb, and a bench that measures on the phone."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.driven import DrivenBoard
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.board.conditions import (
    UNKNOWN,
    BoardReadiness,
    CoreTicks,
    SensorReading,
    Sensors,
    shown,
)
from latfarm_agent.confinement.plan import Confinement
from latfarm_agent.errors import AgentUsageError
from latfarm_agent.phones.device import AdbDevice, AdbError, DeviceLostError
from latfarm_agent.phones.rules import SLOWED_FROM, PhoneRules, mode, unfit
from latfarm_agent.phones.state import DYNAMIC, STATIC, PhoneIdentity, PhoneState

RUNTIME = "adb"
"""Name of the runtime in the configuration."""

REFERENCE = "latfarm_agent.runtimes.adb.runtime:AdbRuntime"

_ANSWER_S = 10.0
"""How long a short command on the phone may take."""

_ALIVE_S = 5.0
"""How long the phone may take to show that it is still there."""


class PhoneSensors(Sensors):
    """The sensors of a phone. While it is away, its last known values are told.

    Args:
        device: the phone, which is connected to at once.
        rules: when it may be measured.

    Raises:
        AdbError: the phone is not there.
    """

    def __init__(self, device: AdbDevice, rules: PhoneRules | None = None) -> None:
        super().__init__(())
        self._device = device
        self._rules = rules or PhoneRules()
        device.ready()
        self._identity = PhoneIdentity.read(device.shell(STATIC).text)
        self._state = PhoneState()
        self._look()

    def read(self) -> SensorReading:
        """Clock of the fastest cluster, temperature, and throttling; unknown while it is away."""
        try:
            state = self._look()
        except AdbError:
            return SensorReading(None, None, None)
        clocks = state.clocks_mhz
        status = state.thermal_status
        throttles = [value for value in (status, state.capped) if value is not None]
        return SensorReading(
            max(clocks.values()) if clocks else None,
            state.temperature_c,
            sum(throttles) if throttles else None,
            None if status is None else status >= SLOWED_FROM,
        )

    def standing(self) -> BoardReadiness:
        """Whether the phone may be measured, and what must not change during a measurement.

        Raises:
            AdbError: it is away and does not return soon.
        """
        self._device.ready()
        self._recognise()
        state = self._look()
        told = {name: value or UNKNOWN for name, value in mode(state).items()}
        told["charging"] = state.charging or UNKNOWN
        told["battery_percent"] = shown(state.battery_percent)
        told["battery_c"] = shown(state.battery_c)
        told["thermal_status"] = shown(state.thermal_status)
        return BoardReadiness(mode(state), told, unfit(state, self._rules, self._identity.home))

    def lost(self) -> str:
        """Why the phone does not answer; empty: it answers."""
        try:
            self._device.shell("true", timeout_s=_ALIVE_S)
        except AdbError as error:
            return str(error)
        return ""

    def policy(self) -> dict[str, str]:
        """Governors and clock bounds of all clusters, battery saver and power source."""
        state = self._state
        return {
            "governor": state.governors or UNKNOWN,
            "clock_max_khz": state.clock_max_khz or UNKNOWN,
            "clock_min_khz": state.clock_min_khz or UNKNOWN,
            "power_mode": state.saver or UNKNOWN,
            "power_source": state.power_source or UNKNOWN,
        }

    def ticks(self) -> CoreTicks | None:
        """None: the rules check which app is in front instead."""
        return None

    def load(self) -> str:
        """Load average of the phone over one minute."""
        return self._state.load_1m or UNKNOWN

    def boot_id(self) -> str:
        """A boot identity of the phone, which differs from that of this machine."""
        identity = f"{self._identity.serial} {self._identity.boot_id}"
        return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()

    def hardware(self) -> dict[str, str]:
        """What the phone is made of."""
        found = self._identity
        return {
            "cpu": found.soc or UNKNOWN,
            "arch": found.abi or UNKNOWN,
            "cores": str(found.cores or UNKNOWN),
            "memory_bytes": str(found.memory_bytes or UNKNOWN),
            "model": found.model or UNKNOWN,
            "connection": f"adb {self._device.serial}",
        }

    def software(self) -> dict[str, str]:
        """Android and its build, and the kernel."""
        found = self._identity
        return {
            "os": f"Android {found.android}" if found.android else UNKNOWN,
            "build": found.build or UNKNOWN,
            "kernel": found.kernel or UNKNOWN,
        }

    def board_id(self, state_dir: Path) -> str:
        """Identity from the phone's serial number; without one, from that of the connection."""
        del state_dir
        identity = f"phone {self._identity.serial or self._device.serial}"
        return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()

    def _recognise(self) -> None:
        """Check that it is still the same phone with the same system.

        Raises:
            DeviceLostError: another phone answers at this address, or its system was updated.
        """
        found = PhoneIdentity.read(self._device.shell(STATIC).text)
        if found.serial != self._identity.serial:
            raise DeviceLostError(
                f"{self._device.serial} is another phone now: "
                f"{found.serial or 'without serial'}, not {self._identity.serial or 'without'}"
            )
        if found.build != self._identity.build:
            raise DeviceLostError(
                f"{self._device.serial}: its system was updated to {found.build or 'another one'}: "
                "restart the agent"
            )
        self._identity = found

    def _look(self) -> PhoneState:
        self._state = PhoneState.read(self._device.shell(DYNAMIC).text)
        return self._state


def phone_bench(serial: str, options: BenchOptions) -> Bench:
    """A bench that measures on the phone with a serial number, and on nothing else.

    Args:
        serial: as `adb devices` prints it.
        options: names and limits. The runtime "adb" of its configuration says what runs on the
            phone (`runtimes.adb.options`) and when it may be measured (`phones.rules`).

    Raises:
        AgentUsageError: the configuration has no such runtime or others beside it, or a rule is
            wrong.
        AdbError: the phone is not there.
    """
    config = options.config
    entry = config.runtimes.get(RUNTIME)
    if entry is None or set(config.runtimes) != {RUNTIME}:
        raise AgentUsageError(
            f"--adb: --config must have the runtime {RUNTIME!r} and no other: "
            "it names the benchmark binaries of the phone"
        )
    if "serial" in entry.options:
        raise AgentUsageError(f"runtimes.{RUNTIME}.options.serial: give it as --adb")
    rules = PhoneRules.from_json(entry.options.get("rules", {}))
    adb = str(entry.options.get("adb", ""))
    device = AdbDevice(serial, adb, timeout_s=_ANSWER_S, starts_server=True)
    sensors = PhoneSensors(device, rules)
    given = replace(entry, options=dict(entry.options, serial=serial))
    options = replace(
        options,
        runtimes={RUNTIME: REFERENCE},
        config=replace(config, runtimes={RUNTIME: given}),
    )
    return Bench(DrivenBoard(options, sensors, reached=_reached(adb)), options)


def _reached(adb: str) -> Confinement:
    """What workers need to reach the phone: the adb client, and the port of its server."""
    client = shutil.which(adb or "adb")
    folder = () if client is None else (str(Path(client).resolve().parent),)
    socket = os.environ.get("ADB_SERVER_SOCKET", "tcp:")
    return Confinement(
        read=folder,
        ports=(AdbDevice.server_port(),),
        unix_sockets=not socket.startswith("tcp:"),
    )
