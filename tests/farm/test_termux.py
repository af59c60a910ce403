"""The agent measures in an environment like that of the app Termux on Android.

There, Python's platform is "android", most of /proc and /sys cannot be read, /tmp cannot be used,
files in /etc are missing, no process has capabilities, and there are no semaphores.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from latfarm_agent.testing.tflite_samples import samples

from tests.farm.boards import host
from tests.farm.boards.wheels import ROOT

_LACKS = host.lacks(("unshare",)) or ("" if shutil.which("setpriv") else "this host has no setpriv")

pytestmark = [
    pytest.mark.farm,
    pytest.mark.gate,
    pytest.mark.skipif(bool(_LACKS), reason=_LACKS),
]

TMP = Path("/tmp")
HIDE = """\
set -e
cd "$HIDDEN"
touch file && chmod 000 file && mkdir folder && chmod 000 folder
for path in stat loadavg vmstat cpuinfo version; do mount --bind file /proc/$path; done
mount --bind folder /sys
mount --bind folder /dev/shm
# If this Python is below /tmp, only the folders that it needs stay visible there.
if [ -n "$KEPT" ]; then
  mkdir kept
  for name in $KEPT; do mkdir "kept/$name" && mount --rbind "/tmp/$name" "kept/$name"; done
  chmod 111 kept
  mount --rbind kept /tmp
else
  mount --bind folder /tmp
fi
for path in os-release machine-id; do
  if [ -e /etc/$path ]; then mount --bind file /etc/$path; fi
done
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs -- "$@"
"""
PROGRAM = """
import os, sys
sys.platform = "android"
sys.modules["_multiprocessing"] = None
for path in ("/proc/stat", "/proc/vmstat", "/sys/class", "/tmp/x"):
    try:
        open(path).read()
    except OSError:
        continue
    sys.exit(f"{path} can be read")
for act in (os.listdir, lambda path: open(f"{path}/x", "w")):
    try:
        act("/tmp")
    except OSError:
        continue
    sys.exit("/tmp can be read or written to")
import json
from pathlib import Path
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.testing.runtime_suite import PATIENT, QUICK, measure
folder = Path(sys.argv[1])
reference = {"tflite": "latfarm_agent.runtimes.tflite.runtime:TfliteRuntime"}
options = BenchOptions("phone", None, folder / "work", runtimes=reference, limits=PATIENT)
bench = host_bench(options)
board, (runtime,) = bench.describe()
platform = runtime.platforms[0].name
result = measure(bench, platform, folder / "model.tflite")
bench.close()
print(json.dumps([board.board_id, dict(board.conditions), result.outcome, result.error_message,
                  dict(result.conditions)]))
"""


def below_tmp() -> set[str]:
    """Names of the folders in /tmp that this Python and its packages need."""
    needed = {sys.executable, sys.prefix, sys.base_prefix, str(ROOT), *sys.path}
    paths = {Path(text).resolve() for text in needed if text} | {Path(sys.executable)}
    return {path.parts[2] for path in paths if path.parts[:2] == ("/", "tmp") and path != TMP}


def test_the_agent_measures_like_an_app(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    (tmp_path / "model.tflite").write_bytes(samples()["cnn-fp32"])
    for name in ("hidden", "home", "tmp"):
        (tmp_path / name).mkdir()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # /tmp will be hidden, so the files must be elsewhere.
    with_us = Path(tempfile.mkdtemp(prefix="latfarm-termux-", dir="/var/tmp"))
    shutil.copytree(tmp_path, with_us, dirs_exist_ok=True)
    environment = {
        "HIDDEN": str(with_us / "hidden"),
        "HOME": str(with_us / "home"),
        "KEPT": " ".join(sorted(below_tmp())),
        "TMPDIR": str(with_us / "tmp"),
        "PATH": os.environ["PATH"],
        "OMP_NUM_THREADS": "1",
    }
    python = [sys.executable, str(with_us / "program.py"), str(with_us)]
    try:
        done = subprocess.run(
            ["unshare", "--mount", "--propagation=private", "sh", "-c", HIDE, "sh", *python],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        shutil.rmtree(with_us)
    assert done.returncode == 0, done.stderr[-3000:]
    board_id, board, outcome, message, conditions = json.loads(done.stdout.splitlines()[-1])
    assert len(board_id) == 32
    assert outcome == "ok", message
    assert {board["load_1m"], board["clock_mhz"], board["governor"]} == {"unknown"}
    assert conditions["core_busy_share"] == "unknown"
