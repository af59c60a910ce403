"""The console script `latfarm`: ends quietly where Ctrl-C comes while its modules are imported.

Until it has run, Python tells an interrupt with a traceback. So it imports nothing that takes time.
"""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130
"""The exit code after an interrupt, 128 + SIGINT as shells count it."""
TYPE_CHECKING = False  # `typing` takes longer to import than everything else here
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn
try:
    import signal  # it imports more
except KeyboardInterrupt:
    os.write(2, b"latfarm: interrupted\n")
    os._exit(INTERRUPTED)


def main() -> NoReturn:
    """Run one command, and end the process with its exit code."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # a shell may have had the signal ignored
        signal.signal(signal.SIGINT, _leave)
    try:
        from latfarm_controller.cli import main as command_line  # takes most of the first second

        if usual is signal.default_int_handler:
            signal.signal(signal.SIGINT, usual)
        command_line.main()
    except KeyboardInterrupt:  # between this function and the command, or from an import itself
        print("latfarm: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _leave(_signal: int, _frame: FrameType | None) -> NoReturn:
    """End the process at once: nothing is open yet, and an import may swallow a KeyboardInterrupt.

    Finalizers and callbacks of the import system print and drop what is raised in them, and
    extension modules turn it into an ImportError.
    """
    os.write(2, b"latfarm: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
