"""Releases of the agent for tests of upgrades: copies of our wheels with another version.

The agent of such a release logs each measurement that it has carried out. So the boards' journals
tell what was measured how often and by which release, whatever the controller has stored. It also
measures slowly while a board has the file `SLOW`: a campaign of bounded size then outlasts a
playbook, however long the playbook takes on a busy host.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.farm.boards.virtual_board import VirtualBoard

SLOW = "/srv/slow"
"""File on a board during whose life the agent measures slowly, and the slower the older it is."""

_TELLS = f'''

def _hold() -> None:
    """Wait two seconds, or a 50th of the age of the file, as long as the file is there."""
    import os

    began_s = time.time()
    while True:
        try:
            age_s = began_s - os.stat("{SLOW}").st_mtime
        except OSError:
            return
        if time.time() - began_s >= max(2.0, age_s / 50):
            return
        time.sleep(0.05)


def _told(self, live, result, busy_s):
    """Log a measurement that has ended, then go on as always."""
    from latfarm_agent import __version__

    _hold()
    outcome = ":".join(filter(None, (result.outcome, result.error_code)))
    logger.info("measured %s %s %s", live.asked.request.request_id, outcome, __version__)
    if result.error_code:
        logger.info("not measured because: %s", result.error_message)
    _finish(self, live, result, busy_s)


_finish = Conductor._finish
Conductor._finish = _told
'''
"""What is added to the agent's module `_TELLER`. The file's age makes the number of measurements
grow with the logarithm of the time only."""

_READ = (
    "journalctl --namespace=latfarm --sync; "
    "journalctl --namespace=latfarm --no-pager -o cat -u latfarm-agent"
)
"""Prints what the agent of a board has logged, the newest lines included."""

_TELLER = "latfarm_agent/service/conductor.py"
_MEASURED = re.compile(r"measured (?P<request>\S+) (?P<outcome>\S+) (?P<version>[\d.]+)$")


@dataclass(frozen=True)
class CarriedOut:
    """A measurement that a board has carried out.

    Attributes:
        board: name of the board.
        request_id: of the measurement.
        outcome: how it ended; "ok" is good, and behind others stands the error's code.
        version: version of the agent that measured.
    """

    board: str
    request_id: str
    outcome: str
    version: str


def release(own: Path, folder: Path, version: str) -> Path:
    """Make a release of the agent: copies of our wheels that have a version and log measurements.

    Args:
        own: folder with wheels of this project.
        folder: folder of the copies; it does not exist yet.
        version: version of the release, for example "0.2.0".
    """
    folder.mkdir()
    found = set()
    for wheel in own.glob("latfarm_*.whl"):
        name, before = wheel.name.split("-")[:2]
        entries = {}
        with zipfile.ZipFile(wheel) as source:
            for entry in source.namelist():
                data = source.read(entry)
                if entry == _TELLER:
                    data += _TELLS.encode()
                    found.add(entry)
                if entry == "latfarm_agent/__init__.py":
                    ours = f'__version__ = "{before}"'.encode()
                    assert ours in data
                    data = data.replace(ours, f'__version__ = "{version}"'.encode())
                    found.add(entry)
                if entry.endswith(".dist-info/METADATA"):
                    data = data.replace(
                        f"\nVersion: {before}\n".encode(), f"\nVersion: {version}\n".encode()
                    )
                entries[entry.replace(f"{name}-{before}.", f"{name}-{version}.")] = data
        (record,) = (entry for entry in entries if entry.endswith(".dist-info/RECORD"))
        entries[record] = _record(entries, record)
        copied = folder / wheel.name.replace(f"-{before}-", f"-{version}-")
        with zipfile.ZipFile(copied, "w") as copy:
            for entry, data in entries.items():
                copy.writestr(entry, data)
    assert len(found) == 2, f"the agent's wheel has only {found}"
    return folder


def carried_out(boards: Sequence[VirtualBoard]) -> list[CarriedOut]:
    """All measurements that boards have carried out with such releases, as their journals tell."""
    return [
        CarriedOut(board.name, *match.group("request", "outcome", "version"))
        for board in boards
        for line in board.run(_READ).stdout.splitlines()
        if (match := _MEASURED.search(line))
    ]


def reasons(boards: Sequence[VirtualBoard]) -> list[str]:
    """Why boards ended measurements without a latency: their names, and their agents' words."""
    return [
        f"{board.name}: {line}"
        for board in boards
        for line in board.run(_READ).stdout.splitlines()
        if "not measured because: " in line
    ]


def _record(entries: dict[str, bytes], record: str) -> bytes:
    """The list of a wheel's files with their hashes and sizes (PEP 427)."""
    lines = []
    for entry, data in entries.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{entry},," if entry == record else f"{entry},sha256={digest},{len(data)}")
    return ("\n".join(lines) + "\n").encode()
