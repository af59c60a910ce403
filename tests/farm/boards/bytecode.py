"""Byte code for emulated boards, compiled by this host's Python: there it would take minutes.

The board's Python looks for it in a folder beside the sources and trusts it by a hash of the source
that it was made from, so that it never stands for another release's code.
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
FOLDER = "/opt/bytecode"
"""On the board: what `VARIABLE` names."""

_COMPILE_S = 300.0


def bring(
    board: VirtualBoard, packages: Path, agent: Sequence[Path], place: str, python: str = "3.11"
) -> None:
    """Compile what `place` on the board will hold, and bring it; nothing where it would not fit.

    Args:
        board: it is on.
        packages: a folder with others' packages, as `wheels.site` gives it.
        agent: our wheels.
        place: the board's `site-packages`, by the name that its Python gives it.
        python: the board's.
    """
    if python != f"{sys.version_info[0]}.{sys.version_info[1]}":
        return
    with tempfile.TemporaryDirectory() as text:
        # The standard library's is on the board's disk, where it is not looked for any more.
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
            # What is no code for this Python (templates, tests of others) does not compile.
            subprocess.run(
                [sys.executable, "-m", "compileall", *options, folder],
                env={**os.environ, VARIABLE: str(cache)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_COMPILE_S,
            )
            board.push(cache / folder.relative_to("/"), f"{FOLDER}{place}")
