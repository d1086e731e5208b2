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

Modules, from the outside in: `stacked_runtime` (orders to replies), `engine` (requests to launches), `lane_schedule`
(clients to lanes and batches), `launcher` (lanes filled, advanced, emptied), `graph_capture` (a step as a CUDA graph),
`lane_check` (do lanes agree?), `autotune` (timings and their cache), `sgd_step` (the step itself), `stack_module`,
`convolution`, `batch_norm` and their kernels (the layers), `device_data` (samples on the device), `stack_scores`
(evaluation).
"""
