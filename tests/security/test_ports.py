"""The ports survive 2,000 malformed frames and messages; `make fuzz-ports` sends 100,000."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fuzzing.ports import run

pytestmark = pytest.mark.timeout(300)


def test_malformed_frames_crash_nothing_and_let_nobody_in(tmp_path: Path) -> None:
    found = run(2_000, 1, tmp_path)
    assert [part["port"] for part in found] == [
        "agent",
        "agent behind TLS",
        "controller behind TLS",
    ]
    assert sum(part["frames"] for part in found) >= 2_000
    for part in found:
        assert part["works_afterwards"]
        kinds = {name.split()[0].rstrip(":") for name in part["sent"]}
        assert kinds == {"raw", "frames", "messages", "methods", "headers", "halves"}
    for part in found[1:]:
        outside = {name: n for name, n in part["answers"].items() if "outside" in name}
        assert outside
        assert not [name for name in outside if "HTTP/2" in name or "other" in name]
