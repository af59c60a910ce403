"""The inventory of boards: a JSON file that people, Ansible playbooks and commands may change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

from latfarm_predictors.whole_file import written_whole

from latfarm_controller.agents import bounds
from latfarm_controller.agents.tls import UNIX, ControllerTlsFiles
from latfarm_controller.board_hooks import BoardHooks, Hook
from latfarm_controller.board_profile import BoardProfile
from latfarm_controller.errors import BadAnswerError, IdentityError, UsageError
from latfarm_controller.nearest_names import hint
from latfarm_controller.private_files import FILE_MODE, FOLDER_MODE, locked_file, read_regular

VERSION = 1
"""Version of the file's format."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class BoardEntry:
    """A board and the address of its agent.

    `insecure`: speak to it in plain text without certificates, also beyond loopback. `board_id`:
    the id of the device; it is noted when the board first answers, and no other id is believed
    afterwards. It is empty before. `dials_in`: the agent calls the controller; then the address is
    empty in the inventory, and a Unix socket of the controller while it serves. `hooks`: what
    reboots the board and switches its power. `profile`: what people noted about it, and who may
    use it.

    Raises:
        UsageError: on construction, when the name, the address or the id is malformed.
    """

    name: str
    address: str
    tls: ControllerTlsFiles | None = None
    insecure: bool = False
    board_id: str = ""
    dials_in: bool = False
    hooks: BoardHooks = field(default_factory=BoardHooks)
    profile: BoardProfile = field(default_factory=BoardProfile)

    def __post_init__(self) -> None:
        """Refuse a malformed name or address."""
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"board name {self.name!r}: letters, digits, '.', '_' and '-' only, at most 63"
            )
        match = _ADDRESS.fullmatch(self.address)
        if self.dials_in:
            if self.address and not self.address.startswith(UNIX):
                raise UsageError(
                    f"board {self.name} dials in, so it cannot have the address {self.address!r}"
                )
        elif not self.address:
            raise UsageError(
                f"board {self.name} has no address: it must be host:port, as 192.0.2.7:7440, or "
                "the board calls this controller (--dials-in)"
            )
        elif not match or not 0 < int(match[2]) <= 65535:
            raise UsageError(
                f"address {self.address!r} of board {self.name}: must be host:port, "
                "as 192.0.2.7:7440"
            )
        try:
            bounds.name(self.board_id, "board id", empty=True)
        except BadAnswerError as error:
            raise UsageError(f"board {self.name}: {error}") from error

    @property
    def where(self) -> str:
        """Where the board is, for people."""
        return "dials in" if self.dials_in else self.address

    def to_json(self) -> dict[str, Any]:
        """Return this object as plain JSON types."""
        data: dict[str, Any] = {"dials_in": True} if self.dials_in else {"address": self.address}
        if self.insecure:
            data["insecure"] = True
        if self.board_id:
            data["board_id"] = self.board_id
        if self.tls is not None:
            data["tls"] = {
                "ca": str(self.tls.ca),
                "cert": str(self.tls.cert),
                "key": str(self.tls.key),
            }
            if self.tls.server_name:
                data["tls"]["server_name"] = self.tls.server_name
        if hooks := self.hooks.to_json():
            data["hooks"] = hooks
        return data | self.profile.to_json()


class Registry:
    """The inventory file.

    A change is made completely or not at all. Processes that change the file at the same time wait
    for each other, so that no change is lost.

    Every method raises:
        UsageError: the file cannot be read or written, or is malformed; says what is wrong.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def list(self) -> list[BoardEntry]:
        """All boards, sorted by name; none if there is no file."""
        return sorted(self._read().values(), key=lambda entry: entry.name)

    def get(self, name: str) -> BoardEntry:
        """The board of that name.

        Raises:
            UsageError: there is none; names the known ones.
        """
        return self._known(self._read(), name)

    def add(
        self,
        name: str,
        address: str,
        tls: ControllerTlsFiles | None = None,
        *,
        replace: bool = False,
        insecure: bool = False,
        dials_in: bool = False,
    ) -> BoardEntry:
        """Add a board to the inventory; returns its entry.

        A board that is replaced keeps its id, hooks and profile: with a new address it is still
        the same device.

        Raises:
            UsageError: the name or the address is malformed, the name is taken (unless `replace` is
                set), or another board has the address.
        """
        entry = BoardEntry(name, address, tls, insecure, dials_in=dials_in)
        with self._changing() as known:
            if entry.name in known and not replace:
                raise UsageError(
                    f"board {entry.name!r} is known already, at {known[entry.name].where}; "
                    "--replace changes its entry"
                )
            for other in known.values():
                same = bool(entry.address) and other.address == entry.address
                if same and other.name != entry.name:
                    raise UsageError(f"{entry.address} is board {other.name!r} already")
            if entry.name in known:
                old = known[entry.name]
                entry = replaced(entry, board_id=old.board_id, hooks=old.hooks, profile=old.profile)
            known[entry.name] = entry
        return entry

    def pin(self, name: str, board_id: str, *, again: bool = False) -> BoardEntry:
        """Note the id of a board in its entry, unless it is there already; returns the entry.

        Args:
            name: of the board.
            board_id: that its agent gave.
            again: take the id in the place of another one.

        Raises:
            IdentityError: the board has another id, or another board has this id.
            UsageError: there is no board of that name.
        """
        with self._changing() as known:
            entry = self._known(known, name)
            holder = next((e for e in known.values() if e.board_id == board_id), entry)
            if holder.name != name:
                raise IdentityError(second_holder(name, board_id, holder.name))
            if entry.board_id not in ("", board_id) and not again:
                raise IdentityError(changed_id(name, board_id, entry.board_id))
            known[name] = replaced(entry, board_id=board_id)
            return known[name]

    def set_hooks(self, name: str, hooks: Mapping[str, Hook | None]) -> BoardEntry:
        """Change some hooks of a board; returns its entry.

        Args:
            name: of the board.
            hooks: by their names (`board_hooks.HOOK_NAMES`); None removes a hook.

        Raises:
            UsageError: there is no board of that name.
        """
        with self._changing() as known:
            entry = self._known(known, name)
            known[name] = replaced(entry, hooks=replaced(entry.hooks, **hooks))
            return known[name]

    def set_profile(self, name: str, change: Callable[[BoardProfile], BoardProfile]) -> BoardEntry:
        """Change what is noted about a board; returns its entry.

        Args:
            name: of the board.
            change: gets the present profile and returns the new one.

        Raises:
            UsageError: there is no board of that name, or the new profile is malformed.
        """
        with self._changing() as known:
            entry = self._known(known, name)
            known[name] = replaced(entry, profile=change(entry.profile))
            return known[name]

    def forget_id(self, name: str) -> BoardEntry:
        """Note the id of a board anew when it answers next; returns its entry.

        Raises:
            UsageError: there is no board of that name.
        """
        with self._changing() as known:
            known[name] = replaced(self._known(known, name), board_id="")
            return known[name]

    def remove(self, name: str) -> BoardEntry:
        """Remove a board from the inventory; returns its entry.

        Raises:
            UsageError: there is no board of that name.
        """
        with self._changing() as known:
            return known.pop(self._known(known, name).name)

    def _known(self, known: Mapping[str, BoardEntry], name: str) -> BoardEntry:
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise UsageError(
                f"no board {name!r} in {self.path}; there are: {names}{hint(name, known)}"
            )
        return known[name]

    @contextmanager
    def _changing(self) -> Iterator[dict[str, BoardEntry]]:
        """The boards by name, to be changed in place; written if the block ends without error."""
        try:
            self.path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            lock = locked_file(self.path.with_name(self.path.name + ".lock"))
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written: {error.strerror}") from error
        with lock:
            known = self._read()
            before = dict(known)
            yield known
            if known != before:
                self._write(known)

    def _read(self) -> dict[str, BoardEntry]:
        try:
            data = json.loads(read_regular(self.path))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self.path}: is no JSON: {error}") from error
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise UsageError(f'{self.path}: must be an object with "version": {VERSION}')
        boards = data.get("boards", {})
        if not isinstance(boards, dict):
            raise UsageError(f'{self.path}: "boards" must be an object of name: board')
        return {name: self._entry(name, board) for name, board in boards.items()}

    def _entry(self, name: str, board: object) -> BoardEntry:
        try:
            fields: Mapping[str, Any] = _object(board)
            insecure = fields.get("insecure", False)
            tls = self._tls(fields.get("tls"))
            board_id = _text(fields.get("board_id", ""))
            dials_in = _truth(fields.get("dials_in", False))
            address = "" if dials_in else _text(fields["address"])
            hooks = BoardHooks.of_json(fields.get("hooks", {}))
            return BoardEntry(
                name,
                address,
                tls,
                _truth(insecure),
                board_id,
                dials_in,
                hooks,
                BoardProfile.of_json(fields),
            )
        except (KeyError, TypeError) as error:
            raise UsageError(
                f'{self.path}: board {name!r} needs "address": "host:port" or "dials_in": '
                f'true, and, where it uses TLS, "tls" with "ca", "cert" and "key": {error}'
            ) from error
        except UsageError as error:
            raise UsageError(f"{self.path}: {error}") from error

    def _tls(self, data: Any) -> ControllerTlsFiles | None:
        if data is None:
            return None
        # Paths are relative to the inventory, so that a folder with all files can be moved.
        folder = self.path.parent
        fields = _object(data)
        return ControllerTlsFiles(
            folder / _text(fields["ca"]),
            folder / _text(fields["cert"]),
            folder / _text(fields["key"]),
            _text(fields.get("server_name", "")),
        )

    def _write(self, known: Mapping[str, BoardEntry]) -> None:
        boards = {name: known[name].to_json() for name in sorted(known)}
        text = json.dumps({"version": VERSION, "boards": boards}, indent=1) + "\n"
        try:
            with written_whole(self.path, durable=True, mode=FILE_MODE) as part:
                part.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written: {error.strerror}") from error


def changed_id(name: str, board_id: str, known_id: str) -> str:
    """The message for a board that has another id than it had, with the remedy."""
    return (
        f"board {name} says that its id is {board_id}, but it was {known_id}; nothing of it is "
        "used; if it got a new system or new hardware on purpose: "
        f"latfarm boards accept {name}"
    )


def second_holder(name: str, board_id: str, holder: str) -> str:
    """The message for a board that has the id of another board, with the remedy."""
    return (
        f"board {name} says that its id is {board_id}, which is that of board {holder}; nothing of "
        f"it is used; if {name} takes the place of {holder}: latfarm boards remove {holder}; if "
        "their systems are copies of one image, give one of them an id of its own: empty its "
        "/etc/machine-id, run systemd-machine-id-setup, and start its agent again"
    )


def _object(data: object) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise TypeError(f"{_short(data)} is no object")
    return data


def _truth(data: object) -> bool:
    if not isinstance(data, bool):
        raise TypeError(f"{_short(data)} is neither true nor false")
    return data


def _text(data: object) -> str:
    if not isinstance(data, str):
        raise TypeError(f"{_short(data)} is no text")
    if not data.isprintable():
        raise TypeError(f"{_short(data)} has control characters")
    return data


def _short(data: object) -> str:
    """A value for a message, which may have been nested deeply or be very long."""
    return f"{type(data).__name__} {data if isinstance(data, (int, float)) else ''}".strip()
