"""The frame of a report: one HTML file with its own style for light and dark, and no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from latfarm_predictors.whole_file import written_whole

STYLE = """
:root{color-scheme:light dark;--ink:#1c2330;--soft:#5b6575;--line:#d9dee6;--card:#fff;
--back:#f4f6f9;--good:#12805c;--bad:#c2410c;--accent:#2457c5;--band:#2457c51a}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf1;--soft:#98a3b5;--line:#313a49;--card:#1a202b;
--back:#11151c;--good:#3ecf9b;--bad:#fb923c;--accent:#7aa2ff;--band:#7aa2ff22}}
*{box-sizing:border-box}body{margin:0;background:var(--back);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1000px;margin:0 auto;padding:32px 20px 64px}h1{font-size:26px;margin:0 0 4px}
h2{font-size:18px;margin:0 0 12px}p.lead{color:var(--soft);margin:0 0 20px}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:20px;
margin:16px 0;overflow-x:auto}p.note{color:var(--soft);font-size:13px;margin:10px 0 0}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;
margin:16px 0}
.figure{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px}
.figure b{display:block;font-size:24px;font-variant-numeric:tabular-nums}
.figure span{color:var(--soft);font-size:13px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{color:var(--soft);font-weight:600;font-size:13px}
thead th{vertical-align:bottom;white-space:normal}
td.text{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:180px}
td.good{color:var(--good)}td.bad{color:var(--bad)}svg{width:100%;height:auto;display:block}
svg text{font-size:11px;fill:var(--ink)}svg .tick{fill:var(--soft)}
svg .label{fill:var(--soft);font-size:12px}
.grid{stroke:var(--line)}.lead{stroke:var(--soft)}.axis{stroke:var(--soft);stroke-dasharray:4 4}
.band{fill:var(--band)}
.inside line{stroke:var(--good);stroke-width:2}.inside circle{fill:var(--good)}
.outside line{stroke:var(--bad);stroke-width:2}.outside circle{fill:var(--bad)}
.fused{fill:var(--accent)}.separate{fill:var(--line)}
.undecided{fill:none;stroke:var(--bad);stroke-width:2}
details{margin:6px 0}summary{cursor:pointer}
"""
PLATFORM_STYLE = """
main{max-width:1160px}h3{font-size:15px;margin:22px 0 8px}h2+h3{margin-top:4px}
nav{display:flex;flex-wrap:wrap;gap:6px 8px;margin:0 0 8px}
nav a{color:var(--accent);text-decoration:none;border:1px solid var(--line);border-radius:999px;
padding:3px 12px;font-size:13px;background:var(--card)}nav a:hover,nav a:focus{
border-color:var(--accent)}section{scroll-margin-top:8px;overflow-x:visible}
.scroll{overflow-x:auto;margin:0 -20px 14px;padding:0 20px}.scroll:focus-visible{outline:2px solid
var(--accent)}p.caption{color:var(--soft);font-size:13px;margin:10px 0 4px}
td.left{text-align:left}
td.text{text-align:left;white-space:normal;min-width:180px;max-width:520px}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr));
gap:24px 28px}figure{margin:0;min-width:0}figcaption{font-size:13px;margin:0 0 4px}
figcaption b{display:block;font-size:14px;overflow-wrap:anywhere}
figcaption span{color:var(--soft)}svg.key{width:22px;height:12px;flex:none}
ul.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;margin:12px 0 0;padding:0;
font-size:13px;color:var(--soft)}ul.legend li{display:flex;align-items:center;gap:6px}
.area{fill:var(--accent);opacity:.16}.curve{fill:none;stroke:var(--accent);stroke-width:1.8}
.forest{fill:none;stroke:var(--soft);stroke-width:1.1;stroke-dasharray:5 3}
.on{fill:var(--good);stroke:var(--card);stroke-width:1}
.near{fill:var(--card);stroke:var(--good);stroke-width:1.5}.base,.stub{stroke:var(--soft)}
.not-run{fill:var(--line)}.wrong{fill:var(--card);stroke:var(--bad);stroke-width:2.5}
.open{fill:var(--card);stroke:var(--soft);stroke-width:1.5}
svg .sign{fill:var(--bad);font-weight:700}
dl.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(220px,1fr));gap:10px 24px;
margin:0 0 14px}dl.facts dt{color:var(--soft);font-size:13px}dl.facts dd{margin:0;
overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
code{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--back);
border:1px solid var(--line);border-radius:6px;padding:1px 6px;overflow-wrap:anywhere;
white-space:pre-wrap;user-select:all}p.told{border-left:3px solid var(--bad);padding-left:10px}
.wide{max-width:680px;margin:0 auto;overflow-x:auto}.wide svg{min-width:480px}
summary{font-size:14px;padding:3px 0}
@media(max-width:560px){main{padding:18px 12px 40px}section{padding:14px}
.scroll{margin:0 -14px 14px;padding:0 14px}h1{font-size:21px;overflow-wrap:anywhere}
.figures{grid-template-columns:1fr 1fr}
.figure b{font-size:20px}td,th{padding:5px 8px}}
@media print{nav{display:none}section{break-inside:avoid}}
"""
"""Style that the report of a platform adds to `STYLE`."""


def cell(value: object, kind: str = "") -> str:
    """One escaped table cell; `kind` is `good`, `bad`, `text` (it may be wrapped) or empty."""
    mark = f' class="{kind}"' if kind else ""
    return f"<td{mark}>{escape(str(value))}</td>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table from plain headings and rows of finished cells (see `cell`)."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    """The figures at the top of a page: each value, and what it is."""
    boxes = "".join(
        f'<div class="figure"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for value, name in pairs
    )
    return f'<div class="figures">{boxes}</div>'


def section(title: str, body: str, note: str = "", name: str = "") -> str:
    """A block with a title, which links can name; empty if the body is empty."""
    if not body:
        return ""
    foot = f'<p class="note">{escape(note)}</p>' if note else ""
    anchor = f' id="{escape(name)}"' if name else ""
    return f"<section{anchor}><h2>{escape(title)}</h2>{body}{foot}</section>"


def page(title: str, lead: str, body: str, style: str = "") -> str:
    """The whole document; `style` is added to the common style."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{body}</main></body></html>\n'
    )


def write(path: Path, html: str) -> Path:
    """Write a document as a whole or not at all, and return its absolute path."""
    with written_whole(path, make_folder=True) as part:
        part.write_text(html, encoding="utf-8")
    return path.resolve()
