"""How long commands take from their start to their end, each in a new process.

    make bench-startup                                          all commands, ten rounds
    make bench-startup BENCH_FLAGS="--rounds 2 --kernels 200"   a quick look, with a small bundle

A home of its own has one simulated board, this machine as a board, and a bundle that was fitted to
measurements of a synthetic board. Every command runs once before time is taken, so that its files
are in the page cache; `predict` is cold in that it is a new process. Rounds are interleaved: a
command runs once in each, so that a busy moment of the host disturbs all of them. Commands that ask
a controller run with `latfarm serve` beside them, and again without it.

The median is compared with what was promised. The load of the host and the time that its hypervisor
gave to other machines are told beside it: figures of a busy host mean little.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions

from benchmarks.farm.machine import core_times_s
from benchmarks.predict_speed import train

LATFARM = Path(sys.executable).with_name("latfarm")
"""The command as people start it."""
READY_S = 120.0
"""Longest wait for `latfarm serve` on a busy host, in seconds."""


@dataclass
class StartUp:
    """A command whose duration is taken.

    Attributes:
        name: what the table calls it.
        words: its command line.
        most_s: longest median that was promised, in seconds.
        serves: whether `latfarm serve` runs meanwhile.
        taken_s: durations in seconds, one for each round.
    """

    name: str
    words: Sequence[str]
    most_s: float
    serves: bool = False
    taken_s: list[float] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The figures as plain JSON types."""
        deciles = quantiles(self.taken_s, n=10) if len(self.taken_s) > 1 else self.taken_s * 9
        return {
            "command": self.name,
            "with_serve": self.serves,
            "median_s": round(median(self.taken_s), 3),
            "least_s": round(min(self.taken_s), 3),
            "ninth_decile_s": round(deciles[-1], 3),
            "promised_s": self.most_s,
            "kept": median(self.taken_s) <= self.most_s,
            "rounds": len(self.taken_s),
        }


def start_ups(model: Path, name: str) -> list[StartUp]:
    """The commands, with what was promised of each."""
    return [
        StartUp("latfarm --help", ("--help",), 0.3),
        StartUp("latfarm predict", ("predict", str(model), "-p", name), 0.8),
        StartUp("latfarm boards", ("boards",), 2.0),
        StartUp("latfarm platforms", ("platforms",), 2.0),
        StartUp("latfarm boards", ("boards",), 1.0, serves=True),
        StartUp("latfarm platforms", ("platforms",), 1.0, serves=True),
    ]


def published(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of the documentation's table: one for each command.

    Args:
        rows: the commands as `StartUp.to_json` gives them.
    """
    return [
        f"| `{row['command']}` | {'yes' if row['with_serve'] else 'no'} | {row['median_s']:.2f} s "
        f"| {row['ninth_decile_s']:.2f} s | {row['promised_s']:.1f} s |"
        for row in rows
    ]


@dataclass(frozen=True)
class BenchHome:
    """A home of latfarm for this benchmark.

    Attributes:
        folder: the home.
        local: whether this machine is a board, too.
    """

    folder: Path
    local: bool

    def environment(self) -> dict[str, str]:
        """The environment of a command in this home."""
        plain = {k: v for k, v in os.environ.items() if not k.startswith("LATFARM_")}
        own = {"LATFARM_HOME": str(self.folder), "LATFARM_LOCAL_AGENT": str(self.local).lower()}
        return plain | own

    def run(self, *words: str) -> float:
        """Run a command, which must succeed; its duration in seconds."""
        began_s = time.perf_counter()
        done = subprocess.run(
            [str(LATFARM), *words],
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        took_s = time.perf_counter() - began_s
        if done.returncode:
            raise SystemExit(f"latfarm {' '.join(words)} failed:\n{done.stdout}{done.stderr}")
        return took_s

    @contextmanager
    def serving(self) -> Iterator[None]:
        """`latfarm serve` during a block."""
        log = self.folder / "serve.log"
        with log.open("w") as stream:
            serve = subprocess.Popen(
                [str(LATFARM), "serve"], env=self.environment(), stdout=stream, stderr=stream
            )
        try:
            deadline_s = time.monotonic() + READY_S
            while "serves on" not in log.read_text(encoding="utf-8"):
                if serve.poll() is not None or time.monotonic() > deadline_s:
                    raise SystemExit(f"latfarm serve is not ready:\n{log.read_text()}")
                time.sleep(0.1)
            yield
        finally:
            serve.terminate()
            serve.wait()


def measure(home: BenchHome, commands: Sequence[StartUp], rounds: int) -> None:
    """Take the durations of commands, which run one after the other in each round."""
    for command in commands:
        home.run(*command.words)
    for _ in range(rounds):
        for command in commands:
            command.taken_s.append(home.run(*command.words))


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Make the home, and take all durations in it."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="latfarm-startup-") as name:
        folder = Path(name)
        home = BenchHome(folder / "home", arguments.local)
        bundle, _ = train(folder, arguments.kernels)
        home.run("bundle", "import", str(bundle))
        home.run("zoo", "export", "mobilenet-v2", "-o", str(folder))
        commands = start_ups(folder / "mobilenet-v2.onnx", "synthetic-1t")
        options = LocalAgentOptions(
            folder / "board", folder / "board.log", "toy", simulate=Path("npu")
        )
        with LocalAgent(options) as agent:
            home.run("boards", "add", "toy", agent.address)
            began_s, (_, stolen_before_s) = time.monotonic(), core_times_s(cores)
            measure(home, [c for c in commands if not c.serves], arguments.rounds)
            with home.serving():
                measure(home, [c for c in commands if c.serves], arguments.rounds)
            stolen_s = core_times_s(cores)[1] - stolen_before_s
            whole_s = (time.monotonic() - began_s) * len(cores)
    return {
        "commands": [command.to_json() for command in commands],
        "this_machine_is_a_board": arguments.local,
        "kernels": arguments.kernels,
        "host": {
            "machine": platform.machine(),
            "python": platform.python_version(),
            "cores": len(cores),
            "load": [round(value, 2) for value in os.getloadavg()],
            "steal": round(stolen_s / whole_s, 4),
        },
    }


def table(found: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [f"{'command':<34}{'median, s':>10}{'9th decile, s':>15}{'promised, s':>13}"]
    for row in found["commands"]:
        beside = " beside serve" if row["with_serve"] else ""
        late = "" if row["kept"] else "  not kept"
        lines.append(
            f"{row['command'] + beside:<34}{row['median_s']:>10.3f}{row['ninth_decile_s']:>15.3f}"
            f"{row['promised_s']:>13.1f}{late}"
        )
    host = found["host"]
    lines.append(
        f"{host['cores']} cores, load {' '.join(map(str, host['load']))}, "
        f"steal {host['steal']:.1%}, Python {host['python']}"
    )
    return "\n".join(lines)


def main() -> None:
    """Take the durations, and print or write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="rounds that are counted")
    parser.add_argument("--kernels", type=int, default=1500, help="kernels behind the bundle")
    parser.add_argument(
        "--no-local", dest="local", action="store_false", help="this machine is no board"
    )
    parser.add_argument("--write", type=Path, help="also write the figures as JSON to this file")
    arguments = parser.parse_args()
    found = run(arguments)
    print(table(found))
    if arguments.write:
        arguments.write.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
