"""A command that is interrupted ends at once, whatever its threads still compute."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import threading
from concurrent.futures import ThreadPoolExecutor
from latfarm_controller.cli import main

begun, never = threading.Event(), threading.Event()
pool = ThreadPoolExecutor()
pool.submit(lambda: (begun.set(), never.wait()))
begun.wait()
main.run = lambda: CODE
main.main()
"""
GIVE_UP_S = 120.0
"""Longest wait for the end of the program, which a thread would keep for ever."""


def test_threads_that_compute_do_not_hold_an_interrupted_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("CODE", "130")],
        capture_output=True,
        text=True,
        timeout=GIVE_UP_S,
        check=False,
    )
    assert done.returncode == 130, done.stderr
