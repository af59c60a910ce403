"""The errors of the controller. Each class says with which exit code a command ends.

```
ControllerError (exit 1)
├── UsageError (exit 2)            wrong input: an unknown platform, campaign, board or setting
├── BuildError (exit 1)            a graph cannot be expressed in a platform's model format
├── AgentError (exit 1)            a board answered with an error, or not at all
│   ├── AgentLostError                 it is unreachable, or the connection broke
│   ├── CertificateError               its certificate or ours is not accepted
│   ├── IdentityError                  it is not the board that its name in the inventory means
│   ├── BadAnswerError                 it said what no board can say
│   ├── VersionSkewError               its agent is of a version that this controller does not use
│   ├── DiskFullError                  it has no disk space for a model
│   └── LeaseError                     somebody else holds it, or our lease expired
├── StoreError (exit 1)            the store cannot be opened, or is of another version
│   ├── StoreBusyError                 another process holds it
│   └── StoreFullError                 there is no room on its disk
├── BackupError (exit 1)           a backup cannot be made, is damaged, or cannot be restored
├── NotMeasuredError (exit 1)      a question has no stored answer, and nothing may be measured
├── NoSuchCallError (exit 1)       the controller is an older one, without a call that is made
├── PromotionRefusedError (exit 1) a model predicts the frozen set worse than the one in use
├── WheelError (exit 1)            wheels for a board cannot be built or fetched
└── FarmError (exit 1)             no board can run it, or a shard or builder died
    └── RayAwayError                   Ray does not run now; it is started again
```
"""

from __future__ import annotations


class ControllerError(Exception):
    """Root of all errors that this distribution raises on purpose."""

    exit_code = 1


class UsageError(ControllerError):
    """The input is wrong. The message says what was given, what is known, and the remedy."""

    exit_code = 2


class BuildError(ControllerError):
    """A graph cannot be expressed in a model format. The message names the node and the op."""


class AgentError(ControllerError):
    """A board answered with an error, or not at all."""


class AgentLostError(AgentError):
    """The board is unreachable, or the connection broke during a call."""


class CertificateError(AgentError):
    """The board's certificate or ours is missing, wrong, expired or revoked."""


class IdentityError(AgentError):
    """A board has another id than its entry or certificate, or the id of another board."""


class BadAnswerError(AgentError):
    """A board said what no board can say. The message says what, in one printable line."""


class VersionSkewError(AgentError):
    """The version of a board's agent is too far from that of this controller."""


class DiskFullError(AgentError):
    """The board has no disk space for a model. The message says how much is missing."""


class LeaseError(AgentError):
    """Somebody else holds the board, or our lease expired."""


class StoreError(ControllerError):
    """The store cannot be opened, is damaged, or is of another version."""


class StoreBusyError(StoreError):
    """Another process holds the store; the message names it."""


class BackupError(ControllerError):
    """A backup cannot be made, is damaged or incomplete, or cannot be restored here."""


class StoreFullError(StoreError):
    """The disk of the store is full. What was written before is kept, and room is the remedy."""


class NotMeasuredError(ControllerError):
    """The store has no answer to a question that forbids to measure."""


class NoSuchCallError(ControllerError):
    """The controller that was called is an older one and does not know the call."""


class PromotionRefusedError(ControllerError):
    """A model is not put in use, because it predicts the frozen set worse than the present one."""


class WheelError(ControllerError):
    """pip could not build or fetch a wheel. The message ends with the last words of pip."""


class FarmError(ControllerError):
    """No board can run the work, or a shard or builder died."""


class RayAwayError(FarmError):
    """Ray does not run now. The message says why; Ray is started again without being asked to."""
