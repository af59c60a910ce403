"""Reports are files that need no others, and their numbers are those of the rows."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from latfarm_controller.reports import networks
from latfarm_controller.reports.facts.network_rows import NetworkRow
from latfarm_controller.reports.pages import page, svg
from latfarm_predictors.predict.answer import Answer, KernelAnswer


def row(name: str, measured: float, predicted: float, low: float, high: float) -> NetworkRow:
    kernel = KernelAnswer(
        "Conv+Relu", ("c1", "r1"), {"in_h": 56, "kernel": "3x3"}, 1.0, (0.9, 1.2), "gp"
    )
    answer = Answer(name, "p", predicted, (low, high), 0.9, True, (kernel,), ("x: Foo",), "0001")
    return NetworkRow(
        name,
        measured,
        measured * 1.5,
        [measured, measured * 1.02],
        answer,
        {"forest": measured * 2},
    )


ROWS = [row("a<b>", 10.0, 10.5, 9.0, 12.0), row("c", 100.0, 80.0, 70.0, 90.0)]


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_and_loads_nothing() -> None:
    report = networks.NetworksReport(
        title="T & t",
        lead="lead",
        verdicts=[("Conv", "Relu", "fused"), ("Conv", "Add", "undecided")],
        groups=[{"group": "conv", "rows": 9, "within10": 0.5, "mean_ape": 0.1}],
        campaign={"measurements": "3"},
        conditions={"governor": "unknown"},
    )
    html = networks.render(report, ROWS)
    parser = Tags()
    parser.feed(html)
    assert parser.open == []
    tags = {tag for tag, _ in parser.seen}
    assert not tags & {"script", "link", "img", "iframe"}
    assert all("src" not in attrs and "href" not in attrs for _, attrs in parser.seen)
    assert "a&lt;b&gt;" in html
    assert "a<b>" not in html
    assert "T &amp; t" in html


def test_no_table_is_wider_than_its_page_because_of_long_texts() -> None:
    html = networks.render(
        networks.NetworksReport(
            title="t", lead="l", conditions={"libraries": "a=1 " * 60}, campaign={}
        ),
        ROWS,
    )
    assert "thead th{vertical-align:bottom;white-space:normal}" in html
    assert f'<td class="text">{"a=1 " * 60}</td>' in html
    heading = html.split("<h2>Networks</h2>")[1].split("</thead>")[0]
    assert "passes" not in heading, "passes stand in a table of their own"
    assert "<summary>each pass</summary>" in html
    cells = html.split("<summary>each pass</summary>")[1].split("</details>")[0]
    assert '<td class="text">10.00, 10.20</td>' in cells


def test_agreement_marks_points_inside_and_outside() -> None:
    text = svg.agreement([svg.Point("x", 10, 10, 9, 11), svg.Point("y", 10, 20, 18, 22)])
    assert text.count('class="inside"') == 1
    assert text.count('class="outside"') == 1
    assert svg.agreement([svg.Point("bad", 0.0, 1, 1, 1)]) == ""


def test_a_plot_has_a_legend_and_names() -> None:
    points = [svg.Point(f"net{n}", 10.0, 10.0 + n, 9.0, 11.5) for n in range(12)]
    text = svg.agreement(points, named=False)
    assert "inside its interval: 12" in text
    assert "outside: 0" in text
    assert "within 10 %" in text
    # Without room for all names, those stand there whose predictions are furthest off.
    names = {f"net{n}" for n in range(12) if f">net{n}</text>" in text}
    assert names == {f"net{n}" for n in range(6, 12)}
    assert all(f">net{n}</text>" in svg.agreement(points) for n in range(12))


def test_write_is_whole(tmp_path: Path) -> None:
    path = page.write(tmp_path / "deep" / "r.html", "<p>")
    assert path.read_text() == "<p>"
    assert [p.name for p in path.parent.iterdir()] == ["r.html"]


def test_a_plot_alone_is_an_xml_document() -> None:
    root = ElementTree.fromstring(svg.standalone(networks.plot(ROWS)))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
