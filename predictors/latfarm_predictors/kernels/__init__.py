"""Kernels: the groups of ops that a runtime executes as one unit.

How a kernel is spoken of, from a network's file to an answer; each step adds what the last lacks:

1. `parts.Part`: its place in a network: indices of nodes, names of the tensors that cross its
   border. `fusion_search.find_parts` finds the parts of a graph under fusion rules. No size is in
   it, so that networks that differ in sizes alone share their parts.
2. `workload.Workload`: what it computes and moves, as named numbers. `workload.workload_of` reads
   it from a graph and a part. It is all that predictors know of a kernel; equal workloads have
   equal latencies. `features.table.Table` is a batch of workloads as columns.
3. `kernel.Kernel`: the kernel as a small graph of its own, which can be built and measured.
   `fusion_search.split` makes one of each part; it knows where it was found (`Kernel.origin`).
4. `samples.KernelSample`: a Kernel with its measured latency: what regressors learn from.
5. `predict.kernel_book.KnownKernel`: a Workload with its estimate, remembered between predictions.
6. `predict.answer.KernelAnswer`: the estimate as people read it: nodes, milliseconds and an
   interval.
"""
