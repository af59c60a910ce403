"""The output of `latfarm predict --explain`: how far to trust a prediction, and what to measure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from latfarm_predictors.confidence.too_wide import MOST_WIDTH, says_nothing

from latfarm_controller.cli.shell import output

if TYPE_CHECKING:
    from latfarm_predictors.confidence.measures import NetworkInterval
    from latfarm_predictors.trust.network_trust import LayerTrust, NetworkTrust

_MOST_REMEDIES = 8
"""Number of layers for which a command of their own is printed."""


SAMPLES_REMEDY = "latfarm demo"
"""The remedy of all layers of an answer of the sample bundle, whose board nobody can measure."""


def as_samples_trust(found: NetworkTrust) -> NetworkTrust:
    """The trust in an answer of the sample bundle: each remedy measures the machine at hand."""
    layers = [
        replace(layer, remedy=SAMPLES_REMEDY) if layer.remedy else layer for layer in found.layers
    ]
    return replace(
        found, layers=tuple(layers), remedy=SAMPLES_REMEDY if found.remedy else found.remedy
    )


def show_trust(found: NetworkTrust) -> None:
    """Print the network's intervals, a table of its layers, and commands that improve coverage."""
    console = output.out()
    low, high = found.calibrated_ms
    backed = "calibrated" if found.calibrated else "uncalibrated: too few measured networks"
    console.print(f"How far to trust {found.network}: {found.level:.0%} intervals", style="bold")
    output.table(
        "",
        ["interval of the network", "ms", "width", "worth"],
        [
            [
                "latfarm",
                f"{low:.3f} to {high:.3f}",
                f"{(high - low) / found.latency_ms:.0%}",
                backed,
            ],
            *(_paper_row(name, each) for name, each in found.paper.items()),
        ],
    )
    output.table(
        "",
        ["layer", "kernel", "ms", "interval", "CM_TV", "CM_LV", "CM_O", "coverage", "lacks"],
        [_row(layer) for layer in found.layers],
    )
    console.print(
        "CM_TV, CM_LV, CM_O: width of the layer intervals of the smart padding paper, divided by "
        "the prediction; *: the family has too few measurements of its own; nothing: more than "
        f"{MOST_WIDTH:g} times the prediction, which says nothing of the latency."
    )
    console.print(f"coverage of the network, weighted by latency: {found.coverage:.0%}")
    if not found.remedy:
        console.print("no layer is badly covered")
        console.print()
        return
    bad = found.badly_covered
    if found.remedy == SAMPLES_REMEDY:
        console.print(f"{len(bad)} layers are badly covered. To measure this machine:")
        _command(found.remedy)
        console.print()
        return
    console.print(
        f"{len(bad)} layers are badly covered. To measure all of them and reach "
        f"{found.reached:.0%}:"
    )
    _command(found.remedy)
    console.print("To measure them one by one, the longest first:")
    for layer in bad[:_MOST_REMEDIES]:
        _command(layer.remedy)
    if len(bad) > _MOST_REMEDIES:
        console.print(f"  ... and {len(bad) - _MOST_REMEDIES} more (--json)")
    console.print()


def _paper_row(name: str, interval: NetworkInterval) -> list[str]:
    """An interval of the paper; one that tells nothing is called that, and not shown."""
    label = f"{name}, layers convolved"
    if interval.says_nothing:
        return [label, "says nothing", f"over {MOST_WIDTH:.0%}", interval.label]
    span = f"{interval.low_ms:.3f} to {interval.high_ms:.3f}"
    return [label, span, f"{interval.relative_width:.0%}", interval.label]


def _row(layer: LayerTrust) -> list[str]:
    mark = "*" if layer.stands_in else ""
    return [
        layer.name,
        layer.kind,
        f"{layer.latency_ms:.4f}",
        "{:.4f} to {:.4f}".format(*layer.interval_ms),
        *(
            f"nothing{mark}" if says_nothing(width) else f"{width:.0%}{mark}"
            for width in layer.widths.values()
        ),
        f"{layer.coverage:.0%}",
        ", ".join(layer.outside),
    ]


def _command(text: str) -> None:
    """Print a command on one line, however long it is, so that it can be copied."""
    output.out().print(f"  {text}", style="cyan", soft_wrap=True)
