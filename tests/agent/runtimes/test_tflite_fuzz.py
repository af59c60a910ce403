"""Broken TFLite files: what the check before loading finds, and what it accepts."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.flatbuffer import Flatbuffer, FlatbufferError
from latfarm_agent.runtimes.tflite_format import schema as tflite_schema
from latfarm_agent.runtimes.tflite_format.check import check, check_file
from latfarm_agent.testing.runtime_suite import QUICK, changed, measure, platform_of
from latfarm_agent.testing.tflite_mutants import Mutator, sites
from latfarm_agent.testing.tflite_samples import SampleWriter, samples
from latfarm_agent.worker import keeper
from latfarm_agent.worker.pool import WorkerLimits
from latfarm_protos.error_codes import MODEL_ERRORS

schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
flatbuffers = pytest.importorskip("flatbuffers")

MUTANTS = 150
SETTINGS = changed(
    QUICK,
    sessions=1,
    warmup_runs=0,
    min_runs=1,
    max_runs=1,
    max_ms=1.0,
    compile_timeout_ms=5000.0,
    run_timeout_ms=1000.0,
)


@pytest.fixture(scope="module")
def sound() -> dict[str, bytes]:
    return samples()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    before = keeper.descendants(os.getpid())
    made = host_bench(
        BenchOptions(
            "board",
            None,
            tmp_path_factory.mktemp("bench"),
            runtimes={"tflite": "latfarm_agent.runtimes.tflite.runtime:TfliteRuntime"},
            limits=WorkerLimits(busy_wait_s=0.0, memory_bytes=896 << 20),
        )
    )
    yield made
    made.close()
    assert keeper.descendants(os.getpid()) <= before


def refusal(data: bytes, memory_bytes: int = 0) -> RuntimeFailure:
    with pytest.raises(RuntimeFailure) as caught:
        check(data, memory_bytes)
    assert "\n" not in caught.value.message
    return caught.value


def answer(data: bytes) -> str:
    """Return the error code of the check; empty if it accepts the file."""
    try:
        check(data, 1 << 30)
    except RuntimeFailure as failure:
        return failure.code
    return ""


def pack(model: Any) -> bytes:
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def changed_model(data: bytes, change: Callable[[Any], None]) -> bytes:
    """Return a sample after a change to its objects."""
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    change(model)
    return pack(model)


def test_samples_run(bench: Bench, sound: dict[str, bytes], tmp_path: Path) -> None:
    platform = platform_of(bench, "tflite")
    for name, data in sound.items():
        path = tmp_path / name
        path.write_bytes(data)
        check_file(path)
        result = measure(bench, platform, path, settings=SETTINGS)
        assert result.outcome == "ok", f"{name}: {result.error_message}"


def test_mutants_end_in_a_typed_result(
    bench: Bench, sound: dict[str, bytes], tmp_path: Path
) -> None:
    platform = platform_of(bench, "tflite")
    mutator = Mutator(list(sound.values()), seed=1)
    seen = set()
    for number in range(MUTANTS):
        path = tmp_path / f"{number}.tflite"
        path.write_bytes(mutator.mutant())
        result = measure(bench, platform, path, settings=SETTINGS)
        code = result.error_code or result.outcome
        assert code == "ok" or code in MODEL_ERRORS, (number, result.error_message)
        assert code == "ok" or result.error_message
        seen.add(code)
    # Some mutants still run and most are refused, by the check or by the interpreter.
    assert {"ok", "MODEL_INVALID"} <= seen
    path.write_bytes(sound["cnn-fp32"])
    assert measure(bench, platform, path, settings=SETTINGS).outcome == "ok"


def test_the_check_answers_every_mutant(sound: dict[str, bytes]) -> None:
    mutator = Mutator(list(sound.values()), seed=2)
    answers = [answer(mutator.mutant()) for _ in range(1000)]
    assert set(answers) <= MODEL_ERRORS | {""}
    assert 0 < answers.count("") < 500


def test_mutants_follow_the_seed(sound: dict[str, bytes]) -> None:
    models = list(sound.values())
    first, again, other = (Mutator(models, seed) for seed in (3, 3, 4))
    made = [first.mutant() for _ in range(20)]
    assert made == [again.mutant() for _ in range(20)]
    assert made != [other.mutant() for _ in range(20)]
    meanings = {site.meaning for model in models for site in sites(model)}
    assert {"vtable", "offset", "length", "tensor.0", "operator.1", "constant"} <= meanings


@pytest.mark.parametrize("name", ["cnn-int8", "branches-fp32"])
def test_every_truncation_is_found(sound: dict[str, bytes], name: str) -> None:
    data = sound[name]
    answers = [answer(data[:length]) for length in range(len(data))]
    assert set(answers) <= {"MODEL_INVALID", ""}
    # Only the padding behind the last table may be missing.
    assert answers.count("") <= 4


def test_no_file_and_no_model(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    for content in (b"", b"TFL3", bytes(100), b"\x00" * 4 + b"TFL3" + bytes(200)):
        path.write_bytes(content)
        with pytest.raises(RuntimeFailure) as caught:
            check_file(path)
        assert caught.value.code == "MODEL_INVALID"


def _graph(model: Any, index: int = 0) -> Any:
    return model.subgraphs[index]


def _set(path: str, value: object) -> Callable[[Any], None]:
    """Return a change that sets an attribute of the first subgraph: "operators[2].inputs"."""

    def change(model: Any) -> None:
        *parts, last = re.findall(r"\w+", path)
        target = model if parts and parts[0] in ("operatorCodes", "buffers") else _graph(model)
        for part in parts:
            target = target[int(part)] if part.isdigit() else getattr(target, part)
        setattr(target, last, value)

    return change


CHANGES = {
    "tensor of an operator": (_set("operators[0].inputs", [0, 99, 2]), "refers to tensor 99"),
    "negative tensor": (_set("operators[0].inputs", [-1, 1, 2]), "refers to tensor -1"),
    "result": (_set("operators[0].outputs", [-1]), "refers to tensor -1"),
    "graph input": (_set("inputs", [77]), "refers to tensor 77"),
    "graph output": (_set("outputs", [77]), "refers to tensor 77"),
    "operator code": (_set("operators[0].opcodeIndex", 50), "refers to operator code 50"),
    "buffer": (_set("tensors[1].buffer", 1000), "refers to buffer 1000"),
    "read before made": (_set("operators[0].inputs", [6, 1, 2]), "nothing has made"),
    "write to a constant": (_set("operators[0].outputs", [1]), "which is there already"),
    "made twice": (_set("operators[1].outputs", [3]), "which is there already"),
    "constant input": (_set("inputs", [0, 1]), "is a constant"),
    "output never made": (_set("operators", []), "nothing makes tensor"),
    "too few operands": (_set("operators[0].inputs", [0]), "takes 1 tensors"),
    "no result": (_set("operators[0].outputs", []), "makes 0 tensors"),
    "shape of a constant": (_set("tensors[1].shape", [8, 3, 3, 4]), "bytes of data"),
    "open dimension": (_set("tensors[0].shape", [-1, 8, 8, 3]), "open dimension"),
    "rank": (_set("tensors[0].shape", [1] * 9), "9 dimensions"),
    "two shapes": (_set("tensors[0].shapeSignature", [1, 8]), "two shapes"),
    "type": (_set("tensors[0].type", 60), "unknown type"),
    "resource": (_set("tensors[3].type", 13), "has a handle for"),
    "strings": (_set("tensors[3].type", 5), "has a string for"),
    "zero point": (_set("tensors[3].quantization.zeroPoint", [128]), "zero point beyond"),
    "no scale": (_set("tensors[3].quantization", None), "8 bits without a scale"),
    "scale": (_set("tensors[3].quantization.scale", [float("nan")]), "no positive number"),
    "scales": (_set("tensors[1].quantization.scale", [0.1] * 5), "scales and zero points"),
    "axis": (_set("tensors[1].quantization.quantizedDimension", 7), "scales for"),
    "code": (_set("operatorCodes[0].builtinCode", 18), "options of another operator"),
    "stride": (_set("operators[0].builtinOptions.strideW", 0), "stride or dilation of 0"),
    "filter": (_set("operators[2].builtinOptions.filterWidth", -2), "size, stride"),
    "dilation": (_set("operators[1].builtinOptions.dilationHFactor", 0), "dilation of 0"),
    "padding": (_set("operators[3].builtinOptions.padding", 5), "unknown padding"),
    "activation": (_set("operators[5].builtinOptions.fusedActivationFunction", 9), "activation"),
    "options": (_set("operators[0].builtinOptionsType", 27), "options of another operator"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_wrong_is_said(sound: dict[str, bytes], what: str) -> None:
    change, says = CHANGES[what]
    failure = refusal(changed_model(sound["cnn-int8"], change))
    assert failure.code == "MODEL_INVALID"
    assert says in failure.message


def test_subgraphs_that_call_each_other(sound: dict[str, bytes]) -> None:
    def circle(model: Any) -> None:
        model.subgraphs[0].operators[1].builtinOptions.thenSubgraphIndex = 0

    def beyond(model: Any) -> None:
        model.subgraphs[0].operators[1].builtinOptions.thenSubgraphIndex = 5

    assert "circle" in refusal(changed_model(sound["branches-fp32"], circle)).message
    assert "subgraph 5 of 5" in refusal(changed_model(sound["branches-fp32"], beyond)).message


def test_splits_into_what_it_makes(sound: dict[str, bytes]) -> None:
    def more(model: Any) -> None:
        split = model.subgraphs[0].operators[2].builtinOptions
        assert split.numSplits == 2
        split.numSplits = 1000

    assert "parts" in refusal(changed_model(sound["moves-fp32"], more)).message


def test_memory(sound: dict[str, bytes]) -> None:
    large = changed_model(sound["cnn-fp32"], _set("tensors[0].shape", [1, 1 << 14, 1 << 14, 3]))
    assert refusal(large, 1 << 30).code == "OUT_OF_MEMORY"
    huge = changed_model(sound["cnn-fp32"], _set("tensors[0].shape", [(1 << 31) - 1] * 8))
    assert refusal(huge).code == "OUT_OF_MEMORY"
    check(large, 4 << 30)


def test_left_to_others(sound: dict[str, bytes]) -> None:
    def sparse(model: Any) -> None:
        model.subgraphs[0].tensors[1].sparsity = schema.SparsityParametersT()

    assert refusal(changed_model(sound["cnn-fp32"], sparse)).code == "MODEL_UNSUPPORTED"


def test_strings() -> None:
    def with_strings(content: bytes) -> bytes:
        writer = SampleWriter()
        x = writer.input([2])
        writer.output(writer.op("RELU", [x], [2]))
        texts = writer.tensor([2], "STRING")
        writer.fill(texts, content)
        return writer.finish()

    def numbers(*values: int) -> bytes:
        return b"".join(value.to_bytes(4, "little") for value in values)

    check(with_strings(numbers(2, 16, 18, 20) + b"abcd"))
    for content in (numbers(3, 16, 18, 20), numbers(2, 16, 99, 20), numbers(2, 18, 17, 20), b"ab"):
        assert "string" in refusal(with_strings(content + b"abcd")).message


def test_work_is_bounded() -> None:
    """Reading a small file whose offsets lead to one place many times must not take for ever."""
    builder = flatbuffers.Builder(1024)
    builder.StartVector(4, 50_000, 4)
    for _ in range(50_000):
        builder.PrependInt32(0)
    inputs = builder.EndVector()
    schema.OperatorStart(builder)
    schema.OperatorAddIntermediates(builder, inputs)
    operator = schema.OperatorEnd(builder)
    builder.StartVector(4, 50_000, 4)
    for _ in range(50_000):
        builder.PrependUOffsetTRelative(operator)
    operators = builder.EndVector()
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(0, operators, 0)
    builder.Finish(builder.EndObject())
    flat = Flatbuffer(bytes(builder.Output()))
    assert flat.size < 500_000

    def read() -> int:
        return sum(
            len(flat.numbers(flat.table(place, tflite_schema.OPERATOR)[8], "i"))
            for place in flat.tables(flat.table(flat.root(), "o")[0])
        )

    with pytest.raises(FlatbufferError, match="more work to read than any real model"):
        read()


TABLES = {
    "Model": tflite_schema.MODEL,
    "OperatorCode": tflite_schema.OPERATOR_CODE,
    "SubGraph": tflite_schema.SUBGRAPH,
    "Tensor": tflite_schema.TENSOR,
    "QuantizationParameters": tflite_schema.QUANTIZATION,
    "VariantSubType": tflite_schema.VARIANT,
    "Operator": tflite_schema.OPERATOR,
    "Buffer": tflite_schema.BUFFER,
    "Metadata": tflite_schema.METADATA,
    "SignatureDef": tflite_schema.SIGNATURE,
    "TensorMap": tflite_schema.TENSOR_MAP,
}
UNIONS = {
    "BuiltinOptions": tflite_schema.OPTIONS,
    "BuiltinOptions2": tflite_schema.OPTIONS_2,
    "QuantizationDetails": tflite_schema.QUANTIZATION_DETAILS,
}
SCALARS = {"Bool": "1", "Byte": "1", "8": "1", "16": "2", "32": "4", "64": "8"}
VECTORS = {"1": "b", "2": "h", "4": "i", "8": "l"}


def layout_of(name: str) -> str:
    """Return the layout of a table, from the schema's generated code."""
    count = re.search(r"StartObject\((\d+)\)", inspect.getsource(getattr(schema, name + "Start")))
    assert count
    letters = ["_"] * int(count[1])
    for entry in [entry for entry in vars(schema) if entry.startswith(name + "Add")]:
        field = entry[len(name + "Add") :]
        slot = re.search(
            r"Prepend(\w+)Slot\((\d+)", inspect.getsource(getattr(schema, entry)).split("\n", 1)[1]
        )
        reader = getattr(getattr(schema, name), field, None)
        if slot is None or reader is None:
            continue  # it belongs to a table whose name begins with this name
        if not slot[1].startswith("UOffset"):
            width = re.search(r"8|16|32|64|Bool|Byte", slot[1])
            assert width
            letters[int(slot[2])] = SCALARS[width[0]]
            continue
        vector = getattr(schema, f"{name}Start{field}Vector", None)
        read = inspect.getsource(reader)
        if vector is None:
            letters[int(slot[2])] = "s" if "String(" in read else "o"
        elif "Indirect" in read:
            letters[int(slot[2])] = "o"
        else:
            width = re.search(r"StartVector\((\d+)", inspect.getsource(vector))
            assert width
            letters[int(slot[2])] = VECTORS[width[1]]
    return "".join(letters)


def test_layouts_are_those_of_the_schema() -> None:
    found = {name: layout_of(name) for name in TABLES}
    assert found == TABLES
    for union, layouts in UNIONS.items():
        members = {
            number: name
            for name, number in vars(getattr(schema, union)).items()
            if isinstance(number, int) and number
        }
        assert set(members) == set(layouts)
        for number, name in members.items():
            mine = layouts[number].replace("g", "4").replace("G", "i")
            assert (name, layout_of(name)) == (name, mine)


def test_operators_are_those_of_the_schema() -> None:
    """Each operator's code is assigned to the options with its name, or the name of its kind."""
    codes = {
        number: name for name, number in vars(schema.BuiltinOperator).items() if name[0] != "_"
    }
    kinds = {number: name for name, number in vars(schema.BuiltinOptions).items() if name[0] != "_"}
    shared = {"Pool2D", "Reducer", "Random", "Conv3D", "SequenceRNN"}
    short = {"L2Normalization": "L2Norm"}
    for code, kind in tflite_schema.OPTIONS_OF.items():
        options = kinds[kind][: -len("Options")]
        name = "".join(word.capitalize() for word in codes[code].split("_"))
        assert options in shared or short.get(name, name).lower() == options.lower()
        assert tflite_schema.OPTIONS[kind]
    with_fields = {kind for kind, layout in tflite_schema.OPTIONS.items() if layout}
    assert with_fields == set(tflite_schema.OPTIONS_OF.values())
    for numbers in (
        tflite_schema.LEAST_OPERANDS,
        tflite_schema.LEAST_RESULTS,
        tflite_schema.QUANTISED,
    ):
        assert set(numbers) <= set(codes)
    types = {number for name, number in vars(schema.TensorType).items() if name[0] != "_"}
    assert types == set(tflite_schema.BITS)
