"""The authority keeps what it signs, revokes by name, and its key may have a passphrase."""

from __future__ import annotations

import logging
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.agents.certificates import authority as authority_module
from latfarm_controller.agents.certificates.authority import Authority
from latfarm_controller.agents.certificates.ca_rotation import CaRotation
from latfarm_controller.agents.certificates.passphrase import has_passphrase, read_passphrase
from latfarm_controller.cli.main import run
from latfarm_controller.errors import UsageError
from latfarm_protos.trust.revoked import read_revoked

pytestmark = [
    pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl"),
    pytest.mark.timeout(120),
]
SECRET = "correct horse battery"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "tls")
    made.init()
    return made


def openssl(*words: object) -> str:
    return subprocess.run(
        ["openssl", *map(str, words)], check=True, capture_output=True, text=True
    ).stdout


def secret_file(folder: Path, text: str = SECRET, mode: int = 0o600) -> Path:
    path = folder / "passphrase"
    path.write_text(f"{text}\nanother line\n")
    path.chmod(mode)
    return path


def test_what_is_kept_is_what_openssl_reads(authority: Authority) -> None:
    for role in ("agent", "controller", "operator", "viewer"):
        authority.issue(f"a-{role}", role, ["192.0.2.7", "board.example.org"], days=20_000)
    for one in authority.list():
        told = openssl("x509", "-noout", "-serial", "-subject", "-in", one.path)
        assert told.splitlines()[0].lower() == f"serial={one.serial}"
        assert told.splitlines()[1].replace(" ", "") == f"subject=CN={one.name}"
        assert one.state == "valid"
    roles = {one.name: one.roles for one in authority.list()}
    assert roles["a-viewer"] == ("viewer",)
    assert roles["controller"] == ("controller",)


@pytest.mark.parametrize("number", ["0", "7", "0x0dfa5c", "0x80dfa5", f"0x0000{'a5' * 14}"])
def test_a_serial_number_is_written_as_openssl_writes_it(
    authority: Authority, tmp_path: Path, number: str
) -> None:
    key, asked, made = (tmp_path / f"b.{end}" for end in ("key", "csr", "crt"))
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", asked, "-subj", "/CN=b")
    signer = ("-CA", authority.cert, "-CAkey", authority.key, "-set_serial", number)
    openssl("x509", "-req", "-in", asked, *signer, "-days", "1", "-out", made)
    kept, _ = authority.keep(made)
    told = openssl("x509", "-noout", "-serial", "-in", made).strip()
    assert told.lower() == f"serial={kept.serial}"
    assert [one.fingerprint for one in authority.revoke(kept.serial)] == [kept.fingerprint]


def test_all_certificates_of_a_name_are_kept_and_revoked_together(authority: Authority) -> None:
    authority.issue("board", "agent")
    first = authority.list()[0]
    authority.issue("board", "agent")
    (authority.folder / "issued" / "board.crt").unlink()
    kept = [one for one in authority.list() if one.name == "board"]
    assert len(kept) == 2
    assert first.fingerprint in {one.fingerprint for one in kept}
    gone = authority.revoke("board")
    assert {one.fingerprint for one in gone} == {one.fingerprint for one in kept}
    assert {one.state for one in authority.list() if one.name == "board"} == {"revoked"}
    assert {one.state for one in authority.list() if one.name == "controller"} == {"valid"}


@pytest.mark.parametrize("way", ["serial", "fingerprint", "file"])
def test_one_certificate_can_be_revoked(authority: Authority, way: str) -> None:
    path = authority.issue("ada", "viewer")
    keep = next(one for one in authority.list() if one.name == "ada")
    authority.issue("ada", "viewer")
    spoken = ":".join(keep.fingerprint[i : i + 2] for i in range(0, 64, 2)).upper()
    file = authority.folder / "signed" / f"{keep.fingerprint}.crt"
    assert path.exists()
    which = {"serial": keep.serial, "fingerprint": spoken, "file": str(file)}[way]
    assert [one.fingerprint for one in authority.revoke(which)] == [keep.fingerprint]
    states = {one.fingerprint: one.state for one in authority.list() if one.name == "ada"}
    assert sorted(states.values()) == ["revoked", "valid"]
    assert states[keep.fingerprint] == "revoked"


def test_what_is_revoked_at_the_same_time_is_all_revoked(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Playbooks revoke the certificates of many boards at once."""

    def read_slowly(path: Path) -> frozenset[str]:
        found = read_revoked(path)
        time.sleep(0.05)
        return found

    monkeypatch.setattr(authority_module, "read_revoked", read_slowly)
    fingerprints = [f"{number:064x}" for number in range(8)]
    with ThreadPoolExecutor(len(fingerprints)) as pool:
        list(pool.map(lambda one: Authority(authority.folder).revoke(one), fingerprints))
    assert authority.revoked() == frozenset(fingerprints)


def test_without_openssl_nothing_is_said_about_a_certificate(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="openssl command is needed: apt-get install openssl"):
        authority.keep(authority.folder / "controller.crt")


def test_without_openssl_nothing_is_said_about_a_passphrase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "tls", SECRET)
    authority.init()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="openssl command is needed: apt-get install openssl"):
        authority.secret_of(authority.key)


def test_a_name_that_nobody_has_is_told_with_those_that_there_are(authority: Authority) -> None:
    authority.issue("ada", "viewer")
    with pytest.raises(UsageError, match=r"no certificate of 'bob' is known.*: ada, controller"):
        authority.revoke("bob")


def test_what_another_program_signed_is_kept_if_it_is_ours(
    authority: Authority, tmp_path: Path
) -> None:
    key, asked, made = (tmp_path / f"b.{end}" for end in ("key", "csr", "crt"))
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", asked, "-subj", "/CN=b")
    signer = ("-CA", authority.cert, "-CAkey", authority.key, "-set_serial", "7")
    openssl("x509", "-req", "-in", asked, *signer, "-days", "1", "-out", made)
    found, new = authority.keep(made)
    assert (found.name, new) == ("b", True)
    assert authority.keep(made)[1] is False
    assert [one.name for one in authority.list()] == ["b", "controller"]

    stranger = Authority(tmp_path / "stranger")
    stranger.init()
    with pytest.raises(UsageError, match="was not signed by"):
        authority.keep(stranger.folder / "controller.crt")
    assert len(authority.list()) == 2


def test_the_name_in_a_signing_request_does_not_count(authority: Authority, tmp_path: Path) -> None:
    key, asked = tmp_path / "b.key", tmp_path / "b.csr"
    new = ("-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", asked)
    openssl("req", *new, "-subj", "/CN=ada")
    authority.issue("bob", "operator", request=asked)
    assert [one.name for one in authority.list()] == ["bob", "controller"]


def test_a_key_with_a_passphrase_signs_only_with_it(tmp_path: Path) -> None:
    locked = Authority(tmp_path / "tls", SECRET)
    locked.init()
    assert has_passphrase(locked.key)
    locked.issue("ada", "viewer")
    with pytest.raises(UsageError, match="has a passphrase; give a file with it"):
        Authority(tmp_path / "tls").issue("bob", "viewer")
    with pytest.raises(UsageError, match="the passphrase that was given is another one"):
        Authority(tmp_path / "tls", "another passphrase").issue("bob", "viewer")
    assert Authority(tmp_path / "tls").revoke("ada"), "a revocation needs no signature"

    with pytest.raises(UsageError, match="has a passphrase"):
        CaRotation(Authority(tmp_path / "tls")).begin()
    succession = CaRotation(locked)
    succession.begin()
    assert has_passphrase(locked.folder / "ca-next.key")
    succession.switch()
    locked.issue("bob", "viewer")
    succession.finish()
    assert has_passphrase(locked.key)


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        (SECRET, 0o640, "other users can read it"),
        ("short", 0o600, "must be a passphrase of 8 letters"),
        ("", 0o600, "must be a passphrase of 8 letters"),
        ("a\x1b[31m red one", 0o600, "must be a passphrase"),
        ("x" * 2000, 0o600, "at most 1024 bytes"),
    ],
)
def test_a_file_that_holds_no_passphrase_is_refused(
    tmp_path: Path, text: str, mode: int, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        read_passphrase(secret_file(tmp_path, text, mode))


def test_the_commands_take_the_passphrase_from_a_file_and_show_it_nowhere(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[str] = []
    before: Callable[..., Any] = subprocess.run

    def watched(command: Any, **options: Any) -> Any:
        seen.append(f"{command} {options.get('env')}")
        return before(command, **options)

    monkeypatch.setattr(subprocess, "run", watched)
    monkeypatch.setenv("LATFARM_HOME", str(tmp_path / "home"))
    file = secret_file(tmp_path)
    caplog.set_level(logging.DEBUG)
    assert run(["-vv", "certs", "init", "--passphrase-file", str(file)]) == 0
    assert run(["certs", "issue", "ada", "--role", "viewer"]) == 2
    assert "--passphrase-file" in capfd.readouterr().err
    monkeypatch.setenv("LATFARM_PASSPHRASE_FILE", str(file))
    assert run(["-vv", "certs", "issue", "ada", "--role", "viewer"]) == 0
    assert run(["certs", "authority", "begin"]) == 0
    assert run(["certs", "authority", "switch"]) == 0
    assert run(["certs", "list", "--json"]) == 0
    told = capfd.readouterr()
    assert seen
    for text in (*seen, told.out, told.err, caplog.text):
        assert SECRET not in text
    for path in (tmp_path / "home").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


def test_a_name_that_is_not_known_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LATFARM_HOME", str(tmp_path / "home"))
    assert run(["certs", "init"]) == 0
    capfd.readouterr()
    assert run(["certs", "revoke", "bob"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "no certificate of 'bob' is known here" in line


def test_a_certificate_is_revoked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Playbooks tell by the words whether something has changed."""
    home = tmp_path / "home"
    monkeypatch.setenv("LATFARM_HOME", str(home))
    assert run(["certs", "init"]) == 0
    assert run(["certs", "issue", "bob", "--role", "operator"]) == 0
    capfd.readouterr()
    assert run(["certs", "revoke", "bob"]) == 0
    first, told = capfd.readouterr().err.splitlines()
    assert first.endswith(", a certificate of bob, is revoked")
    assert told.startswith("copy the new ")
    assert run(["certs", "revoke", "bob"]) == 0
    (again,) = capfd.readouterr().err.splitlines()
    assert again.endswith(", a certificate of bob, was revoked already")
    assert " is revoked" not in again
    assert (home / "audit.jsonl").read_text().count("certificate.revoked") == 1
