"""The tables of unseen networks in README and on the results page, from the files of their figures.

    python -m benchmarks.unseen.published

prints them. Each row holds the figures of the seeds in `SEEDS`, pooled; one more table has a row
for each of these seeds, and another one for each seed with transformers. A test holds both pages
against these rows.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latfarm_predictors.judging import binomial_interval

from benchmarks.unseen.pooled_seeds import pooled_seeds
from benchmarks.unseen.records import FIGURES, FIGURES_WITH_TRANSFORMERS, read
from benchmarks.unseen.verdicts import CONVOLUTIONAL, OURS, OWN_PARTS, TRANSFORMERS

PLATFORMS = {
    "onnxruntime 1.31, fp32": "local-onnxruntime1.31-fp32-1t",
    "LiteRT 2.3, fp32": "local-litert2.3-fp32-1t",
    "LiteRT 2.3, int8": "local-litert2.3-int8-1t",
    "OpenVINO 2026.4, fp32": "local-openvino2026.4-fp32-1t",
    "MNN 3.6, fp32": "local-mnn3.6-fp32-1t",
    "ncnn 20261020, fp32": "local-ncnn20261020-fp32-1t",
    "Vela 5.2, Ethos-U65, int8": "vela5.2-ethosu65-256-int8",
}
"""Names of platforms in tables, and of their files."""
SEEDS = {
    "local-onnxruntime1.31-fp32-1t": (5, 6, 7),
    "local-litert2.3-fp32-1t": (3,),
    "local-litert2.3-int8-1t": (1,),
    "local-openvino2026.4-fp32-1t": (3,),
    "local-mnn3.6-fp32-1t": (3,),
    "local-ncnn20261020-fp32-1t": (4, 5),
    "vela5.2-ethosu65-256-int8": (1, 2, 3, 4, 5),
}
"""The seeds that are published: all that were judged since decision 49."""
TRANSFORMER_SEEDS = {
    "local-onnxruntime1.31-fp32-1t": (9,),
    "local-litert2.3-fp32-1t": (10, 11),
    "local-openvino2026.4-fp32-1t": (10, 11),
    "local-mnn3.6-fp32-1t": (10, 11, 12),
    "local-ncnn20261020-fp32-1t": (10, 11, 12),
}
"""The seeds that are published with transformers and hybrids among the judged networks."""
README_HEAD = (
    "| platform, one thread | latfarm | nn-Meter | best baseline | a perfect predictor "
    "| inside its interval | measurements | seeds |",
    "|---|---|---|---|---|---|---|---|",
)
ACCURACY_HEAD = (
    "| within 10 %, one thread | latfarm | 95 % interval | nn-Meter | best baseline | latfarm is "
    "ahead of it by | a perfect predictor | networks | seeds | measurements a seed | board time a "
    "seed |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)
INTERVALS_HEAD = (
    "| one thread | latfarm within 5 % | a perfect predictor within 5 % | inside, as shipped | "
    "95 % interval | median width | inside, recalibrated |",
    "|---|---|---|---|---|---|---|",
)
SEEDS_HEAD = (
    "| one thread | seed | decision | networks | within 10 % | a perfect predictor "
    "| inside, as shipped | median width | standard error of the mean of four passes (median) "
    "| load, median | time stolen, at most |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)

TRANSFORMERS_HEAD = (
    "| within 10 %, one thread | seed | decision | transformers and hybrids | 95 % interval "
    "| a perfect predictor | best baseline | convolutional networks | a perfect predictor "
    "| inside, of all | median width | standard error of the mean of four passes (median) |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
)


class PublishedFigures:
    """What tables say of one platform.

    Args:
        name: the platform's name in tables.
        seeds: the results of each seed that is published.
    """

    def __init__(self, name: str, seeds: Mapping[int, Mapping[str, Any]]) -> None:
        self._name = name
        self._seeds = seeds
        self._judged = pooled_seeds(list(seeds.values()))

    def readme_row(self) -> str:
        """The platform's row in README: shares within 10 %, and what they cost."""
        ours, theirs = self._within(OURS, 10), self._within("nn-meter", 10)
        cells = (ours, theirs, self._best()[1], self._perfect(10), self._inside())
        return _row(self._name, *cells, self._measurements(), self._numbers())

    def accuracy_row(self) -> str:
        """The platform's row in the table of shares within 10 %."""
        share, count = self._judged["table"][OURS]["within10"], self._judged["networks"]
        low, high = binomial_interval(share / 100, count)
        name, best = self._best()
        return _row(
            self._name,
            f"{share} %",
            f"{100 * low:.0f} to {100 * high:.0f} %",
            self._within("nn-meter", 10),
            f"{best} ({name})",
            self._lead(name),
            self._perfect(10),
            str(count),
            self._numbers(),
            self._measurements(),
            _span([each["board_s"] for each in self._seeds.values()], " s"),
        )

    def intervals_row(self) -> str:
        """The platform's row in the table of shares within 5 % and of intervals."""
        shipped = self._judged["shipped"]
        low, high = shipped["interval"]
        again = [each["coverage"]["mean_percent"] for each in self._seeds.values()]
        return _row(
            self._name,
            self._within(OURS, 5),
            self._perfect(5),
            self._inside(),
            f"{low:.0f} to {high:.0f} %",
            f"{shipped['median_width_percent']} %",
            f"{sum(again) / len(again):.1f} %",
        )

    def seed_rows(self) -> list[str]:
        """A row for each seed, with the noise under which it was measured."""
        return [
            _row(
                self._name,
                str(seed),
                str(each["decision"]),
                str(each["networks"]),
                f"{each['table'][OURS]['within10']} %",
                f"{each['perfect']['within10']} %",
                f"{each['shipped']['percent']} %",
                f"{each['shipped']['median_width_percent']} %",
                f"{each['standard_error_percent']} %",
                *_noise(each["load"]),
            )
            for seed, each in self._seeds.items()
        ]

    def _within(self, method: str, tolerance: int) -> str:
        return f"{self._judged['table'][method][f'within{tolerance}']} %"

    def _perfect(self, tolerance: int) -> str:
        return f"{self._judged['perfect'][f'within{tolerance}']} %"

    def _best(self) -> tuple[str, str]:
        return _best_baseline(self._judged["table"])

    def _lead(self, method: str) -> str:
        lead = self._judged["leads"][method]
        low, high = lead["interval"]
        return f"{lead['points']} ({low} to {high})"

    def _inside(self) -> str:
        return f"{self._judged['shipped']['percent']} %"

    def _measurements(self) -> str:
        return _span([each["measurements"] for each in self._seeds.values()])

    def _numbers(self) -> str:
        return ", ".join(map(str, self._seeds))


def transformer_row(name: str, seed: int, record: Mapping[str, Any]) -> str:
    """The row of one seed with transformers and hybrids among the judged networks."""
    theirs, others = (record["by_class"][each] for each in (TRANSFORMERS, CONVOLUTIONAL))
    low, high = theirs["table"][OURS]["within10_interval"]
    best, share = _best_baseline(theirs["table"])
    return _row(
        name,
        str(seed),
        str(record["decision"]),
        f"{theirs['table'][OURS]['within10']} % of {theirs['networks']}",
        f"{low:.0f} to {high:.0f} %",
        f"{theirs['perfect']['within10']} %",
        f"{share} ({best})",
        f"{others['table'][OURS]['within10']} % of {others['networks']}",
        f"{others['perfect']['within10']} %",
        f"{record['shipped']['percent']} %",
        f"{record['shipped']['median_width_percent']} %",
        f"{record['standard_error_percent']} %",
    )


def _best_baseline(table: Mapping[str, Mapping[str, float]]) -> tuple[str, str]:
    """The baseline with the largest share within 10 %, and that share."""
    others = {
        name: row["within10"]
        for name, row in table.items()
        if name != OURS and name not in OWN_PARTS
    }
    best = max(others, key=others.__getitem__)
    return best, f"{others[best]} %"


def _span(values: list[int], unit: str = "") -> str:
    """The smallest and the largest of some numbers."""
    low, high = min(values), max(values)
    return f"{low:,}{unit}" if low == high else f"{low:,} to {high:,}{unit}"


def _noise(load: Mapping[str, Any]) -> tuple[str, str]:
    """The load and the stolen time of a seed; Vela's estimates depend on neither."""
    middle, stolen = load["median_1m"], load["most_steal_share"]
    return (
        "-" if middle is None else str(middle),
        "-" if stolen is None else f"{100 * stolen:.0f} %",
    )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def published(folder: Path = FIGURES) -> list[PublishedFigures]:
    """The figures of each platform of `PLATFORMS`, in its order."""
    found = []
    for name, key in PLATFORMS.items():
        records = read(folder, key)["reported"]["seeds"]
        seeds = {seed: records[str(seed)] for seed in SEEDS[key]}
        found.append(PublishedFigures(name, seeds))
    return found


def published_transformers(folder: Path = FIGURES_WITH_TRANSFORMERS) -> list[str]:
    """The rows of each platform that was judged with transformers, in the order of `PLATFORMS`."""
    return [
        transformer_row(name, seed, read(folder, key)["reported"]["seeds"][str(seed)])
        for name, key in PLATFORMS.items()
        for seed in TRANSFORMER_SEEDS.get(key, ())
    ]


def main() -> int:
    platforms = published()
    print("README:", *README_HEAD, *(each.readme_row() for each in platforms), sep="\n")
    print("\nResults:", *ACCURACY_HEAD, *(each.accuracy_row() for each in platforms), sep="\n")
    print("", *INTERVALS_HEAD, *(each.intervals_row() for each in platforms), sep="\n")
    print("", *SEEDS_HEAD, *(row for each in platforms for row in each.seed_rows()), sep="\n")
    print("", *TRANSFORMERS_HEAD, *published_transformers(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
