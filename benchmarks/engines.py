"""The engines of this machine: MNN's four networks on every runtime and number of threads.

    make bench-engines
    make bench-engines BENCH_FLAGS="--networks squeezenet --passes 1 --threads 1,2 --out /tmp/trial"

It measures by our protocol and by that of MNN's paper (section 4.1), writes `engines.json` beside
this file, and writes the page `docs/reference/engines.md` with its plot. `--render` writes the page
again from `engines.json`, without measuring. `--out` writes all three files into a folder instead.
Measurements are kept under --home, so that the same command continues where it stopped; another
--name begins again.

Run it on a quiet machine: the page says how many cells shared their cores with other work.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from latfarm_controller.reports.engines import engines
from latfarm_controller.reports.engines.cost_model import against_mnn
from latfarm_controller.reports.engines.plot import plot
from latfarm_controller.reports.pages import page, svg

ROOT = Path(__file__).resolve().parents[1]
JSON = Path("benchmarks/engines.json")
PAGE = Path("docs/reference/engines.md")
PICTURE = Path("docs/images/engines.svg")
PROTOCOLS = ("latfarm", "mnn")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run a campaign for each protocol; gives their outcomes."""
    os.environ["LATFARM_HOME"] = str(options.home.absolute())
    os.environ["LATFARM_LOCAL_THREADS"] = options.threads
    os.environ |= {"GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "ERROR"}  # Ray forks
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.cli.shell.progress import follow

    found = {}
    with controller() as client:
        for protocol in options.protocols:
            config = {
                "networks": options.networks,
                "protocol": protocol,
                "passes": options.passes,
                "board": "local",
                "threads": [int(count) for count in options.threads.split(",")],
            }
            if options.dtypes:
                config["dtypes"] = options.dtypes.split(",")
            name = f"{options.name}-{protocol}"
            started = client.start("engines", options.platforms, config, name)
            campaign = follow(client, started.campaign_id)
            found[protocol] = campaign.outcome
            print(
                f"{protocol}: {campaign.measurements} measurements, {campaign.failures} failures, "
                f"{campaign.board_ms / 1e3:.0f} s of board time, {campaign.wall_ms / 1e3:.0f} s"
            )
    return found


def render(outcomes: Mapping[str, Any], clock_mhz: float | None, picture: str) -> str:
    """The page: our protocol with the plot and MNN's cost model, then MNN's protocol."""
    first, *others = (outcomes[name] for name in PROTOCOLS if name in outcomes)
    text = engines.markdown(first, against_mnn(first, clock_mhz), "Engines", picture)
    title, _, body = text.partition("\n")
    parts = [
        title,
        "\nWritten by `make bench-engines`, from `benchmarks/engines.json`; how to make such a "
        "table of another board: [comparing engines](../engines.md).\n",
        body.strip("\n"),
    ]
    for outcome in others:
        parts.append("\n## By the protocol of MNN's paper\n")
        facts = engines.facts(outcome)
        parts += [f"- **{name}**: {facts[name]}" for name in ("taken on", "protocol", "noise")]
        for dtype in engines.dtypes(outcome):
            parts += ["", f"### {dtype}, ms", ""]
            parts += engines.markdown_table(outcome, dtype)
    return "\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=lambda text: text.split(","), default=None)
    parser.add_argument(
        "--platforms", default="*", help="shell pattern that the names of platforms must match"
    )
    parser.add_argument(
        "--dtypes", default="", help="element types, for example fp32,int8; empty for all"
    )
    parser.add_argument("--threads", default="1,2,4")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--protocols", type=lambda t: t.split(","), default=list(PROTOCOLS))
    parser.add_argument(
        "--clock-mhz",
        type=float,
        default=None,
        help="clock of the core in MHz, for MNN's cost model",
    )
    parser.add_argument("--home", type=Path, default=ROOT / ".cache" / "engines")
    parser.add_argument("--name", default="bench")
    parser.add_argument("--out", type=Path, default=None, help="write all files into this folder")
    parser.add_argument(
        "--render", action="store_true", help="write the page again without measuring"
    )
    options = parser.parse_args(arguments)
    unknown = set(options.protocols) - set(PROTOCOLS)
    if unknown:
        parser.error(f"unknown protocols {sorted(unknown)}; known: {', '.join(PROTOCOLS)}")
    if options.networks is None:
        from latfarm_controller.campaigns.engines.campaign import NETWORKS

        options.networks = list(NETWORKS)

    def place(path: Path) -> Path:
        folder: Path | None = options.out
        return ROOT / path if folder is None else folder / path.name

    if options.render:
        outcomes = json.loads(place(JSON).read_text())["outcomes"]
    else:
        outcomes = measure(options)
    first = outcomes[next(name for name in PROTOCOLS if name in outcomes)]
    picture = place(PICTURE)
    shown = os.path.relpath(picture, place(PAGE).parent)
    text = render(outcomes, options.clock_mhz, shown)
    if not options.render:
        model = against_mnn(first, options.clock_mhz)
        data = {"outcomes": outcomes, "mnn_model": model.to_json()}
        page.write(place(JSON), json.dumps(data, indent=1) + "\n")
    page.write(picture, svg.standalone(plot(first, engines.dtypes(first)[0])))
    print(page.write(place(PAGE), text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
