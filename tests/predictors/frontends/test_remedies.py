"""Remedies that fit what is wrong: pointers of Git LFS, and open sizes of sequences."""

from __future__ import annotations

from pathlib import Path

import pytest
from latfarm_predictors.errors import DynamicShapeError, ModelFileError
from latfarm_predictors.frontends.onnx import read_onnx
from onnx import TensorProto, helper

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 102541\n"


def test_a_pointer_of_git_lfs_is_told_from_a_model_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text(POINTER)
    with pytest.raises(ModelFileError, match=r"Git LFS pointer.*git lfs pull"):
        read_onnx(path)
    path.write_bytes(b"\x08\x07\x12\x30abc")
    with pytest.raises(ModelFileError, match="cut off"):
        read_onnx(path)


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        (("batch", "sequence_length"), "--shape x:1,128"),
        ((1, "n"), "--shape x:1,128"),
        (("batch", "tokens", 768), "--shape x:1,128,768"),
        ((1, 3, "height", "width"), "--shape x:1,3,224,224"),
        ((1, 12, "seq_len", 64), "--shape x:1,12,128,64"),
    ],
)
def test_the_length_of_a_sequence_is_not_told_as_channels(
    shape: tuple[int | str, ...], remedy: str, tmp_path: Path
) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("Relu", ["x"], ["y"])
    model = helper.make_model(
        helper.make_graph([node], "net", [x], [y]), opset_imports=[helper.make_opsetid("", 17)]
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(DynamicShapeError) as caught:
        read_onnx(path)
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("name", "begin", "told"),
    [
        ("net.pt2", b"PK\x03\x04\x00\x00", r"a zip file.*torch\.onnx\.export"),
        ("net.pt", b"\x80\x02\x8a\x0a", r"a pickle.*torch\.onnx\.export"),
        ("net.h5", b"\x89HDF\r\n\x1a\n", "HDF5.*tf2onnx"),
        ("net.onnx", b"\x1f\x8b\x08", "gzip; unpack it first"),
        ("net.onnx", b"<!doctype html><title>404", "a web page; download the model itself"),
        ("net.onnx", b"<HTML>", "a web page; download the model itself"),
        ("net.tflite", b"this is no model", "is not a TFLite model, or is cut off"),
        ("net.onnx", b"this is no model", "is not an ONNX model, or is cut off"),
    ],
)
def test_what_people_mistake_for_a_model_is_told_by_its_name(
    name: str, begin: bytes, told: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(begin + bytes(200))
    with pytest.raises(ModelFileError, match=told):
        read_onnx(path)
