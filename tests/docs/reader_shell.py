"""Runs the commands of a tutorial in one shell, as its reader does, in an empty environment."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests import leftovers
from tests.docs.tutorial_page import Step

MARK = "\x1e"
"""Stands around the exit code after the output of each command: no command prints it."""

LONGEST_S = 280.0
"""Longest duration of a page on a busy host, in seconds; on an idle one it is below a minute."""


@dataclass(frozen=True)
class Told:
    """What a command printed on both streams, and its exit code; None: the shell ended before."""

    printed: str
    code: int | None


@dataclass(frozen=True)
class Ran:
    """How a page ran.

    Attributes:
        told: what each command told, up to the first one with an unexpected exit code.
        left: command lines of the programs that had to be ended after the last command.
    """

    told: Sequence[Told]
    left: Sequence[str]


@dataclass(frozen=True)
class ReaderShell:
    """The shell of a reader.

    Attributes:
        folder: the folder in which the reader works.
        home: the home of the reader.
        programs: folders with programs, which are looked for here before the system's.
        end_s: how long programs may take to end after the last command, in seconds.
    """

    folder: Path
    home: Path
    programs: Sequence[Path]
    end_s: float = 30.0

    def run(self, steps: Sequence[Step]) -> Ran:
        """Run commands in one shell, one after the other, until one ends with an unexpected code.

        Programs that the commands leave behind are ended.
        """
        script = self.home / "page.sh"
        script.write_text(_script(steps), encoding="utf-8")
        output = self.home / "output"
        with output.open("wb") as stream:
            shell = subprocess.Popen(
                ["env", "-i", *self._variables(), "bash", "--noprofile", "--norc", str(script)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                shell.wait(LONGEST_S)
                self._wait_for_end()
                left = [" ".join(process.info["cmdline"] or ()) for process in self._processes()]
            finally:
                self._end(shell)
        parts = output.read_text(encoding="utf-8", errors="replace").split(MARK)
        told = [Told(parts[i], int(parts[i + 1])) for i in range(0, len(parts) - 1, 2)]
        if len(told) < len(steps) and (not told or told[-1].code == steps[len(told) - 1].code):
            told.append(Told(parts[-1], None))  # the shell itself has ended
        return Ran(told, left)

    def _variables(self) -> list[str]:
        path = os.pathsep.join([*map(str, self.programs), "/usr/local/bin", "/usr/bin", "/bin"])
        mark = os.environ.get(leftovers.MARK_VARIABLE)
        # The mark is the only variable beside the two: it lets the test run end what it left.
        marked = [f"{leftovers.MARK_VARIABLE}={mark}"] if mark else []
        return [f"PATH={path}", f"HOME={self.home}", *marked]

    def _processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            with suppress(psutil.Error):
                if process.environ().get("HOME") == str(self.home):
                    found.append(process)
        return found

    def _wait_for_end(self) -> None:
        """Wait for the end of all programs of this reader, but not longer than allowed."""
        deadline_s = time.monotonic() + self.end_s
        while self._processes() and time.monotonic() < deadline_s:
            time.sleep(0.05)

    def _end(self, shell: subprocess.Popen[bytes]) -> None:
        """End the programs of this reader that are left, the newest first."""
        if shell.poll() is None:
            shell.kill()
            shell.wait()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in reversed(self._processes()):
                with suppress(psutil.Error):
                    process.send_signal(number)
            self._wait_for_end()


def _script(steps: Sequence[Step]) -> str:
    """A script that runs the commands, and ends after the first unexpected exit code."""
    lines = []
    for step in steps:
        lines += [
            step.command,
            f"code=$?; printf '{_octal(MARK)}%d{_octal(MARK)}' $code",
            f"[ $code = {step.code} ] || exit 0",
            "(exit $code)",
        ]
    return "\n".join(lines) + "\n"


def _octal(text: str) -> str:
    return "".join(f"\\{ord(character):03o}" for character in text)
