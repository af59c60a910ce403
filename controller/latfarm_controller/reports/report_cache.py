"""Facts of reports, kept until what they were made of changes.

A finished characterisation that is run again ends in the same report: it is told again, with the
date that it was made at, and nothing is fitted.
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
"""Folder among the reports."""
MOST = 64
"""Reports that are kept; the oldest goes."""
_PACKAGES = ("latfarm-controller", "latfarm-predictors")
_FORMAT = 1


class ReportCache:
    """One file for each platform and campaign that was asked about, bounded in number.

    Safe between threads and processes: a file is replaced whole, and one that is damaged, or of
    other inputs, is none.

    Args:
        folder: made when first written to.
        most: files in it.
    """

    def __init__(self, folder: Path, most: int = MOST) -> None:
        self._folder = folder
        self._most = most

    def get(self, platform: str, campaign: str, inputs: str) -> dict[str, Any] | None:
        """What was told of these inputs; None where nothing was.

        Args:
            platform: whose report.
            campaign: that was asked for.
            inputs: changes with anything that the report is made of.
        """
        try:
            head, _, text = self._path(platform, campaign).read_text("utf-8").partition("\n")
            if head != self._head(platform, campaign, inputs, text):
                return None
            found: dict[str, Any] = json.loads(text)
        except (OSError, ValueError):  # there is none, or it is no text
            return None
        return found

    def put(self, platform: str, campaign: str, inputs: str, facts: Mapping[str, Any]) -> None:
        """Keep what was told; a folder that cannot be written to keeps nothing."""
        path = self._path(platform, campaign)
        text = json.dumps(facts)
        head = self._head(platform, campaign, inputs, text)
        with suppress(OSError):
            with written_whole(path, make_folder=True) as part:
                part.write_text(f"{head}\n{text}", "utf-8")
            self._drop_oldest()

    def _path(self, platform: str, campaign: str) -> Path:
        # strangers' names choose no file name
        key = hashlib.sha256(json.dumps([platform, campaign]).encode()).hexdigest()
        return self._folder / f"{key[:32]}.json"

    def _head(self, platform: str, campaign: str, inputs: str, text: str) -> str:
        """First line of a file: a digest of what the facts were made of, by whom, and of them."""
        made_by = [_FORMAT, *(f"{name} {version(name)}" for name in _PACKAGES)]
        told = json.dumps([made_by, platform, campaign, inputs]).encode()
        return hashlib.sha256(told + b"\0" + text.encode()).hexdigest()

    def _drop_oldest(self) -> None:
        found = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in found[: -self._most]:
            path.unlink(missing_ok=True)
