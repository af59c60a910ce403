"""Writes ONNX models whose weights lie in files beside the model.

A file in the format of protocol buffers has at most 2 GB. Larger models keep the bytes of their
weights in other files, to which their tensors refer by name, offset and length (onnx.proto,
`TensorProto.external_data`). Each of these files is a companion of the model: it is uploaded with
it, and boards let the model refer to it and to nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO

from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.builders.onnx.file import MOST_BYTES, DataPlace, OnnxDraft, serialise

DATA_FILE_BYTES = 1 << 30
"""Size at which another data file is begun; our choice, so that uploads lose little when cut."""

_ALIGNMENT_BYTES = 4096
"""Offsets are multiples of this, a page of most systems, so that runtimes can map the file."""

_LEAST_BYTES = 1024
"""Smaller constants stay in the model: runtimes read shapes from them (as in onnx's own tool)."""

_HEAD = b"latfarm: weights of an ONNX model, which names this file\n"
"""First bytes of a data file, so that nobody takes weights for a program or a pickle."""


def serialise_files(
    draft: OnnxDraft, most_bytes: int = MOST_BYTES, data_file_bytes: int = DATA_FILE_BYTES
) -> ModelFiles:
    """Return the model as one file, or with its weights in other files if it is too large.

    Args:
        draft: the model.
        most_bytes: largest size of all constants together that is written into one file.
        data_file_bytes: size at which another data file is begun.

    Raises:
        BuildError: as `serialise`; small constants alone are larger than 2 GB.
    """
    sizes = {tensor: draft.type_of(tensor).size_bytes for tensor in draft.constants}
    if sum(sizes.values()) <= most_bytes:
        return ModelFiles(serialise(draft))
    large = {tensor: size for tensor, size in sizes.items() if size >= _LEAST_BYTES}
    places = _placed(large, data_file_bytes)
    names = dict.fromkeys(place.file for place in places.values())
    companions = {
        name: _data_file(draft, {t: place for t, place in places.items() if place.file == name})
        for name in names
    }
    return ModelFiles(serialise(draft, places), companions)


def _placed(sizes: Mapping[str, int], data_file_bytes: int) -> dict[str, DataPlace]:
    """Return where each constant lies; none is divided between two files."""
    places: dict[str, DataPlace] = {}
    index, end = 0, _ALIGNMENT_BYTES
    for tensor, size_bytes in sizes.items():
        if end > _ALIGNMENT_BYTES and end + size_bytes > data_file_bytes:
            index, end = index + 1, _ALIGNMENT_BYTES
        places[tensor] = DataPlace(f"weights-{index}.bin", end, size_bytes)
        end += -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return places


def _data_file(draft: OnnxDraft, places: Mapping[str, DataPlace]) -> bytes:
    """Return the bytes of one data file, in which these constants lie."""
    file = BytesIO()
    file.seek(max(place.offset + place.size_bytes for place in places.values()) - 1)
    file.write(b"\0")  # allocates the whole file at once; getvalue() below does not copy it
    with file.getbuffer() as out:
        out[: len(_HEAD)] = _HEAD
        for tensor, place in places.items():
            with out[place.offset : place.offset + place.size_bytes] as part:
                draft.write(tensor, part)
    return file.getvalue()
