"""The stacked runtime: trains a whole cohort, or the cohorts of a whole sweep, as one batch on one device.

Glossary:

- *stack*: models of one architecture as one tensor per parameter, `[lanes, *shape]`. A step of SGD on all of them is
  one vmapped operation.
- *lane*: one row of a stack. It holds one model in training, and when that client is done, the next client's.
- *step*: one SGD step of every lane, each on a batch of its own. An idle lane steps with rate 0, which changes nothing.
- *segment*: one client's local training, a fixed number of steps long.
- *visit*: a segment placed in a lane, from step `begin` to step `end`.
- *launch*: the visits trained together on one stack. All their clients share a `LaunchShape` (batch size and
  augmentation).
- *schedule*: the inputs of a launch, as tensors `[steps, lanes, ...]`: samples, labels, weights, rates, keys. A CUDA
  graph of one step reads the row that a counter on the device points to, so the host only replays it.
- *request*, *result*: one run's order with its clients' samples, and the models trained from it. A launch serves many.

Modules, from the outside in: `stacked_runtime` turns orders into replies; `engine` cuts requests into launches;
`lane_schedule` packs clients into lanes, and `batch_schedule` draws their batches; `launcher` fills, advances and
empties lanes; `graph_capture` records a step as a CUDA graph, `lane_check` checks it, and `autotune` times candidates
and caches the fastest; `kept_step` keeps compiled steps under a `step_key`; `lane_step` is the step itself, and
`lane_move` its update; `stack_module`, `convolution`, `batch_norm` and their kernels are the layers,
`tiled_convolution` those with many channels, `layer_fusion` those that are computed together, and `split_linear` those
whose weights `linear_update` moves without a gradient in memory; `device_data` holds samples on the device;
`stack_scores` evaluates.
"""
