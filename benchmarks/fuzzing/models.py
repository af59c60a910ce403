"""Damaged model files by the thousand: each must end in our error, soon, and in little memory.

    python -m benchmarks.fuzzing.models --cases 5000

Prints a summary of each kind of file as JSON; the exit code is 1 if any case crashed, hung, took
more than two seconds of CPU time or a gigabyte of memory, or ended in a foreign error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from latfarm_predictors.testing.fuzz_onnx import fuzz_onnx
from latfarm_predictors.testing.fuzzing import FuzzSummary

EXPORTED = Path(__file__).parents[2] / "tests" / "predictors" / "frontends" / "exported"


def onnx_files(first: int, count: int) -> FuzzSummary:
    """ONNX files, read as a user's are."""
    return fuzz_onnx(EXPORTED, first, count)


# A kind of file: from the first case and how many to what became of them.
KINDS: Mapping[str, Callable[[int, int], FuzzSummary]] = {"onnx": onnx_files}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=5000, help="cases of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--kind", choices=[*KINDS], action="append", help="default: all")
    options = parser.parse_args()
    found = {kind: KINDS[kind](options.first, options.cases) for kind in options.kind or KINDS}
    print(json.dumps({kind: summary.to_json() for kind, summary in found.items()}, indent=2))
    return int(any(summary.violations for summary in found.values()))


if __name__ == "__main__":
    sys.exit(main())
