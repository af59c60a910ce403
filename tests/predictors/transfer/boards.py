"""Made-up boards whose latencies follow a few common causes."""

from __future__ import annotations

import numpy as np
from latfarm_predictors.transfer.table import LatencyTable


def made_table(
    seed: int = 0,
    *,
    boards: int = 24,
    networks: int = 20,
    configurations: int = 1,
    missing: float = 0.0,
    noise: float = 0.03,
) -> LatencyTable:
    """Boards whose logarithms of latency are a speed, three causes, and noise.

    Args:
        seed: of everything that is drawn.
        boards: number of boards.
        networks: number of networks.
        configurations: rows of each board, which differ by one more cause.
        missing: share of latencies that were not measured.
        noise: standard deviation of the logarithms.
    """
    rng = np.random.default_rng(seed)
    typical = rng.normal(0.0, 1.0, networks)
    causes = rng.normal(0.0, 0.25, (3, networks))
    threads = rng.normal(0.0, 0.15, networks)
    logs, names = [], []
    for board in range(boards):
        own = rng.normal(0.0, 1.0) + typical + rng.normal(0.0, 1.0, 3) @ causes
        for configuration in range(configurations):
            names.append((f"b{board}-c{configuration}", f"b{board}"))
            spread = rng.normal(0.0, noise, networks)
            logs.append(own - 0.8 * configuration + configuration * threads + spread)
    latencies = np.exp(np.array(logs))
    latencies[rng.random(latencies.shape) < missing] = np.nan
    platforms = tuple(name for name, _ in names)
    owners = tuple(board for _, board in names)
    columns = tuple(f"n{number}" for number in range(networks))
    return LatencyTable(platforms, owners, owners, ("cpu",) * len(names), columns, latencies)
