"""A phone for tests: a folder with a phone's files, and a strict double of the `adb` client.

The folder's files are the state of the phone: the output of its commands, its sensors, and a word
that makes the benchmark binaries misbehave. The double does what adb's client does, and no more: it
exits with an error at an argument that it does not know.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import subprocess
import threading
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from latfarm_agent.agent_config import AgentConfig, RuntimeConfig
from latfarm_agent.bench.phone import RUNTIME
from latfarm_agent.confinement.plan import NOTHING, Confinement
from latfarm_agent.testing.tflite_samples import samples

SERIAL = "TESTPHONE1"
SOURCE = Path(__file__).with_name("benchmark.c")
BINARIES = ("benchmark_model", "benchmark.out", "MNNV2Basic.out", "benchncnn")

PROPS = """\
[ro.serialno]: [R58M1]
[ro.product.manufacturer]: [Acme]
[ro.product.model]: [Phone 4]
[ro.build.version.release]: [13]
[ro.build.fingerprint]: [acme/phone4/phone4:13/TQ1/77:user/release-keys]
[ro.soc.model]: [SM8150]
[ro.product.cpu.abi]: [arm64-v8a]
"""
BATTERY = """\
Current Battery Service state:
  AC powered: false
  USB powered: true
  Wireless powered: false
  Max charging current: 500000
  status: 2
  health: 2
  present: true
  level: 87
  scale: 100
  voltage: 4203
  temperature: 291
  technology: Li-ion
"""
THERMAL = """\
IsStatusOverride: false
Thermal Status: 0
Cached temperatures:
\tTemperature{mValue=99.0, mType=0, mName=CPU0, mStatus=0}
HAL Ready: true
Current temperatures from HAL:
\tTemperature{mValue=41.5, mType=0, mName=CPU0, mStatus=0}
\tTemperature{mValue=44.25, mType=0, mName=CPU4, mStatus=0}
\tTemperature{mValue=31.0, mType=3, mName=SKIN, mStatus=0}
Current cooling devices from HAL:
"""
POWER = "  mWakefulness=Awake\n  mWakefulnessChanging=false\nDisplay Power: state=ON\n"
FOREGROUND = (
    "    topResumedActivity=ActivityRecord{a1 u0 com.acme.launcher/.Home t5}\n"
    "  ResumedActivity: ActivityRecord{a1 u0 com.acme.launcher/.Home t5}\n"
)
ANSWERS = {
    "getprop": PROPS,
    "dumpsys-battery": BATTERY,
    "dumpsys-thermalservice": THERMAL,
    "dumpsys-power": POWER,
    "dumpsys-activity": FOREGROUND,
    "settings": "0\n",
    "cmd": "priority=0 preferredOrder=0 match=0x0\ncom.acme.launcher/.Home\n",
}
"""The normal output of the phone's commands, by the names of their files in `answers`."""

SHIM = """\
#!/bin/sh
name=$(basename "$0")
[ -f "{answers}/$name-$1" ] && exec cat "{answers}/$name-$1"
exec cat "{answers}/$name"
"""

ADB = r"""#!/bin/sh
# Serves a folder as a phone, with the interface of adb's client.
phone={phone}
printf '%.200s' "$*" | tr '\n' ' ' >>$phone/log; echo >>$phone/log
read -r state <$phone/state
end() {{ echo "$1" >&2; exit ${{2:-1}}; }}
come_back() {{ [ -f "$phone/comes back" ] && echo device >$phone/state && state=device; }}
usable() {{
  case $state in
    device) ;;
    absent) end "error: device '{serial}' not found" ;;
    unauthorized) end "error: device unauthorized.
This adb server's \$ADB_VENDOR_KEYS is not set
Try 'adb kill-server' if that seems wrong." ;;
    *) end "error: device $state" ;;
  esac
}}
if [ "$1" = reconnect ]; then come_back; exit 0; fi
[ "$1 $2" = "-s {serial}" ] || end "strange arguments: $*" 2
command=$3
shift 3
case $command in
  get-state) usable; echo device ;;
  reconnect) come_back; echo "reconnecting {serial}" ;;
  wait-for-device) come_back; [ $state = device ] ;;
  push)
    usable
    [ $# = 2 ] || end "strange arguments: $*" 2
    [ -f $phone/full ] && end "adb: error: failed to copy '$1' to '$2': remote couldn't write: \
No space left on device"
    if [ -f $phone/corrupt ]; then head -c -1 "$1" >$phone/$2; else cp "$1" $phone/$2; fi
    echo "$1: 1 file pushed." ;;
  shell)
    usable
    [ $# = 1 ] || end "strange arguments: $*" 2
    case $1 in *'<&3'*)
      if [ -f $phone/drops ]; then echo absent >$phone/state; exit 255; fi ;;
    esac
    here='s#(^|[^A-Za-z0-9._}}])/(data|sys/(class|devices))/#\1'$phone'/\2/#g'
    script=$(printf '%s\n' "$1" | sed -E "$here")
    PATH=$phone/bin:$PATH exec /bin/sh -c "$script" ;;
  *) end "unknown command $command" 2 ;;
esac
"""


@lru_cache(maxsize=None)
def binaries() -> Path:
    """Return a folder with the benchmark binaries, which are compiled once.

    Without gcc, the test that calls this function is skipped.
    """
    if shutil.which("gcc") is None:
        pytest.skip("the phones' benchmark binary needs gcc")
    folder = Path(mkdtemp(prefix="latfarm-phone-"))
    compiled = folder / BINARIES[0]
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-static"]
    command = ["gcc", *flags, "-o", str(compiled), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    for name in BINARIES[1:]:
        shutil.copy(compiled, folder / name)
    return folder


def remove_binaries() -> None:
    """Remove the folder that `binaries` made, if there is one."""
    if binaries.cache_info().currsize:
        shutil.rmtree(binaries())
        binaries.cache_clear()


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def entry(kind: str, name: str, *variants: dict[str, object], **more: object) -> dict[str, object]:
    """Return the entry of a benchmark binary in the configuration of an agent."""
    path = binaries() / name
    found: dict[str, object] = {"kind": kind, "path": str(path), "sha256": sha256(path)}
    return {**found, "version": "1.0", "variants": list(variants or ({},)), **more}


class FakePhone:
    """A simulated phone in `folder`, and a double of the adb client for it.

    An open port takes the place of adb's server, so that nobody has to start a server.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("answers", "bin", "data/local/tmp"):
            (folder / name).mkdir(parents=True)
        for name in ANSWERS:
            shim = folder / "bin" / name.split("-")[0]
            shim.write_text(SHIM.format(answers=folder / "answers"))
            shim.chmod(0o755)
        self.reset()
        self.adb = folder / "adb"
        self.adb.write_text(ADB.format(serial=SERIAL, phone=folder))
        self.adb.chmod(0o755)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = str(self._server.getsockname()[1])
        self._answering = threading.Thread(target=self._serve, name="adb-server")
        self._answering.start()

    def close(self) -> None:
        """End the server that stands for adb's. A second call does nothing."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._answering.join()

    def _serve(self) -> None:
        while True:
            try:
                self._server.accept()[0].close()
            except OSError:
                return

    def reset(self) -> None:
        """Restore the normal state, with none of the agent's files on the phone."""
        for name, text in ANSWERS.items():
            self.answer(name, text)
        for cluster, most in ((0, 1785600), (4, 2419200)):
            self.clock(cluster, most, most)
        for name in ("full", "corrupt", "drops", "comes back"):
            self.switch(name, on=False)
        self.state("device")
        self.behave("")
        (self.folder / "bin/taskset").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "data/local/tmp/latfarm", ignore_errors=True)
        self.log()

    def answer(self, name: str, text: str) -> None:
        """Set what a command prints from now on."""
        (self.folder / "answers" / name).write_text(text)

    def changed(self, name: str, old: str, new: str) -> None:
        """Replace a part of what a command prints."""
        text = (self.folder / "answers" / name).read_text()
        assert old in text
        self.answer(name, text.replace(old, new))

    def state(self, state: str) -> None:
        """Set the state that `adb devices` shows."""
        (self.folder / "state").write_text(state)

    def switch(self, name: str, on: bool = True) -> None:
        """Turn a behaviour of the phone on or off.

        Args:
            name: "full": no space is left on the phone; "corrupt": copied files lose their last
                byte; "drops": the phone goes away during a guarded script; "comes back": a
                reconnect makes the phone available again.
            on: whether the phone behaves like this from now on.
        """
        path = self.folder / name
        path.touch() if on else path.unlink(missing_ok=True)

    def behave(self, word: str) -> None:
        """Make the benchmark binaries misbehave as this word says; with "", they work normally."""
        path = self.folder / "data/local/tmp/behave"
        path.write_text(word + "\n") if word else path.unlink(missing_ok=True)

    def clock(self, cluster: int, khz: int, most: int) -> None:
        """Set the current and the highest possible clock of a cluster of cores, in kHz."""
        folder = self.folder / f"sys/devices/system/cpu/cpufreq/policy{cluster}"
        folder.mkdir(parents=True, exist_ok=True)
        values = {
            "scaling_cur_freq": khz,
            "scaling_max_freq": khz,
            "scaling_min_freq": 300000,
            "cpuinfo_max_freq": most,
            "scaling_governor": "schedutil",
        }
        for name, value in values.items():
            (folder / name).write_text(f"{value}\n")

    def log(self) -> list[str]:
        """Return the calls of the adb client since this method was called last."""
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        path.write_text("")
        return lines

    def files(self, folder: str) -> list[Path]:
        """Return all files below one of the agent's folders on the phone, sorted by path."""
        root = self.folder / "data/local/tmp/latfarm" / folder
        return sorted(path for path in root.rglob("*") if path.is_file())


def config(*benchmarks: dict[str, object], **options: object) -> AgentConfig:
    """Return the configuration of an agent that runs these benchmark binaries on the phone."""
    given = {"benchmarks": list(benchmarks), "runs": 3, "warmup_s": 0.0, **options}
    return AgentConfig(runtimes={RUNTIME: RuntimeConfig(options=given)}, confinement=ground())


def ground() -> Confinement:
    """Return a confinement in which the adb client may write to the phone, a folder beside it."""
    client = shutil.which("adb")
    return NOTHING if client is None else Confinement(write=(str(Path(client).parent),))


def write_cnn(path: Path) -> Path:
    """Write a small convolutional network as a TFLite file, and return its path."""
    path.write_bytes(samples()["cnn-fp32"])
    return path
