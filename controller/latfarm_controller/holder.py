"""Who this home is to its boards: a secret that outlives the controller's process.

A board that is leased to a controller that was killed would stay idle until the lease ends. A
controller of the same home shows that it is the same holder, and gets the board at once. What it
shows differs from board to board, so that no board learns what another one would believe.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from pathlib import Path

from latfarm_predictors.whole_file import written_whole

from latfarm_controller.errors import UsageError
from latfarm_controller.private_files import FILE_MODE, private_file, read_regular

_KEY = re.compile(r"[0-9a-f]{32}")


def holder_key(path: Path) -> str:
    """The secret of this home; it is made at the first call.

    A damaged file is replaced: boards that are leased under the old secret come back when their
    leases end.

    Args:
        path: the file that keeps it. Only its owner may read it.

    Raises:
        UsageError: the file cannot be read or written.
    """
    try:
        private_file(path)
        text = read_regular(path).decode("ascii", errors="replace").strip()
    except FileNotFoundError:
        text = ""
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    if _KEY.fullmatch(text):
        return text
    key = secrets.token_hex(16)
    try:
        with written_whole(path, durable=True, mode=FILE_MODE) as part:
            part.write_text(f"{key}\n", encoding="ascii")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
    return key


def holder_id(key: str, board: str) -> str:
    """What the holder with that secret shows to one board; empty without a secret.

    Args:
        key: the secret of the home.
        board: name of the board in the inventory. Two entries that lead to the same board show it
            different ids, so that they do not take it from each other.
    """
    if not key:
        return ""
    return hashlib.blake2b(board.encode(), key=key.encode(), digest_size=16).hexdigest()
