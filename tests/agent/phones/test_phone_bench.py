"""The bench of a phone: identity, conditions, fingerprint and rules are those of the phone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from latfarm_agent import cli
from latfarm_agent.agent_config import AgentConfig, RuntimeConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.phone import phone_bench
from latfarm_agent.bench.records import BenchStage
from latfarm_agent.errors import AgentUsageError
from latfarm_agent.testing.runtime_suite import PATIENT, QUICK, changed, measure
from latfarm_agent.testing.tflite_samples import samples
from tests.agent.phones.kit import SERIAL, FakePhone, entry, ground

ONCE = changed(QUICK, sessions=1)
PLATFORM = "phone4-tflite1.0-fp32-1t"


def asked(**options: object) -> AgentConfig:
    given = {"benchmarks": [entry("tflite-benchmark", "benchmark_model")], "runs": 3, **options}
    return AgentConfig(runtimes={"adb": RuntimeConfig(options=given)}, confinement=ground())


@pytest.fixture(scope="module")
def one_bench(one_phone: FakePhone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("work")
    one_phone.reset()  # this fixture runs before `phone` resets the state that the last test left
    bench = phone_bench(
        SERIAL, BenchOptions("phone4-1", "phone4", folder, config=asked(), limits=PATIENT)
    )
    yield bench
    bench.close()


@pytest.fixture
def bench(phone: FakePhone, one_bench: Bench) -> Bench:
    return one_bench


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.tflite"
    path.write_bytes(samples()["cnn-fp32"])
    return path


def fingerprint(bench: Bench) -> str:
    return str(bench.describe()[1][0].platforms[0].fingerprint)


def test_who_the_board_is(phone: FakePhone, bench: Bench) -> None:
    board, (runtime,) = bench.describe()
    assert (board.name, board.hardware["name"]) == ("phone4-1", "phone4")
    assert board.hardware["model"] == "Acme Phone 4"
    assert board.hardware["arch"] == "arm64-v8a"
    assert board.hardware["os"] == "Android 13"
    assert board.hardware["connection"] == f"adb {SERIAL}"
    assert board.conditions["temperature_c"] == "44.25"
    assert board.conditions["clock_mhz"] == "2419.2"
    assert board.conditions["governor"] == "schedutil"
    assert board.conditions["power_source"] == "usb"
    assert board.conditions["power_rail"].startswith("none")
    assert board.boot_id != Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert [platform.name for platform in runtime.platforms] == [PLATFORM]
    assert runtime.version == "tflite-benchmark 1.0"


def test_a_phone_is_known_by_its_serial_number(phone: FakePhone, tmp_path: Path) -> None:
    def board_id(name: str) -> str:
        made = phone_bench(
            SERIAL, BenchOptions(name, None, tmp_path / name, config=asked(), limits=PATIENT)
        )
        try:
            return str(made.describe()[0].board_id)
        finally:
            made.close()

    first = board_id("a")
    phone.changed("getprop", "Phone 4", "Phone 5")
    assert board_id("b") == first
    phone.changed("getprop", "R58M1", "R58M2")
    assert board_id("c") != first


@pytest.mark.parametrize(
    ("answer", "old", "new", "says"),
    [
        (
            "dumpsys-battery",
            "level: 87",
            "level: 12",
            "battery at 12 %, but at least 20 % is required",
        ),
        ("dumpsys-battery", "temperature: 291", "temperature: 455", "battery at 45.5 degC"),
        ("dumpsys-thermalservice", "Status: 0", "Status: 3", "thermal status severe"),
        ("dumpsys-activity", "com.acme.launcher", "com.game", "com.game is in front"),
    ],
)
def test_a_phone_that_is_not_ready(
    phone: FakePhone, bench: Bench, model: Path, answer: str, old: str, new: str, says: str
) -> None:
    phone.changed(answer, old, new)
    phone.log()
    result = measure(bench, PLATFORM, model, settings=ONCE)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "NOT_READY")
    assert says in result.error_message
    assert result.conditions["battery_percent"]
    assert not any(" push " in line for line in phone.log()), "it was left alone"


def test_a_rule_of_ones_own(phone: FakePhone, tmp_path: Path, model: Path) -> None:
    config = asked(rules={"charging": "no", "min_battery_percent": 0})
    bench = phone_bench(
        SERIAL, BenchOptions("p", None, tmp_path / "work", config=config, limits=PATIENT)
    )
    try:
        platform = bench.describe()[1][0].platforms[0].name
        result = measure(bench, platform, model, settings=ONCE)
        assert (result.error_code, "is charging" in result.error_message) == ("NOT_READY", True)
        phone.changed("dumpsys-battery", "status: 2", "status: 3")
        assert measure(bench, platform, model, settings=ONCE).outcome == "ok"
    finally:
        bench.close()


def hot(phone: FakePhone) -> None:
    phone.changed("dumpsys-thermalservice", "Thermal Status: 0", "Thermal Status: 1")


def capped(phone: FakePhone) -> None:
    phone.clock(4, 1804800, 2419200)


def unplugged(phone: FakePhone) -> None:
    phone.changed("dumpsys-battery", "USB powered: true", "USB powered: false")


def dark(phone: FakePhone) -> None:
    phone.changed("dumpsys-power", "state=ON", "state=OFF")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (hot, "throttled while it measured (0 -> 1)"),
        (capped, "throttled while it measured (0 -> 1)"),
        (unplugged, "power source: usb -> battery"),
        (dark, "screen: on -> off"),
    ],
)
def test_what_changes_while_it_measures_spoils_it(
    phone: FakePhone, bench: Bench, model: Path, change: Callable[[FakePhone], None], says: str
) -> None:
    def on_stage(stage: BenchStage) -> None:
        if stage.name == "timing":
            change(phone)

    result = measure(bench, PLATFORM, model, settings=ONCE, on_stage=on_stage)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "THROTTLED")
    assert says in result.error_message
    assert not result.sessions


def test_a_phone_that_android_slows_all_the_time_is_told(
    phone: FakePhone, tmp_path: Path, model: Path
) -> None:
    config = asked(rules={"max_thermal_status": 2})
    options = BenchOptions("p", None, tmp_path / "work", config=config, limits=PATIENT)
    bench = phone_bench(SERIAL, options)
    told = []
    try:
        platform = bench.describe()[1][0].platforms[0].name
        for before, status in ((0, 1), (1, 2)):
            phone.changed(
                "dumpsys-thermalservice", f"Thermal Status: {before}", f"Thermal Status: {status}"
            )
            result = measure(bench, platform, model, settings=ONCE)
            assert result.outcome == "ok", result.error_message
            told.append(result.conditions["throttled_throughout"])
    finally:
        bench.close()
    assert told == ["no", "yes"], "from moderate on Android slows the phone"


def test_the_fingerprint_is_the_phones(phone: FakePhone, bench: Bench) -> None:
    before = fingerprint(bench)
    phone.changed("dumpsys-battery", "level: 87", "level: 86")
    assert fingerprint(bench) == before
    unplugged(phone)
    on_battery = fingerprint(bench)
    assert on_battery != before
    phone.answer("settings", "1\n")
    assert fingerprint(bench) not in (before, on_battery)


def test_a_hot_phones_lower_clocks_are_no_other_platform(phone: FakePhone, bench: Bench) -> None:
    before = fingerprint(bench)
    capped(phone)
    assert fingerprint(bench) == before


def test_a_phone_that_is_away_is_still_described(
    phone: FakePhone, bench: Bench, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latfarm_agent.phones.device.RECONNECT_S", 0.2)
    before = bench.describe()
    phone.state("absent")
    board, runtimes = bench.describe()
    assert (board.board_id, board.boot_id) == (before[0].board_id, before[0].boot_id)
    assert runtimes == before[1]
    assert board.conditions["temperature_c"] == "unknown"
    result = measure(bench, PLATFORM, model, settings=ONCE)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "DEVICE_LOST")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [("R58M1", "R58M9", "is another phone now: R58M9"), ("TQ1/77", "TQ2/78", "restart the agent")],
)
def test_another_phone_under_the_same_address(
    phone: FakePhone, bench: Bench, model: Path, old: str, new: str, says: str
) -> None:
    phone.changed("getprop", old, new)
    result = measure(bench, PLATFORM, model, settings=ONCE)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "DEVICE_LOST")
    assert says in result.error_message


def test_no_energy_is_taken_from_the_hosts_rails(
    phone: FakePhone, bench: Bench, model: Path
) -> None:
    result = measure(bench, PLATFORM, model, settings=changed(ONCE, energy_ms=100.0))
    assert result.outcome == "ok", result.error_message
    assert result.conditions["energy"].startswith("ENERGY_UNAVAILABLE")
    assert result.energy is None


@pytest.mark.parametrize(
    ("runtimes", "says"),
    [
        ({}, "--config must have the runtime 'adb'"),
        ({"adb": RuntimeConfig(), "tflite": RuntimeConfig()}, "and no other"),
        ({"adb": RuntimeConfig(options={"serial": "x"})}, "give it as --adb"),
        ({"adb": RuntimeConfig(options={"rules": {"colour": 1}})}, "rules.colour is unknown"),
    ],
)
def test_wrong_usage(
    phone: FakePhone, tmp_path: Path, runtimes: dict[str, RuntimeConfig], says: str
) -> None:
    with pytest.raises(AgentUsageError, match=says):
        phone_bench(
            SERIAL, BenchOptions("p", None, tmp_path, config=AgentConfig(runtimes=runtimes))
        )


def test_the_command_line(
    phone: FakePhone,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("latfarm_agent.phones.device.RECONNECT_S", 0.2)
    path = tmp_path / "phones.json"
    options = asked().runtimes["adb"].options
    path.write_text(json.dumps({"threads": [1, 4], "runtimes": {"adb": {"options": options}}}))
    phone_of_ours = ["describe", "--adb", SERIAL, "--config", str(path), "--hardware", "pixel4"]
    assert cli.main(phone_of_ours) == 0
    out = capsys.readouterr().out
    assert "platform pixel4-tflite1.0-fp32-1t (tflite, fp32)" in out
    assert "platform pixel4-tflite1.0-fp32-4t (tflite, fp32)" in out
    assert "hardware model: Acme Phone 4" in out
    phone.state("unauthorized")
    for argv, code, says in (
        (phone_of_ours, 1, "allow this host's key"),
        (["describe", "--adb", SERIAL], 2, "--config must have the runtime 'adb'"),
        ([*phone_of_ours, "--cpu", "1"], 2, "its cores are in its --config"),
        ([*phone_of_ours, "--simulate", "x"], 2, "--adb"),
    ):
        assert cli.main(argv) == code
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert says in err
