"""The network of boards: each rack has a bridge; each board has a namespace and a veth pair.

Everything that is made here has the rack's name in its own name, so that the remains of a killed
run can be found. Each rack gets a /24 network of 10.213.0.0/16 that the host does not use yet.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
from pathlib import Path

from tests.farm.boards.host import HostError, command
from tests.farm.boards.rootfs import locked

_NETWORK = ipaddress.ip_network("10.213.0.0/16")
"""Private range that racks take their networks from; chosen because hosts seldom use it."""

_NAMESPACES = Path("/run/netns")
_LOCK = Path("/run/latfarm-boards.lock")
"""Lock file: two processes must not choose the same network at the same time."""


class Bridge:
    """The switch of a rack. The host is connected to it, too, with the IP address `address`.

    Args:
        rack: name of the rack, at most eight letters and digits.

    Raises:
        HostError: the bridge cannot be made.
    """

    def __init__(self, rack: str) -> None:
        self.rack = rack
        self.name = _bridge(rack)
        try:
            with locked(_LOCK):
                self._choose()
            Path(f"/proc/sys/net/ipv6/conf/{self.name}/disable_ipv6").write_text("1")
        except OSError as error:
            raise HostError(f"no bridge can be made: {error}") from error
        command("ip", "link", "set", self.name, "up")

    def _choose(self) -> None:
        """Choose a network that the host does not use, and make the bridge in it."""
        used = [
            ipaddress.ip_network(f"{entry['local']}/{entry['prefixlen']}", strict=False)
            for link in json.loads(command("ip", "-json", "-4", "address"))
            for entry in link["addr_info"]
        ]
        free = (net for net in _NETWORK.subnets(new_prefix=24) if not any(map(net.overlaps, used)))
        self._network = next(free, None)
        if self._network is None:
            raise HostError(f"all of {_NETWORK} is in use")
        self.address = str(self._network[1])
        # MAC addresses are derived from IP addresses. If an IP address is used again, entries in
        # neighbour tables stay correct; with another MAC address it would not answer for half a
        # minute.
        command("ip", "link", "add", self.name, "address", _mac(self.address), "type", "bridge")
        command("ip", "address", "add", f"{self.address}/24", "dev", self.name)

    def cable(self, number: int) -> Cable:
        """Make a network namespace for a new board, and connect it to the bridge.

        Args:
            number: number of the board, 0 to 252; no other board of the rack has it.

        Raises:
            HostError: the namespace or the cable cannot be made.
        """
        assert self._network is not None
        return Cable(self, number, str(self._network[number + 2]))

    def remove(self) -> None:
        """Remove the bridge and what is left of its cables. Idempotent."""
        remove(self.rack)


class Cable:
    """The network namespace of one board, and the veth pair between it and the bridge."""

    def __init__(self, bridge: Bridge, number: int, address: str) -> None:
        self.address = address
        self.namespace = f"{_prefix(bridge.rack)}{number}"
        self.path = _NAMESPACES / self.namespace
        self._outer = f"{_prefix(bridge.rack)}{number}"
        command("ip", "netns", "add", self.namespace)
        inside = ("ip", "-n", self.namespace)
        outer = ("ip", "link", "add", self._outer, "type", "veth")
        command(*outer, "peer", "name", "eth0", "address", _mac(address), "netns", self.namespace)
        Path(f"/proc/sys/net/ipv6/conf/{self._outer}/disable_ipv6").write_text("1")
        command("ip", "link", "set", self._outer, "master", bridge.name, "up")
        command(*inside, "link", "set", "lo", "up")
        command(*inside, "address", "add", f"{address}/24", "dev", "eth0")
        command(*inside, "link", "set", "eth0", "up")
        command(*inside, "route", "add", "default", "via", bridge.address)

    def pull(self) -> None:
        """Pull the cable: the board sees its link go down."""
        command("ip", "link", "set", self._outer, "down")

    def plug(self) -> None:
        """Plug the cable in again, and remove the rules that `filter` has set."""
        command("ip", "link", "set", self._outer, "up")
        command("ip", "netns", "exec", self.namespace, "nft", "flush", "ruleset")

    def filter(self, rule: str) -> None:
        """Apply a rule to what the board receives and sends, until `plug`.

        Args:
            rule: one rule of nftables, for example `tcp dport 50051 reject with tcp reset`.
        """
        chains = "".join(
            f"chain {hook} {{ type filter hook {hook} priority 0; {rule}; }}\n"
            for hook in ("input", "output")
        )
        table = f"table inet latfarm {{\n{chains}}}\n"
        command("ip", "netns", "exec", self.namespace, "nft", "-f", "-", data=table)

    def remove(self) -> None:
        """Remove the namespace; the veth pair disappears with it. Idempotent."""
        with contextlib.suppress(HostError):
            command("ip", "netns", "delete", self.namespace)


def remove(rack: str) -> None:
    """Remove all namespaces and links whose names contain the rack's name. Idempotent."""
    found = _NAMESPACES.glob(f"{_prefix(rack)}*") if _NAMESPACES.exists() else ()
    for path in sorted(found):
        with contextlib.suppress(HostError):
            command("ip", "netns", "delete", path.name)
    for name in (*_links(_prefix(rack)), *_links(_bridge(rack))):
        with contextlib.suppress(HostError):
            command("ip", "link", "delete", name)


def _prefix(rack: str) -> str:
    return f"lf{rack}-"


def _bridge(rack: str) -> str:
    return f"lf{rack}"


def _links(prefix: str) -> list[str]:
    return sorted(path.name for path in Path("/sys/class/net").glob(f"{prefix}*"))


def _mac(address: str) -> str:
    """A locally administered MAC address that contains an IP address."""
    return "02:1f:" + ":".join(f"{int(part):02x}" for part in address.split("."))
