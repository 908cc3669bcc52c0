"""The house family: what its stem takes from images."""

import timm
import torch
from torch import nn

import vitling  # noqa: F401  registers the family
from vitling.models.hybrid import WhiteningConv


def smooth_images(channels: int = 3) -> torch.Tensor:
    """Noise whose neighbouring pixels and channels go together, as in photographs."""
    noise = torch.randn(64, channels, 20, 20, generator=torch.Generator().manual_seed(0))
    shared = noise.mean(dim=1, keepdim=True)
    return nn.functional.avg_pool2d(noise + 2 * shared, kernel_size=3, stride=1)


def test_whitened_responses_are_uncorrelated_and_of_equal_variance():
    conv, images = WhiteningConv(3, 12), smooth_images()
    conv.fit(images)
    responses = conv(images)[:, :, 1:-1, 1:-1].transpose(0, 1).flatten(1)
    covariance = torch.cov(responses[:6])
    torch.testing.assert_close(covariance, torch.eye(6), rtol=0.1, atol=0.1)
    torch.testing.assert_close(responses[6:], -responses[:6])


def test_more_filters_than_a_grey_patch_has_pixels_are_mixtures_of_its_components():
    conv = WhiteningConv(1, 32)
    conv.fit(smooth_images(channels=1))
    assert conv.weight.shape == (32, 1, 3, 3)
    assert conv.weight.flatten(1).norm(dim=1).min() > 0


def test_a_network_takes_its_first_filters_from_images_and_keeps_them():
    model = timm.create_model("hybrid_vit_tiny", num_classes=3)
    before = model.patch_embed.proj[0].weight.clone()
    model.init_from_images(smooth_images())
    fitted = model.patch_embed.proj[0].weight.clone()
    assert not torch.equal(before, fitted)
    other = timm.create_model("hybrid_vit_tiny", num_classes=3)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.patch_embed.proj[0].weight, fitted)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 3, 32, 32)).square().sum().backward()
    optimizer.step()
    assert torch.equal(model.patch_embed.proj[0].weight, fitted)


def test_blocks_before_a_tail_begin_as_the_identity():
    model = timm.create_model("hybrid_vit_tiny", num_classes=3)
    tokens = torch.randn(2, 64, 64)
    assert torch.equal(model.blocks(tokens), tokens)
