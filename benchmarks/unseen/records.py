"""The files with the results of judged networks, one a platform, and what a run adds to them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from latfarm_predictors.measurement import Measurement

FIGURES = Path(__file__).with_name("figures")
"""The folder that `make bench-networks` writes a file of each platform into."""
FIGURES_WITH_TRANSFORMERS = Path(__file__).with_name("figures_with_transformers")
"""The same of runs with --transformers, which calibrate with other networks, too."""
DECISIONS = Path(__file__).parents[2] / "docs" / "adr"
"""The folder of decision records, whose newest one tells which program made a figure."""
FUSION = Path(__file__).parents[1] / "fusion.json"
"""The results of `make bench-fusion`."""
_SPACES = re.compile(r"\s+")
_FLAT = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")
"""A list without lists or objects in it, spread over several lines."""


def read(folder: Path, platform: str) -> dict[str, Any]:
    """The results of one platform; empty where none are kept."""
    file = _file(folder, platform)
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return found


def write(folder: Path, platform: str, results: Mapping[str, Any]) -> None:
    """Write the results of one platform, with each plain list on one line."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1)
    flat = _FLAT.sub(lambda m: f"[{_SPACES.sub(' ', m[1])}]", text)
    _file(folder, platform).write_text(f"{flat}\n")


def newest_decision(folder: Path = DECISIONS) -> int:
    """The number of the newest decision record, which tells which program made a figure."""
    return max(int(file.name.partition("-")[0]) for file in folder.glob("[0-9]*-*.md"))


def _file(folder: Path, platform: str) -> Path:
    return folder / f"{platform}.json"


def with_development(kept: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """A platform's results with those of the seed that models are developed on."""
    reported = {"reported": kept["reported"]} if "reported" in kept else {}
    return {**record, **reported}


def with_reported(
    kept: Mapping[str, Any],
    seeds: Mapping[int, Mapping[str, Any]],
    pooled: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """A platform's results with those of seeds that are reported.

    Every predictor that judged a seed is noted by the digest of its bundle: a seed that many
    predictors were judged on is a seed that somebody develops on.

    Args:
        kept: the results of the platform so far.
        seeds: the results of each seed of this run.
        pooled: the results over the networks of all these seeds; None where not all are there yet.
    """
    before = kept.get("reported", {})
    looks = {name: list(found) for name, found in before.get("judged_bundles", {}).items()}
    for seed, record in seeds.items():
        known = looks.setdefault(str(seed), [])
        if record["bundle_digest"] not in known:
            known.append(record["bundle_digest"])
    told = {str(seed): dict(record) for seed, record in seeds.items()}
    reported = {"seeds": {**before.get("seeds", {}), **told}, "judged_bundles": looks}
    if pooled is not None:
        reported["pooled"] = {"seeds": sorted(seeds), **pooled}
    elif "pooled" in before:
        reported["pooled"] = before["pooled"]
    return {**kept, "reported": reported}


def looks(kept: Mapping[str, Any], seeds: Iterable[int]) -> int:
    """The largest number of predictors that any of these seeds has judged."""
    known = kept.get("reported", {}).get("judged_bundles", {})
    return max((len(known.get(str(seed), ())) for seed in seeds), default=0)


def dedicated_fusion(platform: str, path: Path = FUSION) -> dict[str, Any] | None:
    """How well times alone told fusion in the newest run of `make bench-fusion`; None: not run."""
    rows = json.loads(path.read_text())["platforms"] if path.is_file() else []
    found = next((row for row in rows if row["platform"] == platform), None)
    return None if found is None or not found["ours"]["pairs"] else dict(found["ours"])


def pooled_fusion(found: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The counts of several characterisations together; None if none of them was scored."""
    scored = [each for each in found if each]
    if not scored:
        return None
    names = ("pairs", "fused", "found", "wrongly_fused", "undecided")
    total = {name: sum(each[name] for each in scored) for name in names}
    claimed = total["found"] + total["wrongly_fused"]
    return {
        **total,
        "precision": total["found"] / claimed if claimed else None,
        "recall": total["found"] / total["fused"] if total["fused"] else None,
    }


def load_of(answers: Iterable[Measurement]) -> dict[str, float | None]:
    """The host's load averages and the stolen time while networks were measured, if it told them.

    Load averages are those of the last minute; above one for each core, other programs computed
    too. Stolen time is the share of a measurement that the host of a virtual machine took.
    """
    told = [m.conditions for m in answers if m.ok]
    loads = [n for each in told if (n := _number(each.get("load_1m"))) is not None]
    steals = [n for each in told if (n := _number(each.get("steal_share"))) is not None]
    return {
        "median_1m": round(median(loads), 2) if loads else None,
        "most_1m": max(loads, default=None),
        "most_steal_share": max(steals, default=None),
    }


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:  # the board does not know it
        return None
