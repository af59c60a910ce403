"""Commands beside a server start quickly, because the client loads no library of computing."""

from __future__ import annotations

import subprocess
import sys


def test_a_client_loads_nothing_that_computes_or_stores() -> None:
    code = (
        "import sys, latfarm_controller.api.connect\n"
        "heavy = {'numpy', 'onnx', 'ray', 'duckdb', 'pyarrow', 'psutil', 'scipy'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={}
    )
    assert done.stdout.strip() == "[]"
