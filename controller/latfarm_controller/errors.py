"""What can go wrong in the controller. Each error knows the exit code of the command line.

```
ControllerError (exit 1)
├── UsageError (exit 2)            wrong input: unknown platform, campaign, board or configuration
├── BuildError (exit 1)            a graph cannot be expressed in a platform's model format
├── AgentError (exit 1)            a board answered with an error, or not at all
│   ├── AgentLostError                 unreachable, or it went away during a call
│   ├── CertificateError               it is not who it must be, or does not accept us
│   ├── DiskFullError                  it has no room for a model
│   └── LeaseError                     somebody else holds the board, or our lease expired
├── StoreError (exit 1)            the store cannot be opened, or is of another version
│   └── StoreBusyError                 another process holds it: names the process
├── WheelError (exit 1)            wheels for a board cannot be built or fetched
└── FarmError (exit 1)             no board can run it, or Ray cannot be started
```
"""

from __future__ import annotations


class ControllerError(Exception):
    """Root of all errors raised on purpose by this distribution."""

    exit_code = 1


class UsageError(ControllerError):
    """Wrong input: says what was given, what is known, and the remedy."""

    exit_code = 2


class BuildError(ControllerError):
    """A graph cannot be expressed in a model format; names the node and the op."""


class AgentError(ControllerError):
    """A board answered with an error, or not at all."""


class AgentLostError(AgentError):
    """The board is unreachable, or went away during a call."""


class CertificateError(AgentError):
    """The board's certificate, or ours, is missing, wrong, expired or revoked; says which."""


class DiskFullError(AgentError):
    """The board has no room for a model; how much is missing stands in the message."""


class LeaseError(AgentError):
    """Somebody else holds the board, or our lease expired."""


class StoreError(ControllerError):
    """The store cannot be opened, is damaged, or is of another version."""


class StoreBusyError(StoreError):
    """Another process holds the store; the message names it."""


class WheelError(ControllerError):
    """pip could not build or fetch a wheel; the message ends with its words."""


class FarmError(ControllerError):
    """No board can run the work, or Ray cannot be started."""
