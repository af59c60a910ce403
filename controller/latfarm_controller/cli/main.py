"""The command line of `latfarm`: its commands, exit codes and signals.

Exit codes: 0 done, 1 failed, 2 wrong usage or input, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from latfarm_predictors.errors import BundleError, PredictorsError
from typer.exceptions import TyperException

from latfarm_controller.cli.shell import output
from latfarm_controller.cli.shell.printable import printable_streams
from latfarm_controller.cli.shell.progress import INTERRUPTED
from latfarm_controller.errors import ControllerError
from latfarm_controller.private_files import private_umask

app = typer.Typer(
    name="latfarm",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    help="""
    Measure DNN latency on a farm of boards, and predict it with honest confidence.

    Exit codes: 0 done, 1 failed, 2 wrong usage or input, 130 interrupted.

    \b
    Examples:
      latfarm demo
      latfarm characterize --platform local-onnxruntime1.31-fp32-1t
      latfarm predict model.onnx --platform local-onnxruntime1.31-fp32-1t --json
    """,
)

# Modules of this package in the order in which `latfarm --help` lists their commands.
COMMANDS = (
    "campaigns.demo",
    "farm.doctor",
    "farm.boards",
    "farm.certs",
    "farm.audit",
    "farm.platforms",
    "campaigns.plan",
    "campaigns.characterize",
    "campaigns.cover",
    "campaigns.profile",
    "campaigns.campaign",
    "campaigns.engines",
    "answers.predict",
    "answers.query",
    "answers.probes",
    "answers.compare",
    "answers.report",
    "answers.results",
    "database.db",
    "database.backup",
    "campaigns.fusion",
    "networks.graph",
    "answers.bundle",
    "answers.train",
    "networks.zoo",
    "farm.serve",
)


def _tell_version(wanted: bool) -> None:
    """Print the version and end, if that is wanted."""
    if wanted:
        from importlib.metadata import version

        print(f"latfarm {version('latfarm-controller')}")
        raise typer.Exit


@app.callback()
def options(
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, help="Log more: -v information, -vv debugging."
        ),
    ] = 0,
    home: Annotated[
        str, typer.Option("--home", envvar="LATFARM_HOME", help="Folder of all state of latfarm.")
    ] = "",
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """Apply the options that all commands share."""
    del version  # its callback has printed it
    if home:
        os.environ["LATFARM_HOME"] = home
    output.set_verbosity(verbose)


for _name in COMMANDS:
    import_module(f"latfarm_controller.cli.{_name}").register(app)


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    # A second signal must not disturb the orderly stop that the first one began.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors become one line on standard error.

    Args:
        arguments: the command line without the program's name; None: that of this process.
    """
    with printable_streams():
        return _written_out(_run(arguments))


def _written_out(code: int) -> int:
    """The exit code of a command, once its output has left this process.

    Python writes what is left in its buffer only after the exit code was chosen. On a full disk the
    output would then be cut off, and the exit code would be 120.
    """
    try:
        if getattr(sys, "stdout", None) is not None:  # it may have been closed from the start
            sys.stdout.flush()
    except OSError as error:
        _discard_output()
        if code == 0 and not isinstance(error, BrokenPipeError):
            output.error(f"standard output cannot be written: {error.strerror or error}")
            return 1
    return code


def _discard_output() -> None:
    """Send to nowhere what nobody can take, so that Python does not try it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str] | None) -> int:
    signal.signal(signal.SIGTERM, _terminate)
    # Ray starts processes by fork and exec. It would hang in the handlers that gRPC installs for
    # processes that fork without exec.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        with private_umask():
            code = app(args=arguments, prog_name="latfarm", standalone_mode=False)
    except TyperException as error:
        usage: Any = error  # the base class does not declare what its subclasses have
        usage.show()
        return int(usage.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except ControllerError as error:
        output.error(str(error))
        return error.exit_code
    except PredictorsError as error:
        output.error(str(error))
        return 1 if isinstance(error, BundleError) else 2
    except SystemExit as stop:  # typer raises it when the reader of our output has gone
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        _discard_output()
        return 0
    except OSError as error:  # for example a full disk, or a file that may not be written
        where = f"{error.filename}: " if error.filename else ""
        output.error(f"{where}{error.strerror or error}")
        return 1
    # typer too turns the signal into this exit code. Commands that have more to say raise
    # `Interrupted`.
    if code == INTERRUPTED:
        output.error("interrupted")
    return int(code or 0)


def main() -> NoReturn:
    """Run the console script `latfarm`."""
    code = run()
    if code == INTERRUPTED:
        _leave_threads(code)
    sys.exit(code)


def _leave_threads(code: int) -> None:
    """End at once if threads still compute, as those that fit baselines for a report.

    Python waits at its end for threads of executors, which nobody can stop; a fit takes minutes.
    All that must be closed, such as the store, was closed before.
    """
    working = [t for t in threading.enumerate() if t is not threading.main_thread()]
    if any(thread.is_alive() and not thread.daemon for thread in working):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
