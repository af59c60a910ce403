"""The console script `latfarm-agent`: ends quietly where Ctrl-C comes during its imports.

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
try:
    import signal  # it imports more
except KeyboardInterrupt:
    os.write(2, b"latfarm-agent: interrupted\n")
    os._exit(INTERRUPTED)


def main() -> int:
    """Run one command; gives the exit code."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # a shell may have had the signal ignored
        signal.signal(signal.SIGINT, _leave)
    try:
        from latfarm_agent import cli

        if usual is signal.default_int_handler:
            signal.signal(signal.SIGINT, usual)
        return cli.main()
    except KeyboardInterrupt:  # between this function and the command, or from an import itself
        print("latfarm-agent: interrupted", file=sys.stderr)
        return INTERRUPTED


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """End the process at once: nothing is open yet, and an import may swallow a KeyboardInterrupt.

    Finalizers and callbacks of the import system print and drop what is raised in them, and
    extension modules turn it into an ImportError.
    """
    os.write(2, b"latfarm-agent: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
