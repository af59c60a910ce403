"""The blob cache: uploads that break off, resume, are wrong or too large, and evictions."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from latfarm_agent import errors
from latfarm_agent.files.blobs import BlobStore
from latfarm_agent.files.uploads import FORBIDDEN, BlobStatus, Upload

PLENTY = 1 << 40


@contextlib.contextmanager
def in_use(store: BlobStore, sha256: str) -> Iterator[Path]:
    """Keep a blob from eviction inside the `with` block."""
    path = store.acquire(sha256)
    try:
        yield path
    finally:
        store.release(sha256)


def harmless(data: bytes) -> bool:
    return not any(data.startswith(magic) for magic, _ in FORBIDDEN)


def name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def store_in(directory: Path, total: int = 1000, blob: int = 1000, free: int = PLENTY) -> BlobStore:
    return BlobStore(
        directory,
        max_blob_bytes=blob,
        max_total_bytes=total,
        reserve_bytes=10,
        free_bytes=lambda path: free,
    )


def begin(store: BlobStore, data: bytes, offset: int = 0) -> Upload:
    upload = store.begin(name(data), len(data), offset)
    assert upload is not None
    return upload


def put(store: BlobStore, data: bytes) -> str:
    with begin(store, data) as upload:
        upload.write(data)
        assert upload.finish().complete
    return name(data)


def files(directory: Path) -> list[str]:
    return sorted(
        str(path.relative_to(directory)) for path in directory.rglob("*?") if path.is_file()
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    data=st.binary(max_size=300).filter(harmless), cuts=st.lists(st.integers(0, 300), max_size=5)
)
def test_an_upload_cut_anywhere_resumes_to_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cuts: list[int]
) -> None:
    directory = tmp_path_factory.mktemp("blobs")
    start = 0
    for end in sorted({len(data), *(min(cut, len(data)) for cut in cuts)}):
        # A new store each time, as after a restart of the agent.
        store = store_in(directory)
        assert store.status(name(data)) == BlobStatus(name(data), start, complete=False)
        with begin(store, data, start) as upload:
            upload.write(data[start:end])
            assert upload.finish() == BlobStatus(name(data), end, complete=end == len(data))
        start = end
    with in_use(store_in(directory), name(data)) as path:
        assert path.read_bytes() == data
    assert files(directory) == [name(data)]


def test_a_complete_blob_is_not_taken_again(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    sha256 = put(store, b"model")
    assert store.begin(sha256, 5, 0) is None
    assert store.status(sha256) == BlobStatus(sha256, 5, complete=True)


@pytest.mark.parametrize(
    "sha256", ["", "../../x", "a" * 63, "A" * 64, "a" * 64 + "\n", "/etc/passwd", "a" * 10_000]
)
def test_only_a_sha256_names_a_blob(tmp_path: Path, sha256: str) -> None:
    store = store_in(tmp_path / "blobs")
    for use in (store.status, store.acquire, lambda text: store.begin(text, 1, 0)):
        with pytest.raises(errors.DigestError, match="not a sha256"):
            use(sha256)
    assert files(tmp_path) == []


def test_wrong_bytes_are_discarded(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    upload = store.begin("a" * 64, 5, 0)
    assert upload is not None
    upload.write(b"wrong")
    with pytest.raises(errors.DigestError, match="they hash to"):
        upload.finish()
    assert files(tmp_path) == []
    assert store.status("a" * 64).received_bytes == 0


def test_more_than_announced_is_discarded(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    upload = begin(store, b"model")
    upload.write(b"mod")
    with pytest.raises(errors.RequestError, match="more than the 5 bytes"):
        upload.write(b"els")
    assert files(tmp_path) == []


@pytest.mark.parametrize("offset", [1, 2, 4, 6, 2**64 - 1])
def test_an_upload_must_continue_where_the_last_one_ended(tmp_path: Path, offset: int) -> None:
    store = store_in(tmp_path)
    begin(store, b"model").write(b"mod")
    with pytest.raises(errors.OffsetError, match=r"3 bytes .* resume there"):
        begin(store, b"model", offset)


def test_a_partial_longer_than_announced_does_not_resume(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    with begin(store, b"model") as upload:
        upload.write(b"mod")
    with pytest.raises(errors.OffsetError):
        store.begin(name(b"model"), 2, 3)


def test_a_blob_over_the_limit_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    with pytest.raises(errors.BlobTooLargeError, match="limit of 10 bytes"):
        store_in(tmp_path, blob=10).begin("a" * 64, 11, 0)
    with pytest.raises(errors.BlobTooLargeError):
        store_in(tmp_path).begin("a" * 64, 2**64 - 1, 0)
    assert files(tmp_path) == []


def test_the_least_recently_used_go_first_but_never_one_in_use(tmp_path: Path) -> None:
    store = store_in(tmp_path, total=30)
    one, two, three = (put(store, letter * 10) for letter in (b"1", b"2", b"3"))
    with in_use(store, one):
        pass
    with in_use(store, two):
        put(store, b"4" * 10)
        kept = [sha256 for sha256 in (one, two, three) if store.status(sha256).complete]
        assert kept == [one, two]
        put(store, b"5" * 10)
        assert store.status(two).complete
        assert not store.status(one).complete
        five, four = in_use(store, name(b"5" * 10)), in_use(store, name(b"4" * 10))
        too_large = pytest.raises(errors.BlobTooLargeError, match="beside the blobs in use")
        with five, four, too_large:
            begin(store, b"6")
    assert store.evictions == 2


def test_the_order_of_use_survives_a_restart(tmp_path: Path) -> None:
    store = store_in(tmp_path, total=20)
    one, two = put(store, b"1" * 10), put(store, b"2" * 10)
    with in_use(store, one):
        pass
    store = store_in(tmp_path, total=20)
    put(store, b"3" * 10)
    assert store.status(one).complete
    assert not store.status(two).complete


def test_abandoned_partial_uploads_make_room_and_open_ones_do_not(tmp_path: Path) -> None:
    store = store_in(tmp_path, total=20)
    with begin(store, b"a" * 12) as abandoned:
        abandoned.write(b"a" * 11)
    with begin(store, b"b" * 12) as upload:
        assert not store.status(name(b"a" * 12)).received_bytes
        # No byte of it has arrived yet, but its room is reserved.
        with pytest.raises(errors.BlobTooLargeError):
            begin(store, b"c" * 12)
        upload.write(b"b" * 12)
        assert upload.finish().complete


def test_old_blobs_give_way_to_a_full_disk_too(tmp_path: Path) -> None:
    free = [100]
    store = BlobStore(tmp_path, reserve_bytes=10, free_bytes=lambda path: free[0])
    sha256 = put(store, b"1" * 50)
    free[0] = 20
    with pytest.raises(errors.AgentDiskFullError, match="lacks 1 bytes"), in_use(store, sha256):
        begin(store, b"2" * 11)
    with pytest.raises(errors.AgentDiskFullError):
        begin(store, b"2" * 11)
    assert store.count == 0, "evicted in the hope that it helps"


def test_room_is_what_would_be_taken(tmp_path: Path) -> None:
    free = [100]
    limits = {"max_total_bytes": 80, "max_blob_bytes": 70, "reserve_bytes": 10}
    store = BlobStore(tmp_path, free_bytes=lambda path: free[0], **limits)
    assert store.room_bytes == 70
    with begin(store, b"1" * 30) as upload:
        upload.write(b"1" * 10)
        free[0] = 90
        assert store.room_bytes == 50, "the rest of it is promised"
        free[0] = 50
        assert store.room_bytes == 20
        upload.write(b"1" * 20)
        sha256 = upload.finish().sha256
    free[0] = 20
    assert store.room_bytes == 40, "what is not in use gives way"
    with in_use(store, sha256):
        assert store.room_bytes == 10
        with pytest.raises(errors.AgentDiskFullError):
            begin(store, b"2" * 11)
        begin(store, b"2" * 10).close()
    free[0] = 0
    assert BlobStore(tmp_path / "other", free_bytes=lambda path: free[0]).room_bytes == 0


def test_a_disk_that_fills_up_while_writing_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullFile(io.FileIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(io, "FileIO", FullFile)
    store = store_in(tmp_path)
    upload = begin(store, b"model")
    with pytest.raises(errors.AgentDiskFullError):
        upload.write(b"model")
    assert files(tmp_path) == []
    monkeypatch.undo()
    put(store, b"model")


def test_a_newer_upload_takes_over_from_a_stuck_one(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    stuck = begin(store, b"model")
    stuck.write(b"mo")
    with begin(store, b"model", 2) as newer:
        with pytest.raises(errors.UploadSupersededError):
            stuck.write(b"del")
        with pytest.raises(errors.UploadSupersededError):
            stuck.finish()
        stuck.close()
        newer.write(b"del")
        assert newer.finish().complete


def test_a_blob_damaged_on_disk_is_found_at_its_first_use_after_a_start(tmp_path: Path) -> None:
    sha256 = put(store_in(tmp_path), b"model")
    damaged = tmp_path / sha256
    damaged.chmod(0o600)  # complete blobs are read-only
    damaged.write_bytes(b"m0del")
    store = store_in(tmp_path)
    with pytest.raises(errors.BlobNotFoundError, match="damaged"):
        store.acquire(sha256)
    assert not store.status(sha256).complete
    put(store, b"model")
    with in_use(store, sha256) as path:
        assert path.read_bytes() == b"model"


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("keep")
    store = store_in(tmp_path, total=10)
    put(store, b"1" * 10)
    put(store, b"2" * 10)
    assert (tmp_path / "notes.txt").read_text() == "keep"
    assert store.count == 1


def test_uploads_of_one_blob_from_many_threads_end_well(tmp_path: Path) -> None:
    data = bytes(range(256)) * 64
    store = BlobStore(tmp_path, free_bytes=lambda path: PLENTY)
    unexpected: list[BaseException] = []

    def upload_until_complete() -> None:
        while not store.status(name(data)).complete:
            try:
                upload = store.begin(name(data), len(data), store.status(name(data)).received_bytes)
                if upload is None:
                    return
                with upload:
                    while upload.remaining_bytes:
                        upload.write(data[upload.received_bytes :][:1000])
                    upload.finish()
            except (errors.UploadSupersededError, errors.OffsetError):
                continue
            except BaseException as error:
                unexpected.append(error)
                return

    threads = [threading.Thread(target=upload_until_complete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not unexpected
    with in_use(store, name(data)) as path:
        assert path.read_bytes() == data


class BlobMachine(RuleBasedStateMachine):
    """Uploads, uses, restarts and evictions in any order respect the limits and damage no blob."""

    contents = (b"a" * 10, b"b" * 17, b"c" * 4, b"d" * 30, b"")

    def __init__(self) -> None:
        super().__init__()
        from tempfile import TemporaryDirectory

        self.folder = TemporaryDirectory()
        self.directory = Path(self.folder.name)
        self.store = store_in(self.directory, total=40)
        self.held: dict[str, int] = {}

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(data=st.sampled_from(contents), share=st.floats(0, 1))
    def upload(self, data: bytes, share: float) -> None:
        here = self.store.status(name(data))
        try:
            upload = self.store.begin(name(data), len(data), here.received_bytes)
        except errors.BlobTooLargeError:
            in_use = sum(len(other) for other in self.contents if self.held.get(name(other)))
            assert in_use + len(data) > 40, "refused although it would have fitted"
            return
        assert (upload is None) == here.complete
        if upload is not None:
            with upload:
                count = round(upload.remaining_bytes * share)
                start = upload.received_bytes
                upload.write(data[start : start + count])
                assert upload.finish().complete == (start + count == len(data))

    @rule(data=st.sampled_from(contents))
    def use(self, data: bytes) -> None:
        try:
            path = self.store.acquire(name(data))
        except errors.BlobNotFoundError:
            assert not self.store.status(name(data)).complete
            assert not self.held.get(name(data)), "evicted while in use"
            return
        assert path.read_bytes() == data
        self.held[name(data)] = self.held.get(name(data), 0) + 1

    @rule(data=st.sampled_from(contents))
    def release(self, data: bytes) -> None:
        if self.held.get(name(data)):
            self.held[name(data)] -= 1
            self.store.release(name(data))

    @rule()
    def restart(self) -> None:
        self.store = store_in(self.directory, total=40)
        self.held.clear()

    @invariant()
    def bounds_hold_and_used_blobs_stay(self) -> None:
        assert self.store.total_bytes <= 40
        on_disk = sum(path.stat().st_size for path in self.directory.rglob("*?") if path.is_file())
        assert self.store.total_bytes == on_disk
        for sha256, users in self.held.items():
            assert not users or self.store.status(sha256).complete


TestBlobMachine = BlobMachine.TestCase
TestBlobMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
