"""The boards' network: one bridge a rack, one namespace and one cable (a veth pair) a board.

All that is made carries the rack's name, so that what a killed run left behind can be told from
what belongs to others. Addresses lie in 10.213.0.0/16, a /24 that the host does not use yet.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
from pathlib import Path

from tests.farm.boards.host import HostError, command
from tests.farm.boards.rootfs import locked

_NETWORK = ipaddress.ip_network("10.213.0.0/16")
_NAMESPACES = Path("/run/netns")
_LOCK = Path("/run/latfarm-boards.lock")
"""Of this host's addresses: two processes must not choose the same ones."""


class Bridge:
    """A rack's switch. The host is on it too, at `address`.

    Args:
        rack: the rack's name, at most eight letters and digits.

    Raises:
        HostError: it cannot be made.
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
        """Take a network that nobody here uses."""
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
        # A cable's address decides its MAC address, so that what the neighbours' tables remember of
        # an earlier board stays true: otherwise an address used again is deaf for half a minute.
        command("ip", "link", "add", self.name, "address", _mac(self.address), "type", "bridge")
        command("ip", "address", "add", f"{self.address}/24", "dev", self.name)

    def cable(self, number: int) -> Cable:
        """Connect a new namespace.

        Args:
            number: 0 to 252, of a board that no other has.

        Raises:
            HostError: it cannot be made.
        """
        assert self._network is not None
        return Cable(self, number, str(self._network[number + 2]))

    def remove(self) -> None:
        """Remove it; cables are gone before. Idempotent."""
        remove(self.rack)


class Cable:
    """One board's namespace and its way to the bridge."""

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
        """Pull the cable: the board sees its link go."""
        command("ip", "link", "set", self._outer, "down")

    def plug(self) -> None:
        """Put it back, and take away what `filter` set."""
        command("ip", "link", "set", self._outer, "up")
        command("ip", "netns", "exec", self.namespace, "nft", "flush", "ruleset")

    def filter(self, rule: str) -> None:
        """Let the board's kernel judge what comes in and goes out, until `plug`.

        Args:
            rule: one rule of nftables, as `drop` or `tcp dport 50051 reject with tcp reset`.
        """
        chains = "".join(
            f"chain {hook} {{ type filter hook {hook} priority 0; {rule}; }}\n"
            for hook in ("input", "output")
        )
        table = f"table inet latfarm {{\n{chains}}}\n"
        command("ip", "netns", "exec", self.namespace, "nft", "-f", "-", data=table)

    def remove(self) -> None:
        """Remove the namespace, and with it the cable. Idempotent."""
        with contextlib.suppress(HostError):
            command("ip", "netns", "delete", self.namespace)


def remove(rack: str) -> None:
    """Remove all that carries a rack's name. Idempotent."""
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
    """A locally administered address that says which board it is."""
    return "02:1f:" + ":".join(f"{int(part):02x}" for part in address.split("."))
