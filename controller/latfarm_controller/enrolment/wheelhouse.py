"""Makes wheelhouses: archives that hold everything that one kind of board, or controller, installs.

The archive holds the wheels of the agent and of its messages (`latfarm-protos`), everything that
they need on a board with that Python and processor, pip itself (Debian's Python has none), and a
list of all of them with their hashes. The name of the archive contains a hash of its content, so
that archives with equal contents are the same release. The archive of a controller also holds the
wheels of the agent, which the controller hands on to boards, and pip is installed there, because
it fetches what else a board needs. See `deployed`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from latfarm_predictors.whole_file import SUFFIX, written_whole
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from latfarm_controller.enrolment import deployed, wheels
from latfarm_controller.enrolment.deployed import ABOUT
from latfarm_controller.enrolment.own_wheels import own_wheels, source
from latfarm_controller.enrolment.pruning import keep
from latfarm_controller.enrolment.target import WheelTarget
from latfarm_controller.enrolment.wheels import Wheel
from latfarm_controller.errors import UsageError, WheelError
from latfarm_controller.private_files import locked_file


@dataclass(frozen=True, slots=True)
class Product:
    """What a wheelhouse installs.

    Attributes:
        head: the distribution that gives the release its version and whose extras can be asked for.
        own: the distributions of this project that are installed.
        extras: extras of those that are always installed.
        oldest_python: the oldest version of Python on which it runs.
        archive: how the name of an archive begins.
        equips: the distributions whose wheels it hands on to boards.
        installs_pip: whether pip is installed, and not only used to install the rest.
    """

    head: str
    own: tuple[str, ...]
    extras: tuple[str, ...]
    oldest_python: tuple[int, int]
    archive: str
    equips: tuple[str, ...] = ()
    installs_pip: bool = False


AGENT = Product("latfarm-agent", ("latfarm-protos", "latfarm-agent"), (), (3, 8), "latfarm")
"""What a board installs."""
CONTROLLER = Product(
    "latfarm-controller",
    ("latfarm-protos", "latfarm-predictors", "latfarm-controller"),
    ("fit",),
    (3, 11),
    "latfarm-controller",
    equips=AGENT.own,
    installs_pip=True,
)
"""What the machine of a controller installs."""

LIST = "requirements.txt"
"""Name of the file in the archive that lists the wheels with their hashes."""
HANDED = "boards"
"""Folder in the archive of a controller with the wheels that it hands on to boards."""
_PINNED_FROM = (3, 11)  # the oldest Python for which constraints.txt of a checkout is valid

_MOST_ROUNDS = 5  # how often `_complete` looks for missing wheels before it gives up
# A line of constraints.txt: name==version, and maybe a condition after a semicolon.
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)(?P<marker> *;[^\\]*)?")


@dataclass(frozen=True, slots=True)
class Wheelhouse:
    """A wheelhouse that was made.

    `left_out` maps each runtime that cannot be installed completely on this Python to the reason.
    """

    release: str
    archive: Path
    target: WheelTarget
    runtimes: tuple[str, ...]
    left_out: dict[str, str]
    wheels: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return this object as plain JSON types."""
        return {
            "release": self.release,
            "archive": str(self.archive),
            "python": self.target.python,
            "arch": self.target.arch,
            "glibc": self.target.glibc,
            "runtimes": list(self.runtimes),
            "left_out": self.left_out,
            "wheels": list(self.wheels),
            "size_bytes": self.archive.stat().st_size,
        }


class Contents(NamedTuple):
    """What is packed into an archive, besides the wheels that are installed.

    `handed` are the wheels that the machine hands on to boards.
    """

    product: Product
    target: WheelTarget
    extras: tuple[str, ...]
    left_out: dict[str, str]
    handed: list[Wheel]


def assemble(
    target: WheelTarget,
    runtimes: Sequence[str],
    folder: Path,
    own: Path | None = None,
    product: Product = AGENT,
) -> Wheelhouse:
    """Make a wheelhouse, or return the equal one that was made before; no wheel is fetched twice.

    Where a controller was deployed together with an archive for this kind of board, that is it.

    Args:
        target: the Python of the board.
        runtimes: extras of the agent, such as "onnxruntime".
        folder: the folder that holds wheelhouses, and the wheels from which they are made.
        own: a folder with the wheels of this project's distributions; if it is None, they are built
            from the checkout from which this controller runs, or are those of its deployment.
        product: what is installed.

    Raises:
        UsageError: the agent does not know a runtime, the project's wheels are not found, or the
            product does not run on that Python.
        WheelError: a wheel cannot be built or fetched, or what was brought is damaged.
    """
    if own is None and product is AGENT and (there := deployed.brought(target, runtimes)):
        told = there.about
        kinds = tuple(told["runtimes"])
        return Wheelhouse(
            told["release"], there.path, target, kinds, told["left_out"], there.wheels
        )
    if target.version < product.oldest_python:
        oldest = ".".join(map(str, product.oldest_python))
        raise UsageError(f"--python {target.python}: {product.head} needs {oldest} or newer")
    with _locked(folder):
        mine = _own(product.own, folder, own)
        handed = _own(product.equips, folder, own) if product.equips else []
        head = next(wheel for wheel in mine if wheel.name == product.head)
        asked = tuple(sorted(set(runtimes)))
        unknown = sorted(set(asked) - set(head.extras))
        if unknown:
            known = ", ".join(sorted(head.extras))
            who = product.head.replace("latfarm-", "the ")
            raise UsageError(f"no runtime {', '.join(unknown)}; {who} knows {known}")
        extras = tuple(sorted({*asked, *product.extras}))
        others = _others(mine, extras, target, folder, product)
        needed, _ = wheels.closure(mine, others, extras, target)
        pip = next(wheel for wheel in others if wheel.name == "pip")
        left_out = _left_out(head, asked, target)
        made = _pack(needed, pip, Contents(product, target, asked, left_out, handed), folder)
        parts = {wheel.path.parent for wheel in (*mine, *handed, *others)}
        kind = f"{target.tag}-{'-'.join(asked)}"
        keep(folder, kind if product is AGENT else f"{product.head}-{kind}", made.archive, parts)
        return made


def _own(names: Sequence[str], folder: Path, own: Path | None) -> list[Wheel]:
    """Read the wheels of distributions of this project."""
    return [wheels.read_wheel(path) for path in own_wheels(names, folder, own)]


def _others(
    mine: Sequence[Wheel],
    extras: Sequence[str],
    target: WheelTarget,
    folder: Path,
    product: Product,
) -> list[Wheel]:
    """Return the wheels of other projects that are needed, and the wheel of pip."""
    pins = _pins(target, product)
    asked = sorted(
        f"{requirement.name}{requirement.specifier}"
        for wheel in mine
        for requirement in wheel.requires
        if target.wants(requirement, set(extras)) and requirement.name not in product.own
    )
    key = json.dumps([sorted({*asked, "pip"}), target.tag, pins])
    place = folder / "others" / hashlib.sha256(key.encode()).hexdigest()[:16]
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".fetching-") as text:
            fetched = Path(text) / "wheels"
            fetched.mkdir()
            try:
                wheels.fetch([*dict.fromkeys(asked), "pip"], target, pins, fetched)
                _complete(mine, extras, target, pins, fetched)
            except WheelError as error:
                known = set(extras) - set(product.extras)
                way_out = deployed.remedy(target, known) if product is AGENT else ""
                raise WheelError("; ".join(filter(None, (str(error), way_out)))) from error
            fetched.rename(place)
    return [wheels.read_wheel(path) for path in sorted(place.glob("*.whl"))]


def _complete(
    mine: Sequence[Wheel],
    extras: Sequence[str],
    target: WheelTarget,
    pins: Sequence[str],
    folder: Path,
) -> None:
    """Fetch wheels that pip left out because their conditions hold only on the board."""
    for _ in range(_MOST_ROUNDS):
        there = [wheels.read_wheel(path) for path in folder.glob("*.whl")]
        _, missing = wheels.closure(mine, there, extras, target)
        if not missing:
            return
        wheels.fetch(missing, target, pins, folder)
    raise WheelError(f"no set of wheels for {target.tag} meets {', '.join(missing)}")


def _left_out(agent: Wheel, extras: Sequence[str], target: WheelTarget) -> dict[str, str]:
    found: dict[str, str] = {}
    for extra in extras:
        conditions = [
            f"{requirement.name}{requirement.specifier} needs {requirement.marker}"
            for requirement in agent.requires
            if requirement.marker is not None
            and f'extra == "{extra}"' in str(requirement.marker)
            and not target.holds(requirement.marker, extra)
        ]
        if conditions:
            found[extra] = "; ".join(conditions)
    return found


def _pack(needed: Sequence[Wheel], pip: Wheel, contents: Contents, folder: Path) -> Wheelhouse:
    product, target, extras, left_out, handed = contents
    installed = [*needed, pip] if product.installs_pip else needed
    lines = [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in installed]
    listed = "".join(f"{line}\n" for line in lines)
    hashes = "".join(wheel.sha256 for wheel in (pip, *handed))
    digest = hashlib.sha256(f"{listed}{hashes}{target.tag}".encode()).hexdigest()[:12]
    version = next(wheel.version for wheel in needed if wheel.name == product.head)
    release = f"{version}-{digest}"
    about = {
        "release": release,
        "python": target.python,
        "arch": target.arch,
        "runtimes": list(extras),
        "left_out": left_out,
        "pip": pip.path.name,
    }
    archive = folder / f"{product.archive}-{release}-{target.tag}.tar"
    if not archive.exists():
        with written_whole(archive) as part, tarfile.open(part, "w") as tar:
            for wheel in (*needed, pip):
                tar.add(wheel.path, wheel.path.name, filter=_plain)
            for wheel in handed:
                tar.add(wheel.path, f"{HANDED}/{wheel.path.name}", filter=_plain)
            for name, text in ((LIST, listed), (ABOUT, json.dumps(about, indent=1) + "\n")):
                entry = tarfile.TarInfo(name)
                entry.size = len(text.encode())
                tar.addfile(_plain(entry), io.BytesIO(text.encode()))
    names = tuple(wheel.path.name for wheel in (*needed, pip))
    return Wheelhouse(release, archive, target, extras, left_out, names)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Set owner, time and mode to fixed values, so that equal wheels make equal archives."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = 0
    entry.mode = 0o644
    return entry


def _pins(target: WheelTarget, product: Product) -> list[str]:
    """Return pins for direct requirements of this project's distributions.

    The pins are the tested versions in constraints.txt of the checkout; there are none if the
    target's Python is too old for that file, or if there is no checkout. Indirect requirements are
    not pinned: the tool that resolved the tested versions may ignore upper bounds on Python, while
    pip obeys them.
    """
    try:
        file = source(product.head).parent / "constraints.txt"
        text = file.read_text() if target.version >= _PINNED_FROM else ""
    except (OSError, UsageError):
        return []
    asked = {
        canonicalize_name(requirement.name)
        for name in product.own
        for requirement in map(Requirement, importlib.metadata.requires(name) or ())
    }
    found = []
    for line in text.splitlines():
        match = _PIN.match(line)
        if match and canonicalize_name(match["name"]) in asked:
            found.append(f"{match['name']}=={match['version']}{(match['marker'] or '').rstrip()}")
    return found


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with locked_file(folder / ".lock"):
        for left in [*folder.glob(f"*{SUFFIX}"), *folder.glob("*/.building-*")]:
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()
        yield
