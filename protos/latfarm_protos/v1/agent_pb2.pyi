from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("board", "runtimes", "agent_version", "protocol_version", "state", "capabilities")
    BOARD_FIELD_NUMBER: _ClassVar[int]
    RUNTIMES_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    board: Board
    runtimes: _containers.RepeatedCompositeFieldContainer[Runtime]
    agent_version: str
    protocol_version: int
    state: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, board: _Optional[_Union[Board, _Mapping]] = ..., runtimes: _Optional[_Iterable[_Union[Runtime, _Mapping]]] = ..., agent_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., state: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ...) -> None: ...

class Board(_message.Message):
    __slots__ = ("board_id", "name", "boot_id", "hardware", "conditions", "protection")
    class HardwareEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ConditionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ProtectionEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BOARD_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    PROTECTION_FIELD_NUMBER: _ClassVar[int]
    board_id: str
    name: str
    boot_id: str
    hardware: _containers.ScalarMap[str, str]
    conditions: _containers.ScalarMap[str, str]
    protection: _containers.ScalarMap[str, str]
    def __init__(self, board_id: _Optional[str] = ..., name: _Optional[str] = ..., boot_id: _Optional[str] = ..., hardware: _Optional[_Mapping[str, str]] = ..., conditions: _Optional[_Mapping[str, str]] = ..., protection: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Runtime(_message.Message):
    __slots__ = ("name", "available", "version", "missing", "platforms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    PLATFORMS_FIELD_NUMBER: _ClassVar[int]
    name: str
    available: bool
    version: str
    missing: str
    platforms: _containers.RepeatedCompositeFieldContainer[Platform]
    def __init__(self, name: _Optional[str] = ..., available: bool = ..., version: _Optional[str] = ..., missing: _Optional[str] = ..., platforms: _Optional[_Iterable[_Union[Platform, _Mapping]]] = ...) -> None: ...

class Platform(_message.Message):
    __slots__ = ("name", "model_format", "dtype", "settings", "fingerprint", "real_time")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FORMAT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    REAL_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    model_format: str
    dtype: str
    settings: _containers.ScalarMap[str, str]
    fingerprint: str
    real_time: bool
    def __init__(self, name: _Optional[str] = ..., model_format: _Optional[str] = ..., dtype: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ..., fingerprint: _Optional[str] = ..., real_time: bool = ...) -> None: ...

class AcquireLeaseRequest(_message.Message):
    __slots__ = ("holder", "ttl_ms", "holder_id")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    holder: str
    ttl_ms: int
    holder_id: str
    def __init__(self, holder: _Optional[str] = ..., ttl_ms: _Optional[int] = ..., holder_id: _Optional[str] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("token", "ttl_ms")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    token: int
    ttl_ms: int
    def __init__(self, token: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("token", "ttl_ms")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    token: int
    ttl_ms: int
    def __init__(self, token: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class ReleaseLeaseRequest(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: int
    def __init__(self, token: _Optional[int] = ...) -> None: ...

class ReleaseLeaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBlobRequest(_message.Message):
    __slots__ = ("sha256",)
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    def __init__(self, sha256: _Optional[str] = ...) -> None: ...

class BlobState(_message.Message):
    __slots__ = ("sha256", "received_bytes", "complete")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    received_bytes: int
    complete: bool
    def __init__(self, sha256: _Optional[str] = ..., received_bytes: _Optional[int] = ..., complete: bool = ...) -> None: ...

class UploadBlobRequest(_message.Message):
    __slots__ = ("token", "sha256", "size_bytes", "offset", "data")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    token: int
    sha256: str
    size_bytes: int
    offset: int
    data: bytes
    def __init__(self, token: _Optional[int] = ..., sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Settings(_message.Message):
    __slots__ = ("tier", "sessions", "warmup_runs", "warmup_ms", "min_runs", "max_runs", "max_ms", "cold_runs", "compile_timeout_ms", "run_timeout_ms", "precision", "energy_ms")
    TIER_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    WARMUP_RUNS_FIELD_NUMBER: _ClassVar[int]
    WARMUP_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_RUNS_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNS_FIELD_NUMBER: _ClassVar[int]
    MAX_MS_FIELD_NUMBER: _ClassVar[int]
    COLD_RUNS_FIELD_NUMBER: _ClassVar[int]
    COMPILE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    ENERGY_MS_FIELD_NUMBER: _ClassVar[int]
    tier: str
    sessions: int
    warmup_runs: int
    warmup_ms: float
    min_runs: int
    max_runs: int
    max_ms: float
    cold_runs: int
    compile_timeout_ms: float
    run_timeout_ms: float
    precision: float
    energy_ms: float
    def __init__(self, tier: _Optional[str] = ..., sessions: _Optional[int] = ..., warmup_runs: _Optional[int] = ..., warmup_ms: _Optional[float] = ..., min_runs: _Optional[int] = ..., max_runs: _Optional[int] = ..., max_ms: _Optional[float] = ..., cold_runs: _Optional[int] = ..., compile_timeout_ms: _Optional[float] = ..., run_timeout_ms: _Optional[float] = ..., precision: _Optional[float] = ..., energy_ms: _Optional[float] = ...) -> None: ...

class MeasureRequest(_message.Message):
    __slots__ = ("request_id", "token", "platform", "blob_sha256", "settings", "companions")
    class CompanionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    BLOB_SHA256_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    COMPANIONS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    token: int
    platform: str
    blob_sha256: str
    settings: Settings
    companions: _containers.ScalarMap[str, str]
    def __init__(self, request_id: _Optional[str] = ..., token: _Optional[int] = ..., platform: _Optional[str] = ..., blob_sha256: _Optional[str] = ..., settings: _Optional[_Union[Settings, _Mapping]] = ..., companions: _Optional[_Mapping[str, str]] = ...) -> None: ...

class MeasureEvent(_message.Message):
    __slots__ = ("stage", "result")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    stage: Stage
    result: Result
    def __init__(self, stage: _Optional[_Union[Stage, _Mapping]] = ..., result: _Optional[_Union[Result, _Mapping]] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("name", "session", "elapsed_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    session: int
    elapsed_ms: float
    def __init__(self, name: _Optional[str] = ..., session: _Optional[int] = ..., elapsed_ms: _Optional[float] = ...) -> None: ...

class Layer(_message.Message):
    __slots__ = ("name", "op", "latency_ms", "device")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    LATENCY_MS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    name: str
    op: str
    latency_ms: float
    device: str
    def __init__(self, name: _Optional[str] = ..., op: _Optional[str] = ..., latency_ms: _Optional[float] = ..., device: _Optional[str] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("load_ms", "compile_ms", "first_run_ms", "runs_ms", "rejected_runs", "cold_ms", "slowdown")
    LOAD_MS_FIELD_NUMBER: _ClassVar[int]
    COMPILE_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_RUN_MS_FIELD_NUMBER: _ClassVar[int]
    RUNS_MS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_RUNS_FIELD_NUMBER: _ClassVar[int]
    COLD_MS_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    load_ms: float
    compile_ms: float
    first_run_ms: float
    runs_ms: _containers.RepeatedScalarFieldContainer[float]
    rejected_runs: int
    cold_ms: _containers.RepeatedScalarFieldContainer[float]
    slowdown: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, load_ms: _Optional[float] = ..., compile_ms: _Optional[float] = ..., first_run_ms: _Optional[float] = ..., runs_ms: _Optional[_Iterable[float]] = ..., rejected_runs: _Optional[int] = ..., cold_ms: _Optional[_Iterable[float]] = ..., slowdown: _Optional[_Iterable[float]] = ...) -> None: ...

class Energy(_message.Message):
    __slots__ = ("energy_mj", "gross_mj", "spread_mj", "idle_mw", "idle_spread_mw", "source", "runs", "span_ms")
    ENERGY_MJ_FIELD_NUMBER: _ClassVar[int]
    GROSS_MJ_FIELD_NUMBER: _ClassVar[int]
    SPREAD_MJ_FIELD_NUMBER: _ClassVar[int]
    IDLE_MW_FIELD_NUMBER: _ClassVar[int]
    IDLE_SPREAD_MW_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SPAN_MS_FIELD_NUMBER: _ClassVar[int]
    energy_mj: float
    gross_mj: float
    spread_mj: float
    idle_mw: float
    idle_spread_mw: float
    source: str
    runs: int
    span_ms: float
    def __init__(self, energy_mj: _Optional[float] = ..., gross_mj: _Optional[float] = ..., spread_mj: _Optional[float] = ..., idle_mw: _Optional[float] = ..., idle_spread_mw: _Optional[float] = ..., source: _Optional[str] = ..., runs: _Optional[int] = ..., span_ms: _Optional[float] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("request_id", "outcome", "error_code", "error_message", "sessions", "layers", "settings", "conditions", "board_id", "platform", "fingerprint", "protocol_version", "measured_at_s", "board_ms", "memory_bytes", "energy", "device_memory_bytes")
    class ConditionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    BOARD_ID_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MEASURED_AT_S_FIELD_NUMBER: _ClassVar[int]
    BOARD_MS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENERGY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    outcome: str
    error_code: str
    error_message: str
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    layers: _containers.RepeatedCompositeFieldContainer[Layer]
    settings: Settings
    conditions: _containers.ScalarMap[str, str]
    board_id: str
    platform: str
    fingerprint: str
    protocol_version: int
    measured_at_s: float
    board_ms: float
    memory_bytes: int
    energy: Energy
    device_memory_bytes: int
    def __init__(self, request_id: _Optional[str] = ..., outcome: _Optional[str] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ..., sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ..., layers: _Optional[_Iterable[_Union[Layer, _Mapping]]] = ..., settings: _Optional[_Union[Settings, _Mapping]] = ..., conditions: _Optional[_Mapping[str, str]] = ..., board_id: _Optional[str] = ..., platform: _Optional[str] = ..., fingerprint: _Optional[str] = ..., protocol_version: _Optional[int] = ..., measured_at_s: _Optional[float] = ..., board_ms: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., energy: _Optional[_Union[Energy, _Mapping]] = ..., device_memory_bytes: _Optional[int] = ...) -> None: ...

class ListResultsRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: str
    def __init__(self, after: _Optional[str] = ...) -> None: ...

class ListResultsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Result]
    def __init__(self, results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class AcknowledgeResponse(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: int
    def __init__(self, removed: _Optional[int] = ...) -> None: ...

class RestartRequest(_message.Message):
    __slots__ = ("token", "part")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    token: int
    part: str
    def __init__(self, token: _Optional[int] = ..., part: _Optional[str] = ...) -> None: ...

class RestartResponse(_message.Message):
    __slots__ = ("done",)
    DONE_FIELD_NUMBER: _ClassVar[int]
    done: str
    def __init__(self, done: _Optional[str] = ...) -> None: ...

class ToBoard(_message.Message):
    __slots__ = ("token", "acknowledged", "order", "withdrawal", "renewal", "watch")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWAL_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    token: int
    acknowledged: _containers.RepeatedScalarFieldContainer[str]
    order: Order
    withdrawal: Withdrawal
    renewal: Renewal
    watch: Watch
    def __init__(self, token: _Optional[int] = ..., acknowledged: _Optional[_Iterable[str]] = ..., order: _Optional[_Union[Order, _Mapping]] = ..., withdrawal: _Optional[_Union[Withdrawal, _Mapping]] = ..., renewal: _Optional[_Union[Renewal, _Mapping]] = ..., watch: _Optional[_Union[Watch, _Mapping]] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("request", "profile", "model")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    request: MeasureRequest
    profile: bool
    model: bytes
    def __init__(self, request: _Optional[_Union[MeasureRequest, _Mapping]] = ..., profile: bool = ..., model: _Optional[bytes] = ...) -> None: ...

class Withdrawal(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class Renewal(_message.Message):
    __slots__ = ("ttl_ms",)
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    ttl_ms: int
    def __init__(self, ttl_ms: _Optional[int] = ...) -> None: ...

class Watch(_message.Message):
    __slots__ = ("stages",)
    STAGES_FIELD_NUMBER: _ClassVar[int]
    stages: bool
    def __init__(self, stages: bool = ...) -> None: ...

class FromBoard(_message.Message):
    __slots__ = ("result", "refusal", "lease", "stage")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    result: Result
    refusal: Refusal
    lease: Lease
    stage: OrderStage
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., stage: _Optional[_Union[OrderStage, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("request_id", "error_code", "error_message")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    error_code: str
    error_message: str
    def __init__(self, request_id: _Optional[str] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class OrderStage(_message.Message):
    __slots__ = ("request_id", "stage")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    stage: Stage
    def __init__(self, request_id: _Optional[str] = ..., stage: _Optional[_Union[Stage, _Mapping]] = ...) -> None: ...
