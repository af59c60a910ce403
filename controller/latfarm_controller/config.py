"""Settings of the controller.

A value comes from the command line, else from an environment variable LATFARM_*, else from the file
latfarm.toml, else it is the default. All state lies in one home directory, so that removing it
removes everything.
"""

from __future__ import annotations

import hashlib
import os
import reprlib
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from latfarm_controller.access_groups import check_groups
from latfarm_controller.errors import UsageError
from latfarm_controller.home import BUNDLES, CONFIG_FILE, PREFIX, absolute, default_home
from latfarm_controller.nearest_names import hint
from latfarm_controller.private_files import private_folder, private_home, read_regular

LONGEST_SOCKET = 107
"""Longest path of a Unix socket in bytes; Linux has 108 with the zero byte at the end."""
LONGEST_RAY_DIR = LONGEST_SOCKET - 64
"""Longest path of Ray's temporary folder in bytes: its sockets lie up to 64 bytes below it."""


AbsolutePath = Annotated[Path, AfterValidator(absolute)]


class ControllerConfig(BaseModel):
    """All settings. Times are in milliseconds, and every path is absolute."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    home: AbsolutePath
    """Folder of all state."""
    lock_wait_ms: float = Field(default=0.0, ge=0.0)
    """How long a command waits for another process that holds the store."""
    lease_ms: int = Field(default=30_000, ge=1_000, le=3_600_000)
    """How long a board stays leased to a controller that was killed."""
    local_agent: bool = True
    """Whether this machine is a board too, named `local`."""
    local_cpu: int | None = Field(default=None, ge=0)
    """The core that the local agent measures on; None: the agent chooses one."""
    local_threads: str = Field(default="", pattern=r"^(\d+(,\d+)*)?$")
    """Thread counts that the local agent offers, as 1,2,4; empty: as its own configuration says."""
    local_config: AbsolutePath | None = None
    """The local agent's configuration file; see `latfarm-agent serve --help`."""
    start_timeout_ms: float = Field(default=60_000.0, gt=0.0)
    """Longest time that the local agent may take to start."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of 127.0.0.1 with the metrics of `latfarm serve`; 0: any free port; None: no metrics."""
    group_socket: AbsolutePath | None = None
    """A second socket of `latfarm serve` outside of the home, for a group; None: there is none."""
    socket_group: str = ""
    """The group of users who may use `group_socket`, as operators."""
    controller: str = Field(default="", pattern=r"^(unix:/\S*|\S+:\d{1,5})?$")
    """Address of a controller on another machine, host:port, or of one of this machine that is open
    to a group, unix:/path/of/its/group_socket; empty: the controller of this home."""
    controller_name: str = ""
    """The name in that controller's certificate; empty: the host of its address."""
    tls_ca: AbsolutePath | None = None
    """Certificate of the farm's authority, to prove that controller; None: `tls/ca.crt`."""
    tls_cert: AbsolutePath | None = None
    """Certificate of a viewer or operator, for that controller; None: `tls/client.crt`."""
    tls_key: AbsolutePath | None = None
    """Private key of that certificate; None: `tls/client.key`."""
    passphrase_file: AbsolutePath | None = None
    """File with the passphrase of the authority's key; None: that key has none."""
    ray_address: str = Field(default="", pattern=r"^(auto|\S+:\d{1,5})?$")
    """Ray cluster to join: host:port, or auto for that of this machine; empty: a Ray of its own."""
    ray_cpus: int | None = Field(default=None, ge=1)
    """Number of cores for a Ray that is started on this machine; None: all, at most 4."""

    prediction_workers: int | None = Field(default=None, ge=1, le=64)
    """Number of processes that predict many candidates; 1: only the process that is asked; None: as
    many as there are cores and memory for, at most 8, and one core less in `latfarm serve` where
    this machine is a board."""
    health_checks: bool = True
    """Whether `latfarm serve` checks boards before their first work, and recovers those that fail
    or do not answer."""
    access_groups: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """Who belongs to which access group, such as {"vision": ["alice", "unix:bob"]}: names in
    certificates, and users of this machine. Members of `admins` may use every board."""

    @field_validator("access_groups")
    @classmethod
    def _check_groups(cls, groups: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
        """Refuse malformed groups."""
        try:
            check_groups(groups)
        except UsageError as error:  # the library that validates knows only its own errors
            raise ValueError(str(error)) from error
        return groups

    @property
    def store_file(self) -> Path:
        """The database file."""
        return self.home / "store.duckdb"

    @property
    def lock_file(self) -> Path:
        """The lock that the one controller of this home holds; it names the process and address."""
        return self.home / "controller.lock"

    @property
    def socket_file(self) -> Path:
        """The Unix socket of the running controller; its path is short enough for a socket."""
        inside = self.home / "controller.sock"
        fits = len(os.fsencode(inside)) <= LONGEST_SOCKET
        return inside if fits else self._short_dir / inside.name

    @property
    def holder_file(self) -> Path:
        """The secret by which boards know this home again after its controller was killed."""
        return self.home / "holder"

    @property
    def audit_file(self) -> Path:
        """The audit log."""
        return self.home / "audit.jsonl"

    @property
    def boards_file(self) -> Path:
        """The inventory of boards."""
        return self.home / "boards.json"

    @property
    def tls_dir(self) -> Path:
        """Certificates: the farm's authority, our own ones, and the list of revoked ones."""
        return self.home / "tls"

    @property
    def bundles_dir(self) -> Path:
        """Bundles, in a folder for each platform."""
        return self.home / BUNDLES

    @property
    def reports_dir(self) -> Path:
        """Reports as HTML files."""
        return self.home / "reports"

    @property
    def agents_dir(self) -> Path:
        """State of the agents that were started on this machine."""
        return self.home / "agents"

    @property
    def logs_dir(self) -> Path:
        """Log files."""
        return self.home / "logs"

    @property
    def ray_dir(self) -> Path:
        """Ray's temporary folder; its path is short enough for the sockets below it."""
        inside = self.home / "ray"
        fits = len(os.fsencode(inside)) <= LONGEST_RAY_DIR
        return inside if fits else self._short_dir / inside.name

    @property
    def _short_dir(self) -> Path:
        """A folder with a short path for this user and home, used where the home's is too long."""
        mark = hashlib.blake2b(os.fsencode(self.home), digest_size=4).hexdigest()
        return Path(tempfile.gettempdir()) / f"latfarm-{os.getuid()}-{mark}"

    def make_dirs(self) -> None:
        """Make the folders, which only their owner may use; existing ones are taken from others.

        Raises:
            UsageError: a folder cannot be made, or belongs to another user.
        """
        private_home(self.home)
        folders = [self.bundles_dir, self.reports_dir, self.agents_dir, self.logs_dir]
        if self._short_dir in (self.ray_dir.parent, self.socket_file.parent):
            folders.append(self._short_dir)
        for path in (*folders, self.ray_dir):
            private_folder(path)


def load_config(
    flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> ControllerConfig:
    """Read the settings from all their sources.

    Args:
        flags: values of the command line, by the name of their field. A value of None was not
            given.
        environ: the environment; None: that of this process. Variables that are not settings are
            ignored, because other programs may use the same prefix.

    Raises:
        UsageError: a value is wrong, or a name is not known. The message says where it was set.
    """
    environ = os.environ if environ is None else environ
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    variables = {
        name: environ[PREFIX + name.upper()]
        for name in ControllerConfig.model_fields
        if environ.get(PREFIX + name.upper())
    }
    home = given.get("home") or variables.get("home") or default_home()
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    file = absolute(Path(str(home))) / CONFIG_FILE
    for origin, part in (
        (str(file), _read_file(file)),
        ("environment", variables),
        ("command line", given),
        ("home", {"home": home}),
    ):
        _refuse_unknown(part, origin)
        values.update(part)
        origins.update(dict.fromkeys(part, origin))
    if "home" in given or "home" in variables:
        origins["home"] = "command line" if "home" in given else "environment"
    try:
        return ControllerConfig.model_validate(values)
    except ValidationError as error:
        raise UsageError("; ".join(_story(fault, origins) for fault in error.errors())) from error


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(read_regular(path).decode())
    except FileNotFoundError:
        return {}
    except NotADirectoryError as error:
        raise UsageError(f"{path.parent} is not a folder; set {PREFIX}HOME to a folder") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    if "home" in values:
        raise UsageError(
            f"{path}: this file lies in the home and cannot set it; set {PREFIX}HOME instead"
        )
    return values


def _refuse_unknown(names: Iterable[str], origin: str) -> None:
    for name in names:
        if name not in ControllerConfig.model_fields:
            settings = ControllerConfig.model_fields
            near = hint(name, settings) or f"; known settings: {', '.join(settings)}"
            raise UsageError(f"{origin}: there is no setting {name!r}{near}")


def _story(fault: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    name = str(fault["loc"][0]) if fault["loc"] else "?"
    origin = origins.get(name, "defaults")
    if origin == "environment":
        name = PREFIX + name.upper()
    message = str(fault["msg"]).removeprefix("Value error, ")
    given = reprlib.repr(fault["input"])
    return f"{origin}: {name} = {given}: {message[:1].lower()}{message[1:]}"
