"""Workloads of plain convolutions by their sizes, for tests and benchmarks."""

from __future__ import annotations

from latfarm_predictors.kernels.workload import Workload


def conv_work(size: int, c_in: int, c_out: int, window: int, stride: int = 1) -> Workload:
    """A float32 convolution with padding "same" on a square map.

    Args:
        size: height and width of the input.
        c_in: input channels.
        c_out: output channels.
        window: height and width of the window.
        stride: stride in both directions.
    """
    out = -(-size // stride)
    return Workload(
        family="conv",
        type="Conv",
        dtype="float32",
        batch=1,
        in_h=size,
        in_w=size,
        in_channels=c_in,
        out_h=out,
        out_w=out,
        out_channels=c_out,
        kernel_h=window,
        kernel_w=window,
        stride_h=stride,
        stride_w=stride,
        dilation_h=1,
        dilation_w=1,
        groups=1,
        macs=out * out * c_in * c_out * window * window,
        input_bytes=4 * size * size * c_in,
        output_bytes=4 * out * out * c_out,
        weight_bytes=4 * c_in * c_out * window * window,
        inputs=1,
        fused_ops=0,
    )
