"""Settings of the controller: defaults < latfarm.toml < environment LATFARM_* < flags.

All state lies under one home directory, so that removing it removes everything.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from platformdirs import user_data_dir
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from latfarm_controller.errors import UsageError

CONFIG_FILE = "latfarm.toml"
PREFIX = "LATFARM_"
LONGEST_SOCKET = 107
"""Bytes that the path of a Unix socket can have."""
# Ray's sockets lie up to 64 characters below its temporary folder.
LONGEST_RAY_DIR = LONGEST_SOCKET - 64


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]


class ControllerConfig(BaseModel):
    """What can be set. Times in milliseconds; every path is absolute."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    home: AbsolutePath
    """Where all state lies."""
    lock_wait_ms: float = Field(default=0.0, ge=0.0)
    """How long a command waits for another process that holds the store."""
    lease_ms: int = Field(default=30_000, ge=1_000, le=3_600_000)
    """How long a board stays ours after the controller is gone."""
    local_agent: bool = True
    """Whether this machine is a board too, named `local`."""
    local_cpu: int | None = Field(default=None, ge=0)
    """The core that the local agent measures on; none: it chooses."""
    local_threads: str = Field(default="", pattern=r"^(\d+(,\d+)*)?$")
    """Thread counts that the local agent offers, as 1,2,4; empty: its configuration's, or 1."""
    local_config: AbsolutePath | None = None
    """The local agent's configuration file; see `latfarm-agent serve --help`."""
    start_timeout_ms: float = Field(default=60_000.0, gt=0.0)
    """How long the local agent may take to be ready."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Where `latfarm serve` answers Prometheus on loopback; 0: any free port; none: nowhere."""
    controller: str = Field(default="", pattern=r"^(\S+:\d{1,5})?$")
    """Where a controller of another machine answers, host:port; empty: the one of this home."""
    controller_name: str = ""
    """The name in that controller's certificate, where its address is another."""
    tls_ca: AbsolutePath | None = None
    """The farm's CA, for speaking to that controller; none: `tls/ca.crt` of the home."""
    tls_cert: AbsolutePath | None = None
    """A viewer's or operator's certificate; none: `tls/client.crt` of the home."""
    tls_key: AbsolutePath | None = None
    """Its key; none: `tls/client.key` of the home."""
    ray_address: str = ""
    """A cluster to join; empty: one of our own on this machine."""
    ray_cpus: int | None = Field(default=None, ge=1)
    """Cores for Ray's tasks; none: all but the measuring one."""

    @property
    def config_file(self) -> Path:
        """The configuration file, which need not exist."""
        return self.home / CONFIG_FILE

    @property
    def store_file(self) -> Path:
        """The database file."""
        return self.home / "store.duckdb"

    @property
    def lock_file(self) -> Path:
        """Held by the one controller of this home; says who that is and where it answers."""
        return self.home / "controller.lock"

    @property
    def socket_file(self) -> Path:
        """The Unix socket of the running controller; a path that sockets can have."""
        inside = self.home / "controller.sock"
        fits = len(os.fsencode(inside)) <= LONGEST_SOCKET
        return inside if fits else self._short_dir / inside.name

    @property
    def boards_file(self) -> Path:
        """The inventory of boards."""
        return self.home / "boards.json"

    @property
    def tls_dir(self) -> Path:
        """Certificates: the farm's CA, ours, and who is revoked."""
        return self.home / "tls"

    @property
    def bundles_dir(self) -> Path:
        """Trained predictors, a folder a platform."""
        return self.home / "bundles"

    @property
    def reports_dir(self) -> Path:
        """Reports to look at in a browser."""
        return self.home / "reports"

    @property
    def agents_dir(self) -> Path:
        """State of the agents that were started here."""
        return self.home / "agents"

    @property
    def logs_dir(self) -> Path:
        """Log files."""
        return self.home / "logs"

    @property
    def ray_dir(self) -> Path:
        """Ray's temporary folder; a path that leaves room for its sockets."""
        inside = self.home / "ray"
        fits = len(os.fsencode(inside)) <= LONGEST_RAY_DIR
        return inside if fits else self._short_dir / inside.name

    @property
    def _short_dir(self) -> Path:
        """A folder of this user and home with a short path, for what cannot lie deep."""
        mark = hashlib.blake2b(os.fsencode(self.home), digest_size=4).hexdigest()
        return Path(tempfile.gettempdir()) / f"latfarm-{os.getuid()}-{mark}"

    def make_dirs(self) -> None:
        """Make the folders, readable by their owner alone; existing ones stay.

        Raises:
            UsageError: one cannot be made, or is somebody else's.
        """
        folders = [
            self.home,
            self.bundles_dir,
            self.reports_dir,
            self.agents_dir,
            self.logs_dir,
        ]
        if self._short_dir in (self.ray_dir.parent, self.socket_file.parent):
            folders.append(self._short_dir)
        folders.append(self.ray_dir)
        for path in folders:
            try:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                # Where everybody may write, somebody else may have been first.
                foreign = path == self._short_dir and path.lstat().st_uid != os.getuid()
            except OSError as error:
                raise UsageError(
                    f"{path}: cannot be made ({error.strerror}); "
                    f"set {PREFIX}HOME to a folder you may write"
                ) from error
            if foreign:
                raise UsageError(
                    f"{path} belongs to another user; set {PREFIX}HOME to a short path"
                )


def load_config(
    flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> ControllerConfig:
    """Put the settings together; a flag that is None was not given.

    Args:
        flags: by field name, as the command line gave them.
        environ: the environment; this process's by default. Names that are no setting are left
            alone: other programs may use the prefix.

    Raises:
        UsageError: a value is wrong or a name unknown; says where it was set and what is known.
    """
    environ = os.environ if environ is None else environ
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    variables = {
        name: environ[PREFIX + name.upper()]
        for name in ControllerConfig.model_fields
        if environ.get(PREFIX + name.upper())
    }
    home = given.get("home") or variables.get("home") or user_data_dir("latfarm", appauthor=False)
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    file = _absolute(Path(str(home))) / CONFIG_FILE
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
        with path.open("rb") as file:
            values = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except NotADirectoryError as error:
        raise UsageError(f"{path.parent} is no folder; set {PREFIX}HOME to one") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is no TOML: {error}") from error
    if "home" in values:
        raise UsageError(f"{path}: home cannot be set inside itself; set {PREFIX}HOME")
    return values


def _refuse_unknown(names: Iterable[str], origin: str) -> None:
    for name in names:
        if name not in ControllerConfig.model_fields:
            near = get_close_matches(name, ControllerConfig.model_fields, n=1)
            known = (
                f"did you mean {near[0]}?"
                if near
                else f"known: {', '.join(ControllerConfig.model_fields)}"
            )
            raise UsageError(f"{origin}: no setting {name!r}; {known}")


def _story(fault: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    name = str(fault["loc"][0]) if fault["loc"] else "?"
    origin = origins.get(name, "defaults")
    if origin == "environment":
        name = PREFIX + name.upper()
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{origin}: {name} = {fault['input']!r}: {message[:1].lower()}{message[1:]}"
