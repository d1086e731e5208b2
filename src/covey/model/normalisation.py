"""Batch norm that accepts a batch of one sample, as a client's last batch may be."""

import torch.nn.functional as F
from torch import Tensor, nn

from covey.errors import require


class _AnyBatchSize(nn.modules.batchnorm._BatchNorm):
    """Batch norm that uses running statistics if a channel has a single value, hence no variance."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.numel() == x.shape[1]:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


class BatchNorm1d(_AnyBatchSize, nn.BatchNorm1d):
    """Batch norm of `[n, c]` or `[n, c, length]`."""


class BatchNorm2d(_AnyBatchSize, nn.BatchNorm2d):
    """Batch norm of `[n, c, height, width]`."""


class BatchNorm3d(_AnyBatchSize, nn.BatchNorm3d):
    """Batch norm of `[n, c, depth, height, width]`."""


_OURS: dict[type[nn.Module], type[_AnyBatchSize]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}


def adopt_batch_norm(module: nn.Module) -> None:
    """Turn torch's batch norms into ours, in place; refuse those without running statistics or momentum.

    Without momentum, statistics are a cumulative mean over batches of all clients that a process has trained. Without
    running statistics, the prediction for a sample depends on the samples scored with it.
    """
    accept_one_sample(module)
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            require(
                layer.momentum is not None and layer.track_running_stats,
                f"The layer {name} of the model {type(module).__name__} is a batch norm with momentum=None or "
                "track_running_stats=False; give it a momentum, such as torch's 0.1, and running statistics.",
            )


def accept_one_sample(module: nn.Module) -> None:
    """Turn those of torch's batch norms that have running statistics into ours, in place."""
    for layer in module.modules():
        # The object stays the same, as it may occur at several places of the model.
        if type(layer) in _OURS and layer.track_running_stats:
            layer.__class__ = _OURS[type(layer)]
