"""Entry point of `latfarm`: commands, exit codes, signals.

Exit codes: 0 done, 1 failed, 2 bad usage or input, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from latfarm_predictors.errors import BundleError, PredictorsError
from typer.exceptions import TyperException

from latfarm_controller.cli.shell import output
from latfarm_controller.cli.shell.progress import INTERRUPTED
from latfarm_controller.errors import ControllerError

app = typer.Typer(
    name="latfarm",
    no_args_is_help=True,
    add_completion=False,
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

COMMANDS = (
    "campaigns.demo",
    "farm.doctor",
    "farm.boards",
    "farm.certs",
    "farm.platforms",
    "campaigns.characterize",
    "campaigns.cover",
    "campaigns.campaign",
    "campaigns.engines",
    "answers.predict",
    "answers.query",
    "answers.report",
    "answers.results",
    "campaigns.fusion",
    "networks.graph",
    "answers.bundle",
    "networks.zoo",
    "farm.serve",
)


@app.callback()
def options(
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="log more: -v info, -vv debug")
    ] = 0,
    home: Annotated[
        str, typer.Option("--home", envvar="LATFARM_HOME", help="where all state lives")
    ] = "",
) -> None:
    """Options of every command."""
    if home:
        os.environ["LATFARM_HOME"] = home
    output.set_verbosity(verbose)


for _name in COMMANDS:
    import_module(f"latfarm_controller.cli.{_name}").register(app)


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    # A second signal must not break the orderly stop that the first one began.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Errors become one line on standard error."""
    signal.signal(signal.SIGTERM, _terminate)
    # Ray starts its processes by fork and exec, and would hang in gRPC's handlers for mere forks.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        code = app(args=arguments, prog_name="latfarm", standalone_mode=False)
    except TyperException as error:
        usage: Any = error  # its base class does not tell what all its kinds have
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
    except SystemExit as stop:  # the parser's own, for a reader of our output that left
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a file that may not be written
        where = f"{error.filename}: " if error.filename else ""
        output.error(f"{where}{error.strerror or error}")
        return 1
    # The parser too makes an exit code of the signal. Who has more to say raises `Interrupted`.
    if code == INTERRUPTED:
        output.error("interrupted")
    return int(code or 0)


def main() -> NoReturn:
    """Console script."""
    sys.exit(run())


if __name__ == "__main__":
    main()
