"""What can go wrong in the agent. Each error has a code; the servicer turns it into a gRPC status.

```
LatfarmAgentError
├── AgentUsageError            a wrong flag or file on the command line (exit code 2)
├── StateError                 the state directory cannot be used
│   ├── StateBusyError             another agent uses it; the message names its process
│   └── AgentDiskFullError         no space is left for a blob or a result
├── RequestError               a request contradicts itself or does not fit this board
│   ├── UnknownPlatformError       the board lacks the platform; the message names the known ones
│   ├── DigestError                a string is not a sha256, or the bytes have another one
│   ├── ForbiddenFormatError       a blob would run code when it is loaded
│   ├── OffsetError                an upload does not continue where the last one ended
│   └── RequestConflictError       one request id stands for two different questions
├── LeaseRefusedError          the caller may not use the board now
│   ├── LeaseHeldError             somebody else holds the lease; the message names the holder
│   └── LeaseLostError             the token is old, has expired, or was never granted
├── BlobNotFoundError          the model is not on this board, or not complete
├── LimitError                 a bound of this agent is reached
│   ├── BlobTooLargeError          one blob, or all blobs in use, are over the limit
│   ├── SpoolFullError             too many results wait to be acknowledged
│   └── BusyError                  there are too many calls or requests at once
├── UploadSupersededError      a newer upload of the same blob took over
└── UnavailableError           the board takes no work now
    ├── QuarantinedError           there were too many failures in a row
    └── StoppingError              the agent is shutting down
```

A measurement that fails raises none of these: it is a `BenchResult` with another outcome than ok.
"""

from __future__ import annotations


class LatfarmAgentError(Exception):
    """Root of all errors that this distribution raises on purpose."""

    code = "AGENT_ERROR"
    exit_code = 1


class AgentUsageError(LatfarmAgentError):
    """A flag or file is wrong; the message says what was given and what to do."""

    code = "USAGE"
    exit_code = 2


class StateError(LatfarmAgentError):
    """The state directory is damaged or cannot be written."""

    code = "STATE"


class StateBusyError(StateError):
    """Another agent uses the state directory; the message names its process."""

    code = "STATE_BUSY"


class AgentDiskFullError(StateError):
    """No space is left for a blob or a result."""

    code = "DISK_FULL"


class RequestError(LatfarmAgentError):
    """A request contradicts itself or does not fit this board."""

    code = "INVALID_REQUEST"


class UnknownPlatformError(RequestError):
    """This board does not offer the platform; the message names those it offers."""

    code = "UNKNOWN_PLATFORM"


class DigestError(RequestError):
    """A string is not a sha256, or the bytes of a blob have another one."""

    code = "BAD_DIGEST"


class ForbiddenFormatError(RequestError):
    """A blob is a pickle, an engine or a program, not a model; the message says what to send."""

    code = "FORBIDDEN_FORMAT"


class OffsetError(RequestError):
    """An upload does not continue where the last one ended; the message says where that is."""

    code = "BAD_OFFSET"


class RequestConflictError(RequestError):
    """A request id was used before for a different request."""

    code = "REQUEST_CONFLICT"


class LeaseRefusedError(LatfarmAgentError):
    """The caller may not use the board now."""

    code = "LEASE"


class LeaseHeldError(LeaseRefusedError):
    """Somebody else holds the lease; the message names the holder."""

    code = "LEASE_HELD"


class LeaseLostError(LeaseRefusedError):
    """The token is older than the newest one granted, expired, or was never granted."""

    code = "LEASE_LOST"


class BlobNotFoundError(LatfarmAgentError):
    """The blob is not on this board, or not complete."""

    code = "BLOB_NOT_FOUND"


class LimitError(LatfarmAgentError):
    """A bound of this agent is reached."""

    code = "LIMIT"


class BlobTooLargeError(LimitError):
    """One blob is over the limit, or there is no room for it beside the blobs in use."""

    code = "BLOB_TOO_LARGE"


class SpoolFullError(LimitError):
    """Too many results wait to be acknowledged."""

    code = "SPOOL_FULL"


class BusyError(LimitError):
    """There are too many calls or requests at once."""

    code = "BUSY"


class UploadSupersededError(LatfarmAgentError):
    """A newer upload of the same blob took over: ask how much has arrived, and resume there."""

    code = "UPLOAD_SUPERSEDED"


class UnavailableError(LatfarmAgentError):
    """The board takes no work now."""

    code = "UNAVAILABLE"


class QuarantinedError(UnavailableError):
    """There were too many failures in a row; the message says for how long the board rests."""

    code = "QUARANTINED"


class StoppingError(UnavailableError):
    """The agent is shutting down."""

    code = "STOPPING"
