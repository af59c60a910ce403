"""How Vela's reports about compiled networks are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from latfarm_agent.runtimes.base import LayerTime, RuntimeFailure
from latfarm_agent.runtimes.vela.report import VelaOperator, read_estimate, read_operators
from latfarm_agent.testing.tflite_samples import SampleWriter

COLUMNS = '"id","source_id","optimised_id","operator","name","usage","op_cycles","mac_count"'
SUMMARY = "network,core_clock,cycles_total\nmodel,500000000.0,1000\n"


def report(
    perf: Sequence[str],
    sources: Sequence[str],
    groups: Sequence[str] = (),
    header: str = COLUMNS,
) -> str:
    """Return a debug database as Vela writes it."""
    tables = {
        "perf": [header, *perf],
        "group": ['"id","group_id"', *groups],
        "source": ['"id","operator","kernel_w","ext_key"', *sources],
    }
    text = "<?xml version='1.0' encoding='UTF-8'?>\n<debug source=\"model\">\n"
    for name, rows in tables.items():
        lines = "".join(row + "\n" for row in rows)
        text += f'<table name="{name}">\n<![CDATA[\n{lines}]]>\n</table>\n'
    return text + "</debug>\n"


def named(*names: str) -> list[VelaOperator]:
    return [VelaOperator(name, name) for name in names]


def test_report() -> None:
    text = report(
        [
            '100,1,9,"Conv2D","relu",0,300,7',
            '101,2,8,"Relu","relu",0,0,0',
            '102,3,7,"MaxPool","soft_1",0,200,0',
            '103,3,6,"LUT","soft_2",0,0,0',
            '104,3,5,"Asr",12,0,100,0',
            '105,4,4,"Passthrough","top",0,0,0',
            '106,0,3,"DepthwiseConv2D","inner",0,250,0',
            '107,0,3,"LUT","best",0,100,0',
            '108,0,3,"MemoryCopy","copy",0,30,0',
            '109,0,3,"MemoryCopy","copy",0,20,0',
        ],
        ['1,"Conv2D",1,0', '2,"Relu",1,1', '3,"Softmax",1,2', '4,"TopKV2",1,3', '5,"ArgMax",1,4'],
        ["101,100", "103,102"],
    )
    operators = named("conv", "relu", "soft", "top", "best")
    found = read_estimate(SUMMARY, text, operators, "npu")
    assert found.latency_ms == pytest.approx(0.002)
    assert [(layer.name, layer.op, layer.device) for layer in found.layers] == [
        ("conv+relu", "Conv2D+Relu", "npu"),
        ("soft", "Softmax", "npu"),
        ("top", "TopKV2", "cpu"),
        ("best", "ArgMax", "npu"),
        ("copy", "MemoryCopy", "npu"),
        ("copy #2", "MemoryCopy", "npu"),
    ]
    cycles = [layer.latency_ms * 500_000 for layer in found.layers]
    assert cycles == pytest.approx([300, 300, 0, 350, 30, 20])
    assert found.on_cpu == ("TopKV2 'top'",)


def test_operators_that_share_an_operation_are_one_layer() -> None:
    text = report(
        [
            '100,1,9,"Conv2D","a",0,700,7',
            '102,2,8,"Add","b",0,200,0',
            '103,3,7,"Relu","c",0,0,0',
            '104,2,6,"Mul","b",0,100,0',
        ],
        ['1,"Conv2D",1,0', '2,"Gelu",1,1', '3,"Relu",1,2'],
        ["103,102"],
    )
    found = read_estimate(SUMMARY, text, named("a", "b", "c"), "npu")
    assert found.layers == (
        LayerTime("a", "Conv2D", 0.0014, "npu"),
        LayerTime("b+c", "Gelu+Relu", 0.0006, "npu"),
    )


@pytest.mark.parametrize("name", ["", "a,b", 'a"b', 'x",1,5\n7', "]]>", "7", "ä\n"])
def test_names_are_the_users(name: str) -> None:
    text = report(
        [f'100,1,9,"Conv2D","{name}",0,700,7', '101,2,8,"Relu","b",0,300,0'],
        ['1,"Conv2D",1,0', '2,"Relu",1,1'],
    )
    found = read_estimate(SUMMARY, text, [VelaOperator("first", name), *named("b")], "npu")
    assert [layer.name for layer in found.layers] == ["first", "b"]
    assert sum(layer.latency_ms for layer in found.layers) == pytest.approx(found.latency_ms)


@pytest.mark.parametrize(
    ("summary", "text"),
    [
        ("", report([], [])),
        ("network,core_clock\nmodel,1\n", report([], [])),
        ("core_clock,cycles_total\n0,5\n", report([], [])),
        (SUMMARY, ""),
        (SUMMARY, report([], [], header='"id","operator"')),
        (SUMMARY, report([], [], header='"id","source_id","optimised_id","operator","name","x"')),
        (SUMMARY, report(['1,1,1,"Conv2D","a",0,5,7'], ['1,"Conv2D",1,9'])),
        (SUMMARY, report(['1,1,1,"Conv2D","a",0,5,7'], ['x,"Conv2D",1,0'])),
        (SUMMARY, report(['1,1,1,"Conv2D","a",0,990,7'], ['1,"Conv2D",1,0'])),
        # The name of this tensor looks like the end of a row.
        (SUMMARY, report(['1,1,1,"Conv2D","a",0,7,7\n",0,1000,7'], ['1,"Conv2D",1,0'])),
    ],
)
def test_reports_of_another_form_are_refused(summary: str, text: str) -> None:
    with pytest.raises(RuntimeFailure, match="Vela's report cannot be read") as caught:
        read_estimate(summary, text, named("a"), "npu")
    assert caught.value.code == "MODEL_FAILED"


def test_operators_are_named_after_what_they_make(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert.schema_py_generated")
    w = SampleWriter("int8")
    x = w.input([4])
    for _ in range(3):
        x = w.op("RELU", [x], [4])
    w.output(x)
    for index, name in enumerate(("in", "same", "same", "last")):
        w.described(index).name = name.encode()
    path = tmp_path / "model"
    path.write_bytes(w.finish())
    assert [operator.name for operator in read_operators(path)] == ["same@0", "same@1", "last"]
    for bad in (b"", json.dumps({"no": "model"}).encode()):
        path.write_bytes(bad)
        with pytest.raises(RuntimeFailure) as caught:
            read_operators(path)
        assert caught.value.code == "MODEL_INVALID"
