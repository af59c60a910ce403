"""A model refers to nothing outside of itself, wherever the reference is written.

The models are made with the onnx package; the check reads them without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.runtimes.base import RuntimeFailure, discover
from latfarm_agent.runtimes.onnx import outside
from latfarm_agent.runtimes.onnx.outside import check_self_contained, references_in
from latfarm_agent.runtimes.onnx.protobuf import NotProtobufError
from latfarm_agent.testing.runtime_suite import PATIENT, QUICK, changed, measure, platform_of

onnx = pytest.importorskip("onnx")
ADDRESS = "*/_ORT_MEM_ADDR_/*"
RUNTIMES = ("onnxruntime", "openvino")


def far(location: str = "other") -> Any:
    tensor = onnx.TensorProto(name="far", data_type=1, dims=[4], data_location=1)
    for key, value in (("location", location), ("offset", "4096"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def sparse(tensor: Any) -> Any:
    return onnx.SparseTensorProto(dims=[4], values=tensor)


def graph(*nodes: Any, **more: Any) -> Any:
    return onnx.helper.make_graph(list(nodes), "g", [], [], **more)


def node(**attribute: Any) -> Any:
    made = onnx.helper.make_node("Identity", ["x"], ["y"])
    made.attribute.append(onnx.AttributeProto(name="value", **attribute))
    return made


def model(main: Any = None, **more: Any) -> Any:
    return onnx.ModelProto(ir_version=8, graph=main or graph(), **more)


def nested(levels: int) -> Any:
    inner = graph(node(t=far()))
    for _ in range(levels):
        inner = graph(node(g=inner))
    return inner


PLACES: dict[str, Callable[[], Any]] = {
    "initializer": lambda: model(graph(initializer=[far()])),
    "sparse values": lambda: model(graph(sparse_initializer=[sparse(far())])),
    "sparse indices": lambda: model(
        graph(sparse_initializer=[onnx.SparseTensorProto(dims=[4], indices=far())])
    ),
    "attribute": lambda: model(graph(node(t=far()))),
    "list of tensors": lambda: model(graph(node(tensors=[far()]))),
    "sparse attribute": lambda: model(graph(node(sparse_tensor=sparse(far())))),
    "list of sparse tensors": lambda: model(graph(node(sparse_tensors=[sparse(far())]))),
    "branch": lambda: model(graph(node(g=graph(initializer=[far()])))),
    "list of branches": lambda: model(graph(node(graphs=[graph(initializer=[far()])]))),
    "deep branch": lambda: model(nested(12)),
    "function": lambda: model(functions=[onnx.FunctionProto(name="f", node=[node(t=far())])]),
    "default of a function": lambda: model(
        functions=[
            onnx.FunctionProto(name="f", attribute_proto=[onnx.AttributeProto(name="a", t=far())])
        ]
    ),
    "initial training": lambda: model(
        training_info=[onnx.TrainingInfoProto(initialization=graph(initializer=[far()]))]
    ),
    "training": lambda: model(
        training_info=[onnx.TrainingInfoProto(algorithm=graph(initializer=[far()]))]
    ),
    "mark alone": lambda: model(graph(initializer=[onnx.TensorProto(name="far", data_location=1)])),
    "engine": lambda: model(graph(onnx.helper.make_node("EPContext", [], ["y"], "far"))),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_reference_is_found_wherever_it_is_written(place: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(PLACES[place]().SerializeToString())
    with pytest.raises(RuntimeFailure, match="refers to another file") as caught:
        check_self_contained(path)
    assert caught.value.code == "MODEL_INVALID"


def test_a_reference_without_its_mark_is_found() -> None:
    tensor = far(ADDRESS)
    tensor.data_location = 0
    (found,) = references_in(model(graph(initializer=[tensor])).SerializeToString())
    assert found == outside.OutsideReference("far", ADDRESS)


def test_a_model_that_refers_to_nothing_passes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    near = onnx.helper.make_tensor("near", 1, [2], [1.0, 2.0])
    whole = model(graph(node(t=near), node(g=graph(initializer=[near])), initializer=[near]))
    path.write_bytes(whole.SerializeToString())
    check_self_contained(path)


def test_files_that_were_uploaded_with_the_model_are_accepted_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model(graph(initializer=[far("weights"), far("more")])).SerializeToString())
    check_self_contained(path, uploaded=("weights", "more"))
    for some in ((), ("weights",), ("./weights", "more")):
        with pytest.raises(RuntimeFailure, match="another file"):
            check_self_contained(path, uploaded=some)


AMBIGUOUS = {
    "a tag of which readers see 32 bits alone": b"\xba\x80\x80\x80\x10\x00",
    "a size of which readers see 32 bits alone": b"\x3a\x80\x80\x80\x80\x10",
    "a group": b"\x3b\x3c",
    "a graph of another type": b"\x38\x01",
    "a number without end": b"\x08" + b"\xff" * 11,
    "a field behind the end": b"\x3a\x7f\x00",
    "a field with the number 0": b"\x02\x00",
    "XML": b"\n<?xml version='1.0'?><net/>",
    "a saved model of onnxruntime": b"\x20\x00\x00\x00ORTM" + b"\x00" * 24,
}


@pytest.mark.parametrize("what", AMBIGUOUS)
def test_what_could_be_read_in_two_ways_is_refused(what: str) -> None:
    with pytest.raises(NotProtobufError):
        references_in(AMBIGUOUS[what])


def test_nesting_has_a_bound() -> None:
    data = b""
    for number in [7, *(1, 5, 6) * outside.MOST_NESTING][::-1]:  # a graph, and branches of nodes
        size = len(data)
        data = bytes([number << 3 | 2, size & 0x7F | 0x80, size >> 7 & 0x7F]) + data
    with pytest.raises(NotProtobufError, match="too deeply"):
        references_in(data)


def test_an_empty_file_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.touch()
    with pytest.raises(RuntimeFailure, match="not an ONNX model"):
        check_self_contained(path)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("onnx")
    known = discover()
    runtimes = {name: known[name] for name in RUNTIMES}
    made = host_bench(BenchOptions("board", None, folder, runtimes=runtimes, limits=PATIENT))
    yield made
    made.close()


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("location", ["other", ADDRESS])
def test_no_runtime_sees_such_a_model(
    bench: Bench, tmp_path: Path, runtime: str, location: str
) -> None:
    (tmp_path / "other").write_bytes(bytes(range(256)) * 32)
    value = onnx.helper.make_tensor_value_info
    main = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", "far"], ["y"])],
        "g",
        [value("x", 1, [4])],
        [value("y", 1, [4])],
        initializer=[far(location)],
    )
    path = tmp_path / "model.onnx"
    opset = onnx.helper.make_opsetid("", 13)
    path.write_bytes(model(main, opset_import=[opset]).SerializeToString())
    result = measure(bench, platform_of(bench, runtime), path, settings=changed(QUICK, sessions=1))
    assert (result.outcome, result.error_code) == ("model_error", "MODEL_INVALID")
    assert f"refers to {location!r}" in result.error_message
