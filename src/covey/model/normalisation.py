"""Batch norm that any client can train, however few samples its last batch has."""

import torch.nn.functional as F
from torch import Tensor, nn

from covey.errors import require


class _AnyBatch(nn.modules.batchnorm._BatchNorm):
    """Takes the running statistics where a batch has a single value per channel, hence no variance."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.numel() == x.shape[1]:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


class BatchNorm1d(_AnyBatch, nn.BatchNorm1d):
    pass


class BatchNorm2d(_AnyBatch, nn.BatchNorm2d):
    pass


class BatchNorm3d(_AnyBatch, nn.BatchNorm3d):
    pass


_OURS: dict[type[nn.Module], type[_AnyBatch]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}


def adopt_batch_norm(module: nn.Module) -> None:
    """Make torch's batch norms of a model ours; refused where their statistics are not a running mean.

    A cumulative mean counts batches over all clients that a process has trained, and without statistics a sample's
    class depends on those that are scored with it.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            require(
                layer.momentum is not None and layer.track_running_stats,
                f"The layer {name} of the model {type(module).__name__} is a batch norm with momentum=None or "
                "track_running_stats=False; give it a momentum, such as torch's 0.1, and running statistics.",
            )
            # The same object, which may have several places in the model, with the same parameters and buffers.
            if type(layer) in _OURS:
                layer.__class__ = _OURS[type(layer)]
