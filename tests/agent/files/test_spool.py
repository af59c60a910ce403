"""The spool: results survive restarts, damaged files are moved away, limits are respected."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from latfarm_agent import errors
from latfarm_agent.files.spool import MAX_DAMAGED, Entry, Spool

TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
ENTRIES = st.builds(
    Entry,
    request_id=TEXTS,
    question=TEXTS,
    payload=st.binary(max_size=50),
    again=st.booleans(),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(ENTRIES, max_size=8), st.data())
def test_what_is_put_is_there_after_a_restart_until_acknowledged(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry], data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("spool")
    spool = Spool(directory)
    expected: dict[str, Entry] = {}
    for entry in entries:
        spool.put(entry)
        expected[entry.request_id] = entry
    gone = data.draw(
        st.lists(st.sampled_from(sorted(expected)), unique=True) if expected else st.just([])
    )
    assert spool.remove([*gone, "never heard of"]) == len(gone)
    for again in (spool, Spool(directory)):
        assert sorted(again.request_ids()) == sorted(set(expected) - set(gone))
        for request_id, entry in expected.items():
            assert again.get(request_id) == (None if request_id in gone else entry)
        sizes = [path.stat().st_size for path in directory.glob("*.result")]
        assert again.total_bytes == sum(sizes)


def test_the_oldest_is_listed_first(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for request_id in ("c", "a", "b"):
        spool.put(Entry(request_id, "?", b""))
    spool.put(Entry("c", "?", b"newer"))
    assert spool.request_ids() == ["a", "b", "c"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_any_damage_is_set_aside_and_costs_only_its_own_entry(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("spool")
    spool = Spool(directory)
    spool.put(Entry("sound", "?", b"payload"))
    spool.put(Entry("torn", "?", b"payload"))
    (path,) = [path for path in directory.glob("*.result") if b'"torn"' in path.read_bytes()]
    good = path.read_bytes()
    if data.draw(st.booleans()):
        path.write_bytes(good[: data.draw(st.integers(0, len(good) - 1))])
    else:
        path.write_bytes(data.draw(st.binary(max_size=80)))
    restarted = Spool(directory)
    assert restarted.request_ids() == ["sound"]
    assert len(list((directory / "damaged").iterdir())) == 1
    assert spool.get("torn") is None, "found damaged by a running agent too"
    assert "torn" not in spool.request_ids()
    spool.put(Entry("torn", "?", b"again"))
    assert Spool(directory).get("torn") == Entry("torn", "?", b"again")


def test_an_entry_under_a_foreign_name_is_set_aside(tmp_path: Path) -> None:
    Spool(tmp_path).put(Entry("a", "?", b"payload"))
    (path,) = tmp_path.glob("*.result")
    path.rename(tmp_path / "b.result")
    assert Spool(tmp_path).request_ids() == []


def test_a_write_that_was_killed_leaves_nothing(tmp_path: Path) -> None:
    Spool(tmp_path)
    (tmp_path / "half.tmp").write_bytes(b"{")
    assert len(Spool(tmp_path)) == 0
    assert not (tmp_path / "half.tmp").exists()


def test_a_request_id_chooses_no_path(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.put(Entry("../../escape", "?", b"payload"))
    assert spool.get("../../escape") is not None
    assert [path.name for path in tmp_path.iterdir()] == ["spool"]


def test_set_aside_files_are_bounded(tmp_path: Path) -> None:
    for number in range(MAX_DAMAGED + 5):
        (tmp_path / f"{number}.result").write_bytes(b"junk")
    Spool(tmp_path)
    assert len(list((tmp_path / "damaged").iterdir())) == MAX_DAMAGED


def test_room_is_refused_before_measuring_never_after(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_entries=2)
    spool.put(Entry("a", "?", b""))
    spool.check_room(1)
    with pytest.raises(errors.SpoolFullError, match="1 results"):
        spool.check_room(2)
    spool.put(Entry("b", "?", b""))
    spool.put(Entry("c", "?", b""))
    assert len(spool) == 3
    spool.remove(["a", "b"])
    spool.check_room(1)
    with pytest.raises(errors.SpoolFullError):
        Spool(tmp_path, max_bytes=1).check_room(1)


def test_a_full_disk_is_a_typed_error_and_keeps_the_older_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    spool.put(Entry("a", "?", b"old"))

    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(errors.AgentDiskFullError, match="No space left"):
        spool.put(Entry("a", "?", b"new"))
    assert spool.get("a") == Entry("a", "?", b"old")
