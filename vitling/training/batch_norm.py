"""BatchNorm over the batch of all processes. torch's synchronised one is for GPUs; this is the same for CPUs."""

import torch
import torch.nn.functional as F
from timm.layers import SyncBatchNormAct, convert_sync_batchnorm
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm  # private, but what all of torch's and timm's are


def synchronise_batch_norm(module: nn.Module, device: torch.device) -> nn.Module:
    """The module with statistics over all processes, whatever their device; names and values of its tensors stay."""
    module = convert_sync_batchnorm(module)  # timm's: torch's own loses the activation that timm joins with a norm
    if device.type == "cpu":
        for part in module.modules():
            if isinstance(part, SyncBatchNormAct):
                part.__class__ = CpuSyncBatchNormAct
            elif isinstance(part, nn.SyncBatchNorm):
                part.__class__ = CpuSyncBatchNorm
    return module


class CpuSyncBatchNorm(_BatchNorm):
    """BatchNorm with the mean and variance of all processes' rows, of which each has as many."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:  # a norm without running statistics takes those of its own rows then, as torch's does
            use_batch = self.running_mean is None
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, use_batch, 0.0, self.eps
            )
        count = x.numel() // x.shape[1] * distributed.get_world_size()
        if count == 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
        axes, shape = [axis for axis in range(x.ndim) if axis != 1], (1, -1, *[1] * (x.ndim - 2))
        values = x.float()  # statistics in full precision, as torch's
        mean = _Sum.apply(values.sum(axes)) / count
        centred = values - mean.view(shape)
        variance = _Sum.apply(centred.square().sum(axes)) / count
        self._count_batch(mean.detach(), variance.detach() * (count / (count - 1)))
        scale = (variance + self.eps).rsqrt()
        if self.affine:
            scale = scale * self.weight
        normal = centred * scale.view(shape)
        return (normal + self.bias.view(shape) if self.affine else normal).to(x.dtype)

    @torch.no_grad()
    def _count_batch(self, mean: Tensor, variance: Tensor) -> None:
        if not self.track_running_stats:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(variance.to(self.running_var), share)


class CpuSyncBatchNormAct(CpuSyncBatchNorm):
    """The same with timm's dropout and activation behind it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


class _Sum(torch.autograd.Function):
    """The sum over processes; each one's gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.clone()
        distributed.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return _Sum.apply(gradient)
