from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListBoardsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BoardStatus(_message.Message):
    __slots__ = ("board_id", "name", "address", "state", "detail", "platforms", "hardware", "standing", "standing_reason", "standing_since_s", "under_way", "protection", "tags", "location", "owner", "note", "access", "maintenance")
    class HardwareEntry(_message.Message):
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
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    PLATFORMS_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    STANDING_REASON_FIELD_NUMBER: _ClassVar[int]
    STANDING_SINCE_S_FIELD_NUMBER: _ClassVar[int]
    UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    PROTECTION_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    MAINTENANCE_FIELD_NUMBER: _ClassVar[int]
    board_id: str
    name: str
    address: str
    state: str
    detail: str
    platforms: _containers.RepeatedScalarFieldContainer[str]
    hardware: _containers.ScalarMap[str, str]
    standing: str
    standing_reason: str
    standing_since_s: float
    under_way: int
    protection: _containers.ScalarMap[str, str]
    tags: _containers.RepeatedScalarFieldContainer[str]
    location: str
    owner: str
    note: str
    access: str
    maintenance: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, board_id: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., detail: _Optional[str] = ..., platforms: _Optional[_Iterable[str]] = ..., hardware: _Optional[_Mapping[str, str]] = ..., standing: _Optional[str] = ..., standing_reason: _Optional[str] = ..., standing_since_s: _Optional[float] = ..., under_way: _Optional[int] = ..., protection: _Optional[_Mapping[str, str]] = ..., tags: _Optional[_Iterable[str]] = ..., location: _Optional[str] = ..., owner: _Optional[str] = ..., note: _Optional[str] = ..., access: _Optional[str] = ..., maintenance: _Optional[_Iterable[str]] = ...) -> None: ...

class BoardRequest(_message.Message):
    __slots__ = ("name", "reason", "new_reference", "deadline_s", "until_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NEW_REFERENCE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    new_reference: bool
    deadline_s: float
    until_s: float
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., new_reference: bool = ..., deadline_s: _Optional[float] = ..., until_s: _Optional[float] = ...) -> None: ...

class PowerBoardRequest(_message.Message):
    __slots__ = ("name", "action", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    action: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., action: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class PowerBoardResponse(_message.Message):
    __slots__ = ("told",)
    TOLD_FIELD_NUMBER: _ClassVar[int]
    told: str
    def __init__(self, told: _Optional[str] = ...) -> None: ...

class BoardEvent(_message.Message):
    __slots__ = ("name", "board_id", "event", "reason", "actor", "at_s", "details_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BOARD_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    DETAILS_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    board_id: str
    event: str
    reason: str
    actor: str
    at_s: float
    details_json: str
    def __init__(self, name: _Optional[str] = ..., board_id: _Optional[str] = ..., event: _Optional[str] = ..., reason: _Optional[str] = ..., actor: _Optional[str] = ..., at_s: _Optional[float] = ..., details_json: _Optional[str] = ...) -> None: ...

class ListBoardEventsResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[BoardEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[BoardEvent, _Mapping]]] = ...) -> None: ...

class ListBoardsResponse(_message.Message):
    __slots__ = ("boards",)
    BOARDS_FIELD_NUMBER: _ClassVar[int]
    boards: _containers.RepeatedCompositeFieldContainer[BoardStatus]
    def __init__(self, boards: _Optional[_Iterable[_Union[BoardStatus, _Mapping]]] = ...) -> None: ...

class ListPlatformsRequest(_message.Message):
    __slots__ = ("tags",)
    TAGS_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tags: _Optional[_Iterable[str]] = ...) -> None: ...

class PlatformStatus(_message.Message):
    __slots__ = ("name", "runtime", "model_format", "boards", "available", "missing", "bundle", "fingerprint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FORMAT_FIELD_NUMBER: _ClassVar[int]
    BOARDS_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    runtime: str
    model_format: str
    boards: _containers.RepeatedScalarFieldContainer[str]
    available: bool
    missing: str
    bundle: str
    fingerprint: str
    def __init__(self, name: _Optional[str] = ..., runtime: _Optional[str] = ..., model_format: _Optional[str] = ..., boards: _Optional[_Iterable[str]] = ..., available: bool = ..., missing: _Optional[str] = ..., bundle: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class ListPlatformsResponse(_message.Message):
    __slots__ = ("platforms",)
    PLATFORMS_FIELD_NUMBER: _ClassVar[int]
    platforms: _containers.RepeatedCompositeFieldContainer[PlatformStatus]
    def __init__(self, platforms: _Optional[_Iterable[_Union[PlatformStatus, _Mapping]]] = ...) -> None: ...

class PredictRequest(_message.Message):
    __slots__ = ("graph_json", "platform", "coverage", "energy")
    GRAPH_JSON_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    ENERGY_FIELD_NUMBER: _ClassVar[int]
    graph_json: bytes
    platform: str
    coverage: float
    energy: bool
    def __init__(self, graph_json: _Optional[bytes] = ..., platform: _Optional[str] = ..., coverage: _Optional[float] = ..., energy: bool = ...) -> None: ...

class PredictResponse(_message.Message):
    __slots__ = ("answer_json", "energy_json")
    ANSWER_JSON_FIELD_NUMBER: _ClassVar[int]
    ENERGY_JSON_FIELD_NUMBER: _ClassVar[int]
    answer_json: str
    energy_json: str
    def __init__(self, answer_json: _Optional[str] = ..., energy_json: _Optional[str] = ...) -> None: ...

class QueryRequest(_message.Message):
    __slots__ = ("graph_json", "platform", "tier", "refresh", "energy", "graph_hash", "network_hash", "max_age_s", "no_measure", "repeat", "foreign", "tags")
    GRAPH_JSON_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    REFRESH_FIELD_NUMBER: _ClassVar[int]
    ENERGY_FIELD_NUMBER: _ClassVar[int]
    GRAPH_HASH_FIELD_NUMBER: _ClassVar[int]
    NETWORK_HASH_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_S_FIELD_NUMBER: _ClassVar[int]
    NO_MEASURE_FIELD_NUMBER: _ClassVar[int]
    REPEAT_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    graph_json: bytes
    platform: str
    tier: str
    refresh: bool
    energy: bool
    graph_hash: str
    network_hash: str
    max_age_s: float
    no_measure: bool
    repeat: int
    foreign: bool
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, graph_json: _Optional[bytes] = ..., platform: _Optional[str] = ..., tier: _Optional[str] = ..., refresh: bool = ..., energy: bool = ..., graph_hash: _Optional[str] = ..., network_hash: _Optional[str] = ..., max_age_s: _Optional[float] = ..., no_measure: bool = ..., repeat: _Optional[int] = ..., foreign: bool = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class QueryEvent(_message.Message):
    __slots__ = ("progress", "answer", "graph_needed")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    GRAPH_NEEDED_FIELD_NUMBER: _ClassVar[int]
    progress: str
    answer: QueryAnswer
    graph_needed: bool
    def __init__(self, progress: _Optional[str] = ..., answer: _Optional[_Union[QueryAnswer, _Mapping]] = ..., graph_needed: bool = ...) -> None: ...

class QueryAnswer(_message.Message):
    __slots__ = ("measurement", "hit", "repeats")
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    HIT_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    measurement: Measurement
    hit: bool
    repeats: _containers.RepeatedCompositeFieldContainer[Measurement]
    def __init__(self, measurement: _Optional[_Union[Measurement, _Mapping]] = ..., hit: bool = ..., repeats: _Optional[_Iterable[_Union[Measurement, _Mapping]]] = ...) -> None: ...

class QueryManyRequest(_message.Message):
    __slots__ = ("questions",)
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    questions: _containers.RepeatedCompositeFieldContainer[QueryRequest]
    def __init__(self, questions: _Optional[_Iterable[_Union[QueryRequest, _Mapping]]] = ...) -> None: ...

class QueryManyEvent(_message.Message):
    __slots__ = ("ends",)
    ENDS_FIELD_NUMBER: _ClassVar[int]
    ends: _containers.RepeatedCompositeFieldContainer[QueryEnd]
    def __init__(self, ends: _Optional[_Iterable[_Union[QueryEnd, _Mapping]]] = ...) -> None: ...

class QueryEnd(_message.Message):
    __slots__ = ("place", "answer", "graph_needed", "error")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    GRAPH_NEEDED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    place: int
    answer: QueryAnswer
    graph_needed: bool
    error: QueryError
    def __init__(self, place: _Optional[int] = ..., answer: _Optional[_Union[QueryAnswer, _Mapping]] = ..., graph_needed: bool = ..., error: _Optional[_Union[QueryError, _Mapping]] = ...) -> None: ...

class QueryError(_message.Message):
    __slots__ = ("kind", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    text: str
    def __init__(self, kind: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class EstimateRequest(_message.Message):
    __slots__ = ("place", "question", "no_predict", "coverage")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    NO_PREDICT_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    place: int
    question: QueryRequest
    no_predict: bool
    coverage: float
    def __init__(self, place: _Optional[int] = ..., question: _Optional[_Union[QueryRequest, _Mapping]] = ..., no_predict: bool = ..., coverage: _Optional[float] = ...) -> None: ...

class EstimateEvent(_message.Message):
    __slots__ = ("ends",)
    ENDS_FIELD_NUMBER: _ClassVar[int]
    ends: _containers.RepeatedCompositeFieldContainer[EstimateEnd]
    def __init__(self, ends: _Optional[_Iterable[_Union[EstimateEnd, _Mapping]]] = ...) -> None: ...

class EstimateEnd(_message.Message):
    __slots__ = ("place", "measured", "predicted", "graph_needed", "error")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    GRAPH_NEEDED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    place: int
    measured: QueryAnswer
    predicted: Prediction
    graph_needed: bool
    error: QueryError
    def __init__(self, place: _Optional[int] = ..., measured: _Optional[_Union[QueryAnswer, _Mapping]] = ..., predicted: _Optional[_Union[Prediction, _Mapping]] = ..., graph_needed: bool = ..., error: _Optional[_Union[QueryError, _Mapping]] = ...) -> None: ...

class Prediction(_message.Message):
    __slots__ = ("latency_ms", "low_ms", "high_ms", "coverage", "calibrated", "unsupported", "unsupported_ms", "bundle", "method")
    LATENCY_MS_FIELD_NUMBER: _ClassVar[int]
    LOW_MS_FIELD_NUMBER: _ClassVar[int]
    HIGH_MS_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    CALIBRATED_FIELD_NUMBER: _ClassVar[int]
    UNSUPPORTED_FIELD_NUMBER: _ClassVar[int]
    UNSUPPORTED_MS_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    latency_ms: float
    low_ms: float
    high_ms: float
    coverage: float
    calibrated: bool
    unsupported: _containers.RepeatedScalarFieldContainer[str]
    unsupported_ms: float
    bundle: str
    method: str
    def __init__(self, latency_ms: _Optional[float] = ..., low_ms: _Optional[float] = ..., high_ms: _Optional[float] = ..., coverage: _Optional[float] = ..., calibrated: bool = ..., unsupported: _Optional[_Iterable[str]] = ..., unsupported_ms: _Optional[float] = ..., bundle: _Optional[str] = ..., method: _Optional[str] = ...) -> None: ...

class StartCampaignRequest(_message.Message):
    __slots__ = ("kind", "platform", "config_json", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: str
    platform: str
    config_json: str
    name: str
    def __init__(self, kind: _Optional[str] = ..., platform: _Optional[str] = ..., config_json: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class Campaign(_message.Message):
    __slots__ = ("campaign_id", "name", "kind", "platform", "config_json", "state", "stage", "stage_done", "stage_total", "measurements", "failures", "board_ms", "started_at_s", "finished_at_s", "remaining_ms", "outcome_json", "error", "wall_ms", "waiting_for", "boards", "measurements_per_s", "queue", "unattended")
    class BoardsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CAMPAIGN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STAGE_DONE_FIELD_NUMBER: _ClassVar[int]
    STAGE_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENTS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    BOARD_MS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_S_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    BOARDS_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    UNATTENDED_FIELD_NUMBER: _ClassVar[int]
    campaign_id: str
    name: str
    kind: str
    platform: str
    config_json: str
    state: str
    stage: str
    stage_done: int
    stage_total: int
    measurements: int
    failures: int
    board_ms: float
    started_at_s: float
    finished_at_s: float
    remaining_ms: float
    outcome_json: str
    error: str
    wall_ms: float
    waiting_for: str
    boards: _containers.ScalarMap[str, int]
    measurements_per_s: float
    queue: int
    unattended: bool
    def __init__(self, campaign_id: _Optional[str] = ..., name: _Optional[str] = ..., kind: _Optional[str] = ..., platform: _Optional[str] = ..., config_json: _Optional[str] = ..., state: _Optional[str] = ..., stage: _Optional[str] = ..., stage_done: _Optional[int] = ..., stage_total: _Optional[int] = ..., measurements: _Optional[int] = ..., failures: _Optional[int] = ..., board_ms: _Optional[float] = ..., started_at_s: _Optional[float] = ..., finished_at_s: _Optional[float] = ..., remaining_ms: _Optional[float] = ..., outcome_json: _Optional[str] = ..., error: _Optional[str] = ..., wall_ms: _Optional[float] = ..., waiting_for: _Optional[str] = ..., boards: _Optional[_Mapping[str, int]] = ..., measurements_per_s: _Optional[float] = ..., queue: _Optional[int] = ..., unattended: bool = ...) -> None: ...

class ListCampaignsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListCampaignsResponse(_message.Message):
    __slots__ = ("campaigns",)
    CAMPAIGNS_FIELD_NUMBER: _ClassVar[int]
    campaigns: _containers.RepeatedCompositeFieldContainer[Campaign]
    def __init__(self, campaigns: _Optional[_Iterable[_Union[Campaign, _Mapping]]] = ...) -> None: ...

class GetCampaignRequest(_message.Message):
    __slots__ = ("campaign_id",)
    CAMPAIGN_ID_FIELD_NUMBER: _ClassVar[int]
    campaign_id: str
    def __init__(self, campaign_id: _Optional[str] = ...) -> None: ...

class ListMeasurementsRequest(_message.Message):
    __slots__ = ("platform", "campaign_id", "purpose", "limit", "details", "foreign")
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    CAMPAIGN_ID_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    platform: str
    campaign_id: str
    purpose: str
    limit: int
    details: bool
    foreign: bool
    def __init__(self, platform: _Optional[str] = ..., campaign_id: _Optional[str] = ..., purpose: _Optional[str] = ..., limit: _Optional[int] = ..., details: bool = ..., foreign: bool = ...) -> None: ...

class GetGraphRequest(_message.Message):
    __slots__ = ("hash",)
    HASH_FIELD_NUMBER: _ClassVar[int]
    hash: str
    def __init__(self, hash: _Optional[str] = ...) -> None: ...

class GetGraphResponse(_message.Message):
    __slots__ = ("graph_json", "hash")
    GRAPH_JSON_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    graph_json: bytes
    hash: str
    def __init__(self, graph_json: _Optional[bytes] = ..., hash: _Optional[str] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("platform", "campaign_id")
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    CAMPAIGN_ID_FIELD_NUMBER: _ClassVar[int]
    platform: str
    campaign_id: str
    def __init__(self, platform: _Optional[str] = ..., campaign_id: _Optional[str] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ("facts_json",)
    FACTS_JSON_FIELD_NUMBER: _ClassVar[int]
    facts_json: str
    def __init__(self, facts_json: _Optional[str] = ...) -> None: ...

class Measurement(_message.Message):
    __slots__ = ("json", "details_json")
    JSON_FIELD_NUMBER: _ClassVar[int]
    DETAILS_JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    details_json: str
    def __init__(self, json: _Optional[str] = ..., details_json: _Optional[str] = ...) -> None: ...
