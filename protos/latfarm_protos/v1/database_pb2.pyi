from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PerformRequest(_message.Message):
    __slots__ = ("action", "options_json")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    action: str
    options_json: str
    def __init__(self, action: _Optional[str] = ..., options_json: _Optional[str] = ...) -> None: ...

class PerformProgress(_message.Message):
    __slots__ = ("stage", "done", "total")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    stage: str
    done: int
    total: int
    def __init__(self, stage: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class PerformEvent(_message.Message):
    __slots__ = ("progress", "outcome_json")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_JSON_FIELD_NUMBER: _ClassVar[int]
    progress: PerformProgress
    outcome_json: str
    def __init__(self, progress: _Optional[_Union[PerformProgress, _Mapping]] = ..., outcome_json: _Optional[str] = ...) -> None: ...
