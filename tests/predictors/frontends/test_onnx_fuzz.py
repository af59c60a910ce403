"""Damaged ONNX files raise our errors; they cause no crash, no hang and no huge memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from latfarm_predictors.testing.fuzz_onnx import fuzz_onnx, seeds_of
from latfarm_predictors.testing.fuzzing import run_cases
from latfarm_predictors.testing.onnx_mutations import mutated

FOLDER = Path(__file__).parent / "exported"


def test_400_damaged_files() -> None:
    summary = fuzz_onnx(FOLDER, 0, 400)
    assert summary.violations == []
    assert summary.outcomes.total() == 400
    # There are successes and several errors: the files are neither all unreadable nor all valid.
    assert summary.outcomes["read"] > 10
    assert summary.outcomes["ModelFileError"] > 100
    assert summary.outcomes["UnsupportedOpError"] > 10


def test_cases_come_from_their_seed() -> None:
    seeds = seeds_of(FOLDER)
    assert len(seeds) > 30
    made = [mutated(seeds, case) for case in range(20)]
    assert made == [mutated(seeds, case) for case in range(20)]
    assert len(set(made)) == 20


CHILD = """
import os, sys
from pathlib import Path
from latfarm_predictors.testing.fuzzing import report_cases
class Expected(Exception): pass
def read(path):
    case = int(path.read_bytes())
    if case == 1: raise Expected("one line")
    if case == 2: raise Expected("two\\nlines")
    if case == 3: raise KeyError("foreign")
    if case == 4: os._exit(7)
    if case == 5: bytearray(2 * 1024**3)
report_cases(lambda case: b"%d" % case, read, Expected, int(sys.argv[1]), int(sys.argv[2]))
"""


def test_violations_of_a_reader_are_reported() -> None:
    summary = run_cases([sys.executable, "-c", CHILD], 0, 7)
    assert summary.outcomes == {
        "read": 2,
        "Expected": 2,
        "KeyError": 1,
        "crash or hang": 1,
        "MemoryError": 1,
    }
    cases = [violation.split(":")[0] for violation in summary.violations]
    assert cases == ["case 2", "case 3", "case 4", "case 5"]
    assert summary.peak_bytes > 0


@pytest.mark.parametrize("jobs", [2, 3, 20])
def test_several_processes_give_the_same_summary_as_one(jobs: int) -> None:
    alone, shared = (run_cases([sys.executable, "-c", CHILD], 0, 7, made) for made in (1, jobs))
    assert list(shared.outcomes.items()) == list(alone.outcomes.items())  # in the same order
    assert shared.violations == alone.violations


def test_no_case_needs_no_process() -> None:
    assert run_cases(["there-is-no-such-program"], 5, 0, 4).outcomes.total() == 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_child_that_does_not_start_is_an_error(jobs: int) -> None:
    with pytest.raises(RuntimeError, match="does not start"):
        run_cases([sys.executable, "-c", "import sys; sys.exit('broken')"], 0, 2, jobs)


LAST_FAILS = """
import sys, time
if sys.argv[1] == "1": sys.exit("broken")
print('{"begin": 0}', flush=True)
time.sleep(3600)
"""


def test_an_error_of_one_process_ends_the_others() -> None:
    with pytest.raises(RuntimeError, match="broken"):
        run_cases([sys.executable, "-c", LAST_FAILS], 0, 2, 2)
