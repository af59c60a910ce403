"""Byte code for emulated boards, compiled on this host, because compiling there takes minutes.

The board's Python looks for byte code in the folder that `VARIABLE` names. Each file contains a
hash of its source, which Python checks, so that byte code of another release is never used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.farm.boards import rootfs, wheels
from tests.farm.boards.virtual_board import VirtualBoard

VARIABLE = "PYTHONPYCACHEPREFIX"
"""Environment variable that tells Python where byte code is."""

FOLDER = "/opt/bytecode"
"""Folder of byte code on the board; `VARIABLE` must have this value there."""

_COMPILE_S = 300.0
"""Limit of the time to compile one folder, in seconds."""


def bring(
    board: VirtualBoard, packages: Path, agent: Sequence[Path], place: str, python: str = "3.11"
) -> None:
    """Compile the packages that a board will have, and copy the byte code to the board.

    Does nothing if the board's Python has another version than this host's, because the byte code
    would not fit.

    Args:
        board: a running board.
        packages: folder with the packages of other projects, from `wheels.site`.
        agent: wheels of this project.
        place: path of `site-packages` on the board.
        python: version of Python on the board.
    """
    if python != f"{sys.version_info[0]}.{sys.version_info[1]}":
        return
    with tempfile.TemporaryDirectory() as text:
        # With `VARIABLE` set, Python no longer uses the byte code beside the standard library.
        disk = rootfs.tree(board.arch)
        standard = Path(text) / "standard"
        for code in (disk / "usr/lib" / f"python{python}").rglob("__pycache__/*.pyc"):
            copy = standard / code.parent.parent.relative_to(disk) / code.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(code, copy)
        board.push(standard, FOLDER)
        own = Path(text) / "own"
        wheels.unpack(agent, own, python, board.arch)
        cache = Path(text) / "cache"
        for folder in (packages, own):
            options = ("-q", "--invalidation-mode=checked-hash", "-s", folder, "-p", place)
            # Some files do not compile, for example templates, so the exit status is ignored.
            subprocess.run(
                [sys.executable, "-m", "compileall", *options, folder],
                env={**os.environ, VARIABLE: str(cache)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_COMPILE_S,
            )
            board.push(cache / folder.relative_to("/"), f"{FOLDER}{place}")
