"""The command line's arguments: commands, options, their helps and examples."""

from __future__ import annotations

import argparse
import difflib
import re
from pathlib import Path
from typing import Any, NoReturn

from latfarm_agent import __version__

SERVE_EXAMPLES = """\
examples:
  latfarm-agent serve --name local --listen 127.0.0.1:50051
  latfarm-agent serve --name imx8-3 --hardware imx8mplus --listen 0.0.0.0:50051 \\
      --tls-cert board.pem --tls-key board.key --tls-ca farm-ca.pem --metrics-port 9101
  latfarm-agent serve --name imx8-3 --config /etc/latfarm/agent.json
  latfarm-agent serve --name toy --simulate npu --port-file /run/toy.port
  latfarm-agent serve --adb 0A041FDD4003BX --config phones.json --name pixel4-1 --hardware pixel4
"""
RACK_EXAMPLES = """\
examples:
  latfarm-agent rack npu --boards 8 --inventory boards.json
  latfarm-agent rack profile.json --boards 64 --measuring-time 1s --inventory boards.json
  latfarm-agent rack profile.json --boards 1000 --measuring-time 5s --listen 127.0.0.1:20000
  latfarm-agent rack profile.json --boards 8 --name bad --faults faults.json
"""
WORK_EXAMPLES = """\
examples:
  latfarm-agent work --socket /run/latfarm/bench.sock --name imx8-3 --config /etc/latfarm/agent.json
  latfarm-agent serve --bench /run/latfarm/bench.sock --name imx8-3 --listen 0.0.0.0:50051 \\
      --tls-cert board.pem --tls-key board.key --tls-ca farm-ca.pem
"""
SETTLE_EXAMPLES = """\
examples:
  latfarm-agent settle /etc/latfarm/settings.json --before /var/lib/latfarm/settings-before.json
  latfarm-agent settle /etc/latfarm/settings.json --check --json
"""
DESCRIBE_EXAMPLES = """\
examples:
  latfarm-agent describe
  latfarm-agent describe --name local --json
  latfarm-agent describe --threads 1,2,4
"""
DOCTOR_EXAMPLES = """\
examples:
  latfarm-agent doctor
  latfarm-agent doctor --json
"""


_UNITS_MS = {"ms": 1.0, "s": 1e3, "min": 60e3}
"""Units of time on the command line, in milliseconds."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|min)")
"""A number and a unit."""


_UNKNOWN = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
"""How argparse refuses a command that does not exist: its name, and those that do."""


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        found = _UNKNOWN.search(message)
        if found is not None:
            known = [name.strip(" '") for name in found[2].split(",")]
            near = difflib.get_close_matches(found[1], known, n=1)
            message += f"; did you mean {near[0]}?" if near else ""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def make_parser() -> argparse.ArgumentParser:
    """The parser of `latfarm-agent`; the chosen command is in `command`."""
    parser = _Parser(
        prog="latfarm-agent", description="Measure DNN latency on this board for a latfarm."
    )
    parser.add_argument("--version", action="version", version=f"latfarm-agent {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="offer this board over gRPC until SIGTERM",
        description="Offer this board over gRPC until SIGTERM.",
        epilog=SERVE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    work = commands.add_parser(
        "work",
        help="measure for an agent that runs `serve --bench`, until SIGTERM",
        description="Measure for an agent that runs `serve --bench` on this board, until SIGTERM. "
        "This process has the board's devices and no network; the other one has the network.",
        epilog=WORK_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    settle = commands.add_parser(
        "settle",
        help="set governors, clocks and power mode as a file says, and check them",
        description="Set governors, clocks and power mode as a file says, and read them back. "
        "The exit code is 1 if a setting has failed. Needs root.",
        epilog=SETTLE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    describe = commands.add_parser(
        "describe",
        help="print what this board is, and which runtimes it has and lacks",
        description="Print what this board is, and which runtimes it has and lacks.",
        epilog=DESCRIBE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor = _add_doctor(commands)
    rack = _add_rack(commands)
    _add_settle_arguments(settle)
    for command in (serve, work, describe):
        _add_board_arguments(command)
    for command in (serve, rack, work, describe, settle, doctor):
        command.add_argument(
            "-v", "--verbose", action="count", default=0, help="log what happens; -vv logs more"
        )
    describe.add_argument("--json", action="store_true", help="print JSON, for other programs")
    _add_work_arguments(work)
    _add_serve_arguments(serve)
    return parser


def _add_work_arguments(work: argparse.ArgumentParser) -> None:
    work.add_argument(
        "--socket",
        type=Path,
        required=True,
        metavar="PATH",
        help="make this Unix socket, where the agent asks for measurements",
    )
    work.add_argument(
        "--state-dir", type=Path, help="folder for scratch files and the caches of runtimes"
    )


def _add_doctor(commands: Any) -> _Parser:
    doctor: _Parser = commands.add_parser(
        "doctor",
        help="print what protects this machine from the models that it runs, and the remedies",
        description="Print what the kernel keeps from the workers that run models: a process is "
        "confined as they are, and tries what must be refused. The exit code is 1 if a protection "
        "is off.",
        epilog=DOCTOR_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("--json", action="store_true", help="print JSON, for other programs")
    return doctor


def _add_rack(commands: Any) -> _Parser:
    rack: _Parser = commands.add_parser(
        "rack",
        help="offer many simulated boards over gRPC from one process, until SIGTERM",
        description="Offer many simulated boards over gRPC from one process, until SIGTERM. Each "
        "board has a port, an id, a lease and a spool of its own. There are no worker processes: "
        "boards compute their latencies in this process, and wait for the measuring time.",
        epilog=RACK_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_rack_boards(rack)
    rack.add_argument(
        "--inventory",
        type=Path,
        metavar="FILE",
        help="write names, addresses and ids of the boards to this file once all serve, in the "
        "format of a controller's boards.json; default: print them",
    )
    rack.add_argument(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="address of the first board; the others take the next ports. Port 0 takes a free port "
        "for each board, and the same ones after a restart (default: 127.0.0.1:0)",
    )
    rack.add_argument(
        "--state-dir", type=Path, help="folder below which each board has a folder of its own"
    )
    _add_parent_argument(rack)
    _add_trust_arguments(rack)
    _add_limit_arguments(rack)
    return rack


def _add_rack_boards(rack: argparse.ArgumentParser) -> None:
    rack.add_argument(
        "profile",
        type=Path,
        metavar="PROFILE",
        help="profile of all boards: a built-in one as for serve --simulate, or a file (JSON)",
    )
    rack.add_argument(
        "--boards", type=_positive, required=True, metavar="N", help="number of boards"
    )
    rack.add_argument(
        "--name",
        default="rack",
        help="begins the names of the boards: rack-0001, rack-0002, ... (default: rack)",
    )
    rack.add_argument("--hardware", help="name of the boards' type; default: --name")
    rack.add_argument(
        "--measuring-time",
        dest="measuring_ms",
        type=_duration_ms,
        metavar="TIME",
        help="real time that one measurement takes, for example 250ms or 5s; default: measure_ms "
        "of the profile",
    )
    rack.add_argument(
        "--faults",
        type=Path,
        metavar="FILE",
        help="let single boards drift, throttle, crash, hang, answer late or restart, as this file "
        "says (JSON)",
    )


def _add_settle_arguments(settle: argparse.ArgumentParser) -> None:
    settle.add_argument("file", type=Path, help="file with the settings (JSON)")
    settle.add_argument(
        "--before", type=Path, help="keep the values from before in this file, for --undo"
    )
    settle.add_argument("--json", action="store_true", help="print JSON, for other programs")
    what = settle.add_mutually_exclusive_group()
    what.add_argument(
        "--check",
        dest="do",
        action="store_const",
        const="check",
        default="set",
        help="change nothing; report which settings differ",
    )
    what.add_argument(
        "--undo",
        dest="do",
        action="store_const",
        const="undo",
        help="restore the values that --before has kept",
    )


def _add_board_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--name", default="local", help="name of the board, as people call it (default: local)"
    )
    command.add_argument(
        "--hardware", help="name of the board's type, shared by equal boards; default: --name"
    )
    command.add_argument(
        "--simulate",
        type=Path,
        metavar="PROFILE",
        help="offer a simulated board instead of this machine: npu, gpu, cpu, branches or overlap, "
        "which are built in, or the board that this file describes",
    )
    command.add_argument(
        "--adb",
        metavar="SERIAL",
        help="offer the phone that `adb devices` lists under this serial, instead of this machine",
    )
    command.add_argument(
        "--cpu", type=int, help="number of the core to measure on; default: the last one"
    )
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="read thread counts, options of runtimes and power rails from this file (JSON)",
    )
    command.add_argument(
        "--threads",
        metavar="N,...",
        help="offer platforms of the CPU with each of these numbers of threads",
    )


def _add_serve_arguments(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--bench",
        type=Path,
        metavar="PATH",
        help="do not measure in this process: ask `latfarm-agent work` at this Unix socket",
    )
    serve.add_argument(
        "--listen",
        default="127.0.0.1:50051",
        metavar="HOST:PORT",
        help="address to serve on (default: 127.0.0.1:50051); port 0 takes any free port",
    )
    serve.add_argument(
        "--controller",
        default="",
        metavar="HOST:PORT",
        help="call the controller there and listen nowhere, for a board that cannot be called; "
        "needs certificates, and `latfarm boards add NAME --dials-in` on the controller",
    )
    serve.add_argument(
        "--controller-name",
        default="",
        metavar="NAME",
        help="name in the certificate of that controller; default: its HOST",
    )
    serve.add_argument(
        "--state-dir", type=Path, help="folder for models, results and the lease token"
    )
    serve.add_argument(
        "--port-file", type=Path, help="write HOST:PORT to this file once the agent serves"
    )
    _add_parent_argument(serve)
    serve.add_argument(
        "--metrics-port", type=int, help="answer Prometheus at /metrics on this port"
    )
    _add_trust_arguments(serve)
    _add_limit_arguments(serve)


def _add_parent_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--exit-with-parent",
        nargs="?",
        type=int,
        const=0,
        metavar="PID",
        help="end when the process that started the agent ends; PID: its process id, if known",
    )


def _add_trust_arguments(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--tls-cert", type=Path, help="certificate of this board (PEM)")
    serve.add_argument("--tls-key", type=Path, help="key of that certificate (PEM)")
    serve.add_argument("--tls-ca", type=Path, help="CA that signs the clients' certificates (PEM)")
    serve.add_argument(
        "--tls-revoked",
        type=Path,
        help="list of revoked certificates; default: revoked.json beside --tls-ca",
    )
    serve.add_argument(
        "--insecure",
        action="store_true",
        help="serve beyond loopback without certificates: everybody there may use this board",
    )
    serve.add_argument(
        "--reflection", action="store_true", help="let tools like grpcurl list the service"
    )


def _add_limit_arguments(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--max-blob-mb",
        type=_positive,
        default=4096,
        help="size limit of one model, in MiB (default: 4096)",
    )
    serve.add_argument(
        "--max-cache-mb",
        type=_positive,
        default=4096,
        help="size limit of all kept models together, in MiB (default: 4096)",
    )
    serve.add_argument(
        "--max-upload-mb-per-s",
        type=_positive,
        default=256,
        help="rate limit of all uploads together, in MiB/s (default: 256)",
    )
    serve.add_argument(
        "--max-spooled",
        type=_positive,
        default=10_000,
        help="how many results may wait to be acknowledged (default: 10000)",
    )


def _duration_ms(text: str) -> float:
    """A time with its unit, such as 250ms, 5s or 2min, in milliseconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; give for example 250ms or 5s")
    return float(found[1]) * _UNITS_MS[found[2]]


def _positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
