"""How kernels of a simulated board run at the same time, on several streams."""

from __future__ import annotations

from typing import Collection, Sequence


def makespan_ms(
    times_ms: Sequence[float], waits: Sequence[Collection[int]], streams: int, sync_ms: float
) -> float:
    """Return when the last kernel ends, if each starts as early as it can.

    Kernels are given to streams in their order. Each goes to the stream on which it starts first,
    of several to the first of them. A result is seen on its own stream at once, on others later.

    Args:
        times_ms: time of each kernel by itself.
        waits: for each kernel, the earlier kernels whose results it reads.
        streams: number of streams.
        sync_ms: time until a result is seen on another stream.
    """
    free_ms = [0.0] * streams
    ends_ms: list[float] = []
    stream_of: list[int] = []
    for time_ms, before in zip(times_ms, waits):
        starts = [
            max(
                [free_ms[stream]]
                + [ends_ms[o] + (sync_ms if stream_of[o] != stream else 0.0) for o in before]
            )
            for stream in range(streams)
        ]
        chosen = min(range(streams), key=starts.__getitem__)
        free_ms[chosen] = starts[chosen] + time_ms
        ends_ms.append(free_ms[chosen])
        stream_of.append(chosen)
    return max(ends_ms, default=0.0)
