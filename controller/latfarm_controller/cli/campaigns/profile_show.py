"""The output of `latfarm profile` for people, and its layers as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from latfarm_controller.cli.shell import output

if TYPE_CHECKING:
    from latfarm_predictors.measurement import Measurement

    from latfarm_controller.reports.facts.predicted_and_profiled import (
        ConfigurationTimes,
        KernelTimes,
        NetworkTimes,
    )


def layers_json(found: Mapping[str, Measurement]) -> list[dict[str, Any]]:
    """The measurements of networks with the layers as the runtime tells them."""
    return [{"model": model} | output.measurement_json(told) for model, told in found.items()]


def show_layers(found: Mapping[str, Measurement], most: int) -> None:
    """Print the longest layers of each network, as the runtime tells them."""
    for model, told in found.items():
        corrected, timed, _ = output.latency_cells(told)
        output.out().print(f"{model} on {told.platform}: {corrected} ms, {timed} ms as timed")
        whole_ms = sum(layer.latency_ms for layer in told.layers) or 1.0
        longest = sorted(told.layers, key=lambda layer: -layer.latency_ms)
        output.table(
            "",
            ["layer", "op", "ms, as timed", "share"],
            [
                [
                    layer.name,
                    layer.op,
                    f"{layer.latency_ms:.4f}",
                    f"{layer.latency_ms / whole_ms:.1%}",
                ]
                for layer in longest[:most]
            ],
        )
        _tell_hidden(len(longest) - most, "shorter layers")


def show_kernels(
    models: Sequence[str],
    times: Sequence[NetworkTimes],
    sums: Sequence[ConfigurationTimes],
    most: int,
) -> None:
    """Print one network with its kernels, or several with the configurations of their kernels.

    Args:
        models: names of the networks.
        times: of each network.
        sums: of the configurations, those that make networks miss first.
        most: number of rows of the table of kernels or configurations.
    """
    output.table(
        "",
        ["network", "corrected, ms", "as timed, ms", "predicted, ms", "error", "interval"],
        [
            [
                model,
                f"{each.latency.corrected_ms:.3f}",
                f"{each.latency.timed_ms:.3f}",
                f"{each.predicted_ms:.3f}",
                f"{each.error:+.1%}",
                "{:.3f} to {:.3f}".format(*each.interval_ms),
            ]
            for model, each in zip(models, times, strict=True)
        ],
    )
    for model, each in zip(models, times, strict=True):
        if not each.usable:
            output.error(
                f"{model}: the layers of the profile do not explain its latency, so that the times "
                "of its kernels say little"
            )
    if len(times) == 1:
        _show_one(times[0], most)
    else:
        _show_sums(sums, most)


def _show_one(network: NetworkTimes, most: int) -> None:
    """The kernels of a network, those with the largest errors first."""
    from latfarm_predictors.predict.source_words import in_words

    whole_ms = network.latency.corrected_ms
    told = sorted(network.kernels, key=lambda kernel: -abs(kernel.excess_ms))
    output.table(
        "kernels, those with the largest errors first",
        ["kernel", "at layer", "in profile, ms", "predicted, ms", "of network", "source"],
        [
            [
                kernel.type,
                kernel.nodes[0],
                "with others" if kernel.profiled_ms is None else f"{kernel.profiled_ms:.4f}",
                f"{kernel.predicted_ms:.4f}",
                _effect(kernel, whole_ms),
                in_words(kernel.source),
            ]
            for kernel in told[:most]
        ],
    )
    _tell_hidden(len(told) - most, "kernels with smaller errors")


def _effect(kernel: KernelTimes, network_ms: float) -> str:
    """What the error of a kernel is of its network's latency."""
    return "" if kernel.profiled_ms is None else f"{kernel.excess_ms / network_ms:+.2%}"


def _show_sums(sums: Sequence[ConfigurationTimes], most: int) -> None:
    """The configurations of several networks, those that make a network miss first."""
    from latfarm_predictors.predict.source_words import in_words

    output.table(
        "configurations of kernels, those that make a network miss first",
        [
            *("kernel", "configuration", "networks", "kernels", "in profiles, ms"),
            *("predicted, ms", "worst of a network", "source"),
        ],
        [
            [
                each.type,
                " ".join(f"{key}={value}" for key, value in each.configuration.items()),
                str(each.networks),
                str(each.kernels),
                f"{each.profiled_ms:.4f}",
                f"{each.predicted_ms:.4f}",
                f"{each.worst:+.2%}",
                in_words(each.source),
            ]
            for each in sums[:most]
        ],
    )
    _tell_hidden(len(sums) - most, "configurations with smaller errors")


def _tell_hidden(number: int, what: str) -> None:
    if number > 0:
        output.out().print(f"... and {number} {what} (--most, --json)")
