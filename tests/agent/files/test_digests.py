"""Hashing in a thread gives the same digest as hashing at once."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from latfarm_agent.files.digests import ASIDE_BYTES, StreamDigest, file_digest

SIZES = st.lists(
    st.sampled_from([0, 1, 1000, ASIDE_BYTES - 1, ASIDE_BYTES, 3 * ASIDE_BYTES]), max_size=8
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(SIZES, SIZES)
def test_any_chunks_in_order(tmp_path: Path, before: list[int], after: list[int]) -> None:
    content = bytes(range(251)) * (1 + sum(before + after) // 251)
    prefix = tmp_path / "prefix"
    prefix.write_bytes(content[: sum(before)])
    digest = StreamDigest()
    digest.update_from(prefix)
    position = sum(before)
    for size in after:
        digest.update(content[position : position + size])
        position += size
    assert digest.hexdigest() == hashlib.sha256(content[:position]).hexdigest()
    assert file_digest(prefix) == hashlib.sha256(content[: sum(before)]).hexdigest()


def test_stopping_ends_the_thread() -> None:
    before = threading.active_count()
    digest = StreamDigest()
    digest.update(b"x" * ASIDE_BYTES)
    assert threading.active_count() == before + 1
    digest.stop()
    digest.stop()
    assert threading.active_count() == before
