"""What a board that dials in and its controller say to each other before gRPC speaks.

A board behind a NAT cannot be called. So its agent calls the controller's gate, names `PROTOCOL` in
the TLS handshake instead of HTTP/2, and keeps a *control* connection. When the controller wants to
call the agent, it asks for a *data* connection over the control connection. The agent calls again,
and carries the bytes of that connection to its own gRPC server. So the roles are swapped below
gRPC, and all calls are the same as those to a board that listens.

Each message is one JSON object in one line of at most `MOST_BYTES` bytes:

```
agent       {"kind": "control", "version": 1, "board_id": "...", "instance": "..."}
controller  {"kind": "welcome"}                     or {"kind": "refused", "reason": "..."}
controller  {"kind": "ping"}                        at least every PING_S seconds
agent       {"kind": "pong"}
controller  {"kind": "open", "key": "..."}

agent       {"kind": "data", "version": 1, "key": "..."}     on the data connection
            and then the bytes of gRPC
```
"""

from __future__ import annotations

import json
from typing import Any, Mapping

PROTOCOL = "latfarm-dial/1"
"""How TLS names this protocol (ALPN, RFC 7301)."""
VERSION = 1
"""Version of the messages."""
MOST_BYTES = 4096
"""The longest message with its line end, in bytes."""
PING_S = 10.0
"""How often the controller asks whether a board is still there, in seconds."""
SILENT_S = 30.0
"""After this time without a message, a side takes the other for lost, in seconds."""

CONTROL, DATA = "control", "data"
WELCOME, REFUSED, PING, PONG, OPEN = "welcome", "refused", "ping", "pong", "open"


class DialMessageError(ValueError):
    """Bytes that are no message of this protocol."""


def packed(kind: str, **fields: object) -> bytes:
    """A message as one line."""
    return json.dumps({"kind": kind, **fields}).encode() + b"\n"


def unpacked(line: bytes) -> Mapping[str, Any]:
    """The message of a line; its kind is a text.

    Raises:
        DialMessageError: the line is too long, not whole, or no such message.
    """
    if len(line) > MOST_BYTES or not line.endswith(b"\n"):
        raise DialMessageError(f"a message must be one line of at most {MOST_BYTES} bytes")
    try:
        message = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise DialMessageError(f"a message must be JSON: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise DialMessageError("a message must be an object with a kind")
    return message


def text_of(message: Mapping[str, Any], name: str, most: int = 200) -> str:
    """A text field of a message, in printable letters.

    Raises:
        DialMessageError: it is missing, no text, too long or not printable.
    """
    value = message.get(name)
    if not isinstance(value, str) or len(value) > most or not value.isprintable():
        raise DialMessageError(f"{name} must be a printable text of at most {most} letters")
    return value
