"""Facts of reports, which are kept until the data that they were made from changes.

If a finished characterisation is run again, its report is the same as before. Then the kept facts
are used, with their old date, and nothing is fitted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from latfarm_predictors.whole_file import written_whole

KEPT = ".kept"
"""Name of the folder with kept facts, inside the folder of reports."""
MOST = 64
"""Most reports that are kept; the oldest one is deleted for a new one."""
# Distributions whose code makes the facts: another version makes kept facts invalid.
_PACKAGES = ("latfarm-controller", "latfarm-predictors")
_FORMAT = 3
"""Version of the files and of the facts in them; files of another version are not used."""


class ReportCache:
    """Keeps the facts of a limited number of reports in files.

    It is safe between threads and processes: a file is replaced as a whole, and a file that is
    damaged or was made from other data is ignored.

    Args:
        folder: folder of the files; it is made when the first one is written.
        most: most files in it.
    """

    def __init__(self, folder: Path, most: int = MOST) -> None:
        self._folder = folder
        self._most = most

    def get(self, platform: str, campaign: str, inputs: str) -> dict[str, Any] | None:
        """The facts that were made from these inputs; None if none are kept.

        Args:
            platform: the platform of the report.
            campaign: the campaign that was asked for; empty: none.
            inputs: a text that changes with any data that the report is made from.
        """
        try:
            head, _, text = self._path(platform, campaign).read_text("utf-8").partition("\n")
            if head != self._head(platform, campaign, inputs, text):
                return None
            found: dict[str, Any] = json.loads(text)
        except (OSError, ValueError):  # there is no such file, or it is not valid
            return None
        return found

    def put(self, platform: str, campaign: str, inputs: str, facts: Mapping[str, Any]) -> None:
        """Keep facts, with the same arguments as `get`; nothing is kept if the disk refuses it."""
        path = self._path(platform, campaign)
        text = json.dumps(facts)
        head = self._head(platform, campaign, inputs, text)
        with suppress(OSError):
            with written_whole(path, make_folder=True) as part:
                part.write_text(f"{head}\n{text}", "utf-8")
            self._drop_oldest()

    def _path(self, platform: str, campaign: str) -> Path:
        # Names may come from bundles that other people made, so they must not become file names.
        key = hashlib.sha256(json.dumps([platform, campaign]).encode()).hexdigest()
        return self._folder / f"{key[:32]}.json"

    def _head(self, platform: str, campaign: str, inputs: str, text: str) -> str:
        """First line of a file: a digest of the facts, their inputs, and the code's versions."""
        made_by = [_FORMAT, *(f"{name} {version(name)}" for name in _PACKAGES)]
        told = json.dumps([made_by, platform, campaign, inputs]).encode()
        return hashlib.sha256(told + b"\0" + text.encode()).hexdigest()

    def _drop_oldest(self) -> None:
        found = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in found[: -self._most]:
            path.unlink(missing_ok=True)
