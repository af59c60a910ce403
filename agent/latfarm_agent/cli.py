"""The commands `latfarm-agent serve`, `rack`, `work`, `settle`, `describe` and `doctor`.

Exit codes: 0 ended as asked, 1 failed, 2 wrong usage, 130 interrupted. Errors are one line.
What is slow to import is imported by the command that needs it, so that the others start quickly.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Sequence

from latfarm_agent.arguments import make_parser
from latfarm_agent.errors import AgentUsageError, LatfarmAgentError
from latfarm_agent.files.folders import write_whole

if TYPE_CHECKING:
    from latfarm_agent.bench.measuring import MeasuringBench
    from latfarm_agent.service.server import ServiceConfig
    from latfarm_agent.service.tls import AgentTlsFiles


def main(
    argv: Sequence[str] | None = None,
    make_bench: Callable[[argparse.Namespace, Path], MeasuringBench] | None = None,
) -> int:
    """Run one command; gives the exit code.

    Args:
        argv: arguments without the program's name; None takes the process's.
        make_bench: makes the bench from the arguments and a work folder; None: the bench that the
            arguments ask for.
    """
    parent_pid = os.getppid()
    args = make_parser().parse_args(argv)
    _set_up_logging(args.verbose)
    # Workers are started by fork and exec. gRPC installs handlers for forks, which with grpcio 1.80
    # and newer end the child between the two calls now and then; Python 3.9 and older use a true
    # fork and are affected.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        if args.command == "serve":
            return _serve(args, make_bench or _real_bench, parent_pid)
        if args.command == "rack":
            return _rack(args, parent_pid)
        if args.command == "settle":
            return _settle(args)
        if args.command == "work":
            return _work(args, make_bench or _real_bench)
        if args.command == "doctor":
            return _doctor(args)
        return _describe(args, make_bench or _real_bench)
    except LatfarmAgentError as error:
        print(f"latfarm-agent: error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("latfarm-agent: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The program that reads our output has ended: there is nobody to report an error to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _serve(
    args: argparse.Namespace,
    make_bench: Callable[[argparse.Namespace, Path], MeasuringBench],
    parent_pid: int,
) -> int:
    # gRPC is slow to import: `describe`, `--help` and wrong usage do not need it.
    from latfarm_protos.trust.http_port import HttpPort

    from latfarm_agent.service.lifetime import Ending
    from latfarm_agent.service.server import AgentServer

    if args.controller and (args.metrics_port is not None or args.port_file is not None):
        raise AgentUsageError(
            "--controller: the agent listens nowhere: leave --metrics-port and --port-file out"
        )
    config = _service_config(args)
    state_dir = config.state_dir
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
        how = f"calls {args.controller}" if args.controller else f"serves on {server.address}"
        print(f"latfarm-agent: {args.name} {how}", file=sys.stderr)
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


def _rack(args: argparse.Namespace, parent_pid: int) -> int:
    from latfarm_agent.rack.faults import read_faults
    from latfarm_agent.rack.rack import SWITCH_S, Rack, RackConfig, board_names
    from latfarm_agent.service.lifetime import Ending

    faults = {}
    if args.faults is not None:
        faults = read_faults(args.faults, board_names(args.name, args.boards))
    rack = Rack(
        RackConfig(
            profile=args.profile,
            boards=args.boards,
            service=_service_config(args),
            name=args.name,
            hardware=args.hardware or "",
            measuring_ms=args.measuring_ms,
            faults=faults,
        )
    )
    ending = Ending()
    served = False
    try:
        if args.exit_with_parent is not None:
            ending.follow_parent(args.exit_with_parent or parent_pid)
        sys.setswitchinterval(SWITCH_S)
        rack.start()
        # What lives as long as the process need not be visited by each collection.
        gc.collect()
        gc.freeze()
        if args.inventory is None:
            print(rack.inventory_text(), end="", flush=True)
        else:
            write_whole(args.inventory, rack.inventory_text())
        served = True
        print(f"latfarm-agent: {args.name} serves {args.boards} boards", file=sys.stderr)
        ending.wait()
    finally:
        rack.stop()
        if served and args.inventory is not None:
            with contextlib.suppress(OSError):
                args.inventory.unlink()
        ending.close()
    return 130 if ending.interrupted else 0


def _service_config(args: argparse.Namespace) -> ServiceConfig:
    """How to serve, from the options of `serve` and `rack`."""
    from latfarm_agent.service.server import ServiceConfig

    return ServiceConfig(
        state_dir=_state_dir(args),
        listen=args.listen,
        controller=getattr(args, "controller", ""),
        controller_name=getattr(args, "controller_name", ""),
        tls=_tls_files(args),
        insecure=args.insecure,
        reflection=args.reflection,
        max_blob_bytes=args.max_blob_mb << 20,
        max_cache_bytes=args.max_cache_mb << 20,
        max_spooled=args.max_spooled,
        max_upload_bytes_per_s=args.max_upload_mb_per_s << 20,
    )


def _work(
    args: argparse.Namespace, make_bench: Callable[[argparse.Namespace, Path], MeasuringBench]
) -> int:
    from latfarm_agent.link.server import BenchServer
    from latfarm_agent.service.lifetime import Ending

    work_dir = _state_dir(args) / "bench"
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
    for name, told in board.protection.items():
        print(f"protection {name}: {told}")
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from latfarm_agent.bench.doctor import REMEDIES, examine

    found = examine()
    if args.json:
        print(json.dumps([each.to_json() for each in found], indent=2))
    else:
        print("What the kernel keeps from workers, which run models:")
        for each in found:
            print(f"  {each.name}: {each.told}")
            for attempt in each.passed:
                print(f"    a worker could {attempt}")
            if not each.holds:
                print(f"    remedy: {REMEDIES[each.name]}")
    return 0 if all(each.holds for each in found) else 1


def _hidden(args: argparse.Namespace) -> tuple[Path, ...]:
    """What stays closed to workers: the home, the agent's state, and the folders of its keys."""
    found: list[Path] = []
    with contextlib.suppress(RuntimeError):  # a user without a home has nothing there to hide
        found.append(default_state_dir("local").parent.parent)
    if getattr(args, "state_dir", None) is not None:
        found.append(args.state_dir)
    keys = (getattr(args, name, None) for name in ("tls_cert", "tls_key", "tls_ca"))
    found += [path.absolute().parent for path in keys if path is not None]
    return tuple(path.absolute() for path in found)


def _real_bench(args: argparse.Namespace, work_dir: Path) -> MeasuringBench:
    if getattr(args, "bench", None) is not None:
        if args.simulate or args.adb or args.config or args.threads or args.cpu is not None:
            raise AgentUsageError(
                "--bench: give the options of the board to `latfarm-agent work` instead"
            )
        from latfarm_agent.link.remote import RemoteBench

        return RemoteBench(args.bench)
    from latfarm_agent.agent_config import AgentConfig, parse_threads, read_config
    from latfarm_agent.bench.options import BenchOptions

    config = AgentConfig() if args.config is None else read_config(args.config)
    if args.threads is not None:
        config = dataclasses.replace(config, threads=parse_threads(args.threads))
    options = BenchOptions(args.name, args.hardware, work_dir, config=config, hidden=_hidden(args))
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


def _state_dir(args: argparse.Namespace) -> Path:
    """Where the agent keeps its state.

    Unless a folder is given, it lies in the home of latfarm. That home belongs to its owner alone,
    whichever program makes it first.
    """
    if args.state_dir is not None:
        return Path(args.state_dir)
    folder = default_state_dir(args.name)
    with contextlib.suppress(OSError):  # whoever writes there first tells what is wrong
        for path in (folder.parent.parent, folder.parent, folder):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def default_state_dir(name: str) -> Path:
    """Where an agent of this name keeps its state unless told otherwise.

    Raises:
        AgentUsageError: the name is not a file name.
    """
    if not name or name in (".", "..") or "/" in name:
        raise AgentUsageError(f"--name {name!r} is not a file name: give --state-dir too")
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
