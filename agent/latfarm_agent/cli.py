"""The command line: `latfarm-agent serve`, `latfarm-agent work` and `latfarm-agent describe`.

Exit codes: 0 ended as asked, 1 failed, 2 wrong usage, 130 interrupted. Errors are one line.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Callable, NoReturn, Sequence

from latfarm_agent import __version__
from latfarm_agent.errors import AgentUsageError, LatfarmAgentError
from latfarm_agent.files.folders import write_whole

if TYPE_CHECKING:
    from latfarm_agent.bench.measuring import MeasuringBench
    from latfarm_agent.service.tls import AgentTlsFiles

SERVE_EXAMPLES = """\
examples:
  latfarm-agent serve --name local --listen 127.0.0.1:50051
  latfarm-agent serve --name imx8-3 --hardware imx8mplus --listen 0.0.0.0:50051 \\
      --tls-cert board.pem --tls-key board.key --tls-ca farm-ca.pem --metrics-port 9101
  latfarm-agent serve --name imx8-3 --config /etc/latfarm/agent.json
  latfarm-agent serve --name toy --simulate profile.json --port-file /run/toy.port
  latfarm-agent serve --adb 0A041FDD4003BX --config phones.json --name pixel4-1 --hardware pixel4
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


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(
    argv: Sequence[str] | None = None,
    make_bench: Callable[[argparse.Namespace, Path], MeasuringBench] | None = None,
) -> int:
    """Run one command; gives the exit code.

    Args:
        argv: arguments without the program's name; None takes the process's.
        make_bench: makes what measures from the arguments and a directory; None: the real one.
    """
    parent_pid = os.getppid()
    args = _parser().parse_args(argv)
    _set_up_logging(args.verbose)
    # Workers are started by fork and exec, up to Python 3.9 by a true fork: the handlers for mere
    # forks that gRPC has would now and then end the child in between (grpcio 1.80 and newer do).
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        if args.command == "serve":
            return _serve(args, make_bench or _real_bench, parent_pid)
        if args.command == "settle":
            return _settle(args)
        if args.command == "work":
            return _work(args, make_bench or _real_bench)
        return _describe(args, make_bench or _real_bench)
    except LatfarmAgentError as error:
        print(f"latfarm-agent: error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("latfarm-agent: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output left: nothing to tell, and nobody to tell it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
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
        help="measure for an agent that serves with --bench, until SIGTERM",
        description="Measure for an agent of this board that serves with --bench, until SIGTERM: "
        "with the board's devices, and without a network.",
        epilog=WORK_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    settle = commands.add_parser(
        "settle",
        help="fix governors, clocks and power mode as a file says, and read them back",
        description="Fix governors, clocks and power mode as a file says, and read them back. "
        "Exit code 1 if one that must be so is not. Needs root.",
        epilog=SETTLE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    settle.add_argument("file", type=Path, help="the settings (JSON)")
    settle.add_argument("--before", type=Path, help="keep there what was before, for --undo")
    settle.add_argument("--json", action="store_true", help="for programs")
    what = settle.add_mutually_exclusive_group()
    what.add_argument("--check", dest="do", action="store_const", const="check", default="set")
    what.add_argument("--undo", dest="do", action="store_const", const="undo")
    describe = commands.add_parser(
        "describe",
        help="print what this board is and which runtimes it has and lacks",
        description="Print what this board is and which runtimes it has and lacks.",
        epilog=DESCRIBE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for command in (serve, work, describe):
        command.add_argument("--name", default="local", help="what people call the board")
        command.add_argument("--hardware", help="its kind, shared by equal boards; default: --name")
        command.add_argument(
            "--simulate", type=Path, metavar="PROFILE", help="be the simulated board of a profile"
        )
        command.add_argument(
            "--adb", metavar="SERIAL", help="be the phone that `adb devices` lists as SERIAL"
        )
        command.add_argument("--cpu", type=int, help="core to measure on; default: chosen")
        command.add_argument(
            "--config", type=Path, metavar="FILE", help="thread counts, and options of runtimes"
        )
        command.add_argument(
            "--threads", metavar="N,...", help="offer CPU platforms with so many threads each"
        )
        command.add_argument("-v", "--verbose", action="count", default=0, help="log; -vv: more")
    settle.add_argument("-v", "--verbose", action="count", default=0, help="log; -vv: more")
    describe.add_argument("--json", action="store_true", help="for programs")
    work.add_argument(
        "--socket", type=Path, required=True, metavar="PATH", help="where the agent asks"
    )
    work.add_argument("--state-dir", type=Path, help="scratch files and caches live there")
    serve.add_argument(
        "--bench", type=Path, metavar="PATH", help="let `latfarm-agent work` behind PATH measure"
    )
    _add_serve_arguments(serve)
    return parser


def _add_serve_arguments(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--listen", default="127.0.0.1:50051", metavar="HOST:PORT", help="port 0: any free one"
    )
    serve.add_argument("--state-dir", type=Path, help="models, results and tokens live there")
    serve.add_argument("--port-file", type=Path, help="gets HOST:PORT once serving")
    serve.add_argument(
        "--exit-with-parent",
        nargs="?",
        type=int,
        const=0,
        metavar="PID",
        help="end when the process that started the agent ends; PID: its id, if known",
    )
    serve.add_argument("--metrics-port", type=int, help="answer /metrics for Prometheus there")
    serve.add_argument("--tls-cert", type=Path, help="this board's certificate (PEM)")
    serve.add_argument("--tls-key", type=Path, help="its key (PEM)")
    serve.add_argument("--tls-ca", type=Path, help="CA that signs the clients' certificates (PEM)")
    serve.add_argument(
        "--tls-revoked", type=Path, help="who is shut out; default: revoked.json beside --tls-ca"
    )
    serve.add_argument(
        "--insecure", action="store_true", help="listen beyond loopback without certificates"
    )
    serve.add_argument("--reflection", action="store_true", help="let grpcurl list the service")
    serve.add_argument("--max-blob-mb", type=_positive, default=4096, help="one model (MiB)")
    serve.add_argument("--max-cache-mb", type=_positive, default=4096, help="all models kept (MiB)")
    serve.add_argument(
        "--max-upload-mb-per-s", type=_positive, default=256, help="all uploads together (MiB/s)"
    )
    serve.add_argument("--max-spooled", type=_positive, default=10_000, help="waiting results")


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise ValueError(text)
    return value


def _serve(
    args: argparse.Namespace,
    make_bench: Callable[[argparse.Namespace, Path], MeasuringBench],
    parent_pid: int,
) -> int:
    # gRPC is slow to import: `describe`, `--help` and wrong usage do without.
    from latfarm_protos.trust.http_port import HttpPort

    from latfarm_agent.service.lifetime import Ending
    from latfarm_agent.service.server import AgentServer, ServiceConfig

    state_dir = args.state_dir or default_state_dir(args.name)
    config = ServiceConfig(
        state_dir=state_dir,
        listen=args.listen,
        tls=_tls_files(args),
        insecure=args.insecure,
        reflection=args.reflection,
        max_blob_bytes=args.max_blob_mb << 20,
        max_cache_bytes=args.max_cache_mb << 20,
        max_spooled=args.max_spooled,
        max_upload_bytes_per_s=args.max_upload_mb_per_s << 20,
    )
    ending = Ending()
    metrics_server: HttpPort | None = None
    server: AgentServer | None = None
    served = False
    try:
        if args.exit_with_parent is not None:
            ending.follow_parent(args.exit_with_parent or parent_pid)
        server = AgentServer(config, lambda: make_bench(args, state_dir / "bench"))
        server.start()
        if args.metrics_port is not None:
            host = args.listen.rpartition(":")[0]
            metrics_server = server.serve_metrics(args.metrics_port)
            url = f"{metrics_server.scheme}://{host}:{metrics_server.port}/metrics"
            print(f"latfarm-agent: {args.name} answers {url}", file=sys.stderr)
        if args.port_file is not None:
            write_whole(args.port_file, f"{server.address}\n")
        served = True
        print(f"latfarm-agent: {args.name} serves on {server.address}", file=sys.stderr)
        ending.wait()
    finally:
        if metrics_server is not None:
            metrics_server.close()
        if server is not None:
            server.stop()
        if served and args.port_file is not None:
            with contextlib.suppress(OSError):
                args.port_file.unlink()
        ending.close()
    return 130 if ending.interrupted else 0


def _work(
    args: argparse.Namespace, make_bench: Callable[[argparse.Namespace, Path], MeasuringBench]
) -> int:
    from latfarm_agent.link.server import BenchServer
    from latfarm_agent.service.lifetime import Ending

    work_dir = (args.state_dir or default_state_dir(args.name)) / "bench"
    try:
        work_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AgentUsageError(f"cannot use {work_dir}: {error.strerror or error}") from error
    ending = Ending()
    try:
        bench = make_bench(args, work_dir)
        with contextlib.closing(bench):
            server = BenchServer(bench, args.socket, work_dir)
            with contextlib.closing(server):
                server.start()
                print(f"latfarm-agent: {args.name} measures behind {args.socket}", file=sys.stderr)
                ending.wait()
    finally:
        ending.close()
    return 130 if ending.interrupted else 0


def _settle(args: argparse.Namespace) -> int:
    from latfarm_agent.board.settings import Settled, apply, read_wanted

    outcomes = apply(read_wanted(args.file), args.before, change=args.do)
    if args.json:
        print(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes], indent=1))
    else:
        for outcome in outcomes:
            print(outcome)
    return 1 if any(outcome.state is Settled.FAILED for outcome in outcomes) else 0


def _describe(
    args: argparse.Namespace, make_bench: Callable[[argparse.Namespace, Path], MeasuringBench]
) -> int:
    from latfarm_agent import wire

    with tempfile.TemporaryDirectory(prefix="latfarm-agent-") as directory:
        bench = make_bench(args, Path(directory))
        try:
            board, runtimes = bench.describe()
        finally:
            bench.close()
    if args.json:
        found = wire.described_json(board, runtimes)
        print(json.dumps(found, indent=2, sort_keys=True))
        return 0
    print(f"board {board.name} ({board.board_id})")
    for title, values in (("hardware", board.hardware), ("conditions", board.conditions)):
        for key in sorted(values):
            print(f"  {title} {key}: {values[key]}")
    for runtime in runtimes:
        if not runtime.available:
            print(f"runtime {runtime.name}: missing: {runtime.missing}")
            continue
        print(f"runtime {runtime.name} {runtime.version}")
        for platform in runtime.platforms:
            print(f"  platform {platform.name} ({platform.model_format}, {platform.dtype})")
        if runtime.missing:
            print(f"  missing: {runtime.missing}")
    return 0


def _real_bench(args: argparse.Namespace, work_dir: Path) -> MeasuringBench:
    if getattr(args, "bench", None) is not None:
        if args.simulate or args.adb or args.config or args.threads or args.cpu is not None:
            raise AgentUsageError("--bench: what measures is told to `latfarm-agent work` there")
        from latfarm_agent.link.remote import RemoteBench

        return RemoteBench(args.bench)
    from latfarm_agent.agent_config import AgentConfig, parse_threads, read_config
    from latfarm_agent.bench.options import BenchOptions

    config = AgentConfig() if args.config is None else read_config(args.config)
    if args.threads is not None:
        config = dataclasses.replace(config, threads=parse_threads(args.threads))
    options = BenchOptions(args.name, args.hardware, work_dir, config=config)
    if args.adb is not None:
        if args.simulate is not None or args.cpu is not None:
            raise AgentUsageError(
                "--adb: a phone has no --simulate, and its cores are in its --config"
            )
        from latfarm_agent.bench.phone import phone_bench

        return phone_bench(args.adb, options)
    if args.simulate is not None:
        from latfarm_agent.bench.simulated import simulated_bench

        return simulated_bench(options, args.simulate)
    from latfarm_agent.bench.host import host_bench

    return host_bench(options, args.cpu)


def _tls_files(args: argparse.Namespace) -> AgentTlsFiles | None:
    given = [args.tls_cert, args.tls_key, args.tls_ca]
    if not any(given):
        return None
    from latfarm_agent.service.tls import AgentTlsFiles

    if not all(given):
        raise AgentUsageError("--tls-cert, --tls-key and --tls-ca belong together: give all three")
    return AgentTlsFiles(args.tls_cert, args.tls_key, args.tls_ca, args.tls_revoked)


def default_state_dir(name: str) -> Path:
    """Where an agent of this name keeps its state unless told otherwise.

    Raises:
        UsageError: the name is no file name.
    """
    if not name or name in (".", "..") or "/" in name:
        raise AgentUsageError(f"--name {name!r} is no file name: give --state-dir too")
    home = os.environ.get("LATFARM_HOME")
    if home:
        return Path(home) / "agents" / name
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "latfarm" / "agents" / name


def _set_up_logging(verbose: int) -> None:
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )


if __name__ == "__main__":
    sys.exit(main())
