"""Bootstrapping: a ViT and its agent CNN learn from the labels and from each other, the ViT also from the agent's features.

Paper: Zhang et al. 2022, "Bootstrapping ViTs: Towards Liberating Vision Transformers from Pre-training".
Equal to the authors' release in tests/golden/test_bootstrapping_training.py. Deviates: shared weights get the aligned gradients
of Algorithm 1, which the release lacks (`align="none"` is the release); the feature weight fades with every step instead
of every epoch; tokens need not form a square.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from vitling.errors import UserError, first_line
from vitling.methods.method import Batch, Omission, Trial
from vitling.methods.mixing import MixingMethod
from vitling.models import build_model
from vitling.models.agent import Agent, create_agent, mlp_layers, read_structure
from vitling.models.contract import square_grid, token_grid
from vitling.optim import parameter_groups
from vitling.recipes import Optim, Recipe
from vitling.validation.model_arguments import check_model_args
from vitling.validation.values import Range, Rate, Temperature, Weight

NAMED_AGENT = "agent_small"  # in timm's registry; its other arguments make any agent of it


def mutual_loss(student: Tensor, teacher: Tensor, temperature: float = 4.0, weights: Tensor | None = None) -> Tensor:
    """T^2 KL(teacher || student) of predictions softened by T; the teacher is a constant (eq. 8). `weights`: of each image."""
    student = (student.float() / temperature).log_softmax(dim=1)
    teacher = (teacher.detach().float() / temperature).log_softmax(dim=1)
    if weights is not None:
        return (F.kl_div(student, teacher, reduction="none", log_target=True).sum(1) * weights).mean() * temperature**2
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def feature_loss(
    vit: Tensor,
    agent: Tensor,
    *,
    pool: str = "sequence",
    norm: str = "layer",
    grid: tuple[int, int] | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """How far a ViT's tokens (B, N, D) are from the agent's map (B, D, h, w) of the same block, a constant (eq. 6).

    Where the lengths differ, the longer side is average-pooled to the shorter one: along the row-major sequence as in the
    release, or ("2d") along rows and columns, where `grid` is the ViT's. Each token is normalised, by LayerNorm as in the
    release (then the mean square counts) or to length one as in the paper (then the mean squared distance). `weights`: of each image.
    """
    vit, agent = vit.float(), agent.detach().float()
    if pool == "sequence":
        agent = agent.flatten(2).transpose(1, 2)  # (B, h w, D)
    else:
        vit = vit.unflatten(1, grid or _square(vit.shape[1]))  # (B, height, width, D)
        agent = agent.permute(0, 2, 3, 1)
    for axis in range(1, vit.ndim - 1):
        vit, agent = _pool_longer(vit, agent, axis)
    if weights is not None:  # a mean over tokens is linear in the images
        weights = weights.view(-1, *[1] * (vit.ndim - 2))
    if norm == "layer":
        vit, agent = F.layer_norm(vit, vit.shape[-1:]), F.layer_norm(agent, agent.shape[-1:])
        if weights is None:
            return F.mse_loss(vit, agent)
        return (F.mse_loss(vit, agent, reduction="none").mean(dim=-1) * weights).mean()
    distance = (F.normalize(vit, dim=-1) - F.normalize(agent, dim=-1)).square().sum(dim=-1)
    return (distance if weights is None else distance * weights).mean()


def _pool_longer(x: Tensor, y: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    short, long = sorted((x.shape[axis], y.shape[axis]))
    if long % short:
        raise UserError(
            f"the ViT has {x.shape[axis]} tokens along an axis where the agent has {y.shape[axis]}: neither divides the other, "
            "so features cannot be pooled to match. Try agent=auto, agent_args.stem=base or feature_weight=0."
        )
    if long == short:
        return x, y
    window = (short, long // short)
    return tuple(t.unflatten(axis, window).mean(axis + 1) if t.shape[axis] == long else t for t in (x, y))


def _square(tokens: int) -> tuple[int, int]:
    grid = square_grid(tokens)
    if grid is None:
        raise UserError(f"{tokens} tokens do not form a square; give grid=(height, width).")
    return grid


def align_gradients(
    agent: Tensor | list[Tensor], vit: Tensor | list[Tensor], align: str = "flat"
) -> Tensor | list[Tensor]:
    """Align(agent | vit) of Algorithm 1: an agent's gradient that opposes the ViT's loses its part along the ViT's.

    "flat" compares all tensors as one vector, "tensor" each by itself, "none" changes nothing.
    """
    if isinstance(agent, Tensor):
        return align_gradients([agent], [vit], align)[0]
    if align == "none":
        return list(agent)
    dots, lengths = _dots(agent, vit), _dots(vit, vit)
    if align == "flat":
        dots, lengths = dots.sum().expand_as(dots), lengths.sum().expand_as(lengths)
    # Without a gradient of the ViT nothing is opposed: the product is then zero, not negative.
    parts = torch.where(dots < 0, dots / lengths, 0)
    return [a - part * v for a, v, part in zip(agent, vit, parts, strict=True)]


def _dots(x: list[Tensor], y: list[Tensor]) -> Tensor:
    return torch.stack([torch.dot(a.flatten(), b.flatten()) for a, b in zip(x, y, strict=True)])


def measure_conflict(agent: list[Tensor], vit: list[Tensor], align: str) -> dict[str, Tensor]:
    """Share of the compared gradients that oppose each other, and the cosine between all of them as one vector."""
    dots = _dots(agent, vit)
    total = dots.sum()
    scale = (_dots(agent, agent).sum() * _dots(vit, vit).sum()).sqrt()
    return {
        "shared_conflict": (dots < 0).float().mean() if align == "tensor" else (total < 0).float(),
        # A step with an infinite gradient is skipped by the loss scaler; it must not look like a broken loss.
        "shared_cosine": torch.nan_to_num(total / scale.clamp(min=torch.finfo(scale.dtype).tiny)),
    }


def borrowed_rows(vit: nn.Module) -> dict[str, slice]:
    """What a sharing agent learns together with the ViT: names of the ViT's tensors, and which of their rows.

    Of the joint query-key-value projection these are the value rows: aligning the others would leak into attention.
    """
    names = {id(parameter): name for name, parameter in vit.named_parameters()}
    rows = {}
    for block in vit.blocks:
        rows[block.attn.qkv.weight] = slice(-block.attn.proj.in_features, None)
        for layer in (block.attn.proj, *mlp_layers(block.mlp)):
            rows |= {tensor: slice(None) for tensor in (layer.weight, layer.bias) if tensor is not None}
    return {names[id(tensor)]: part for tensor, part in rows.items() if tensor.requires_grad}


def run_network(network: nn.Module, images: Tensor, taps: str | None) -> tuple[Tensor, list[Tensor]]:
    """Logits and, in the format `taps` asks for, the outputs of every block, from one forward pass."""
    if taps is None:
        return network(images), []
    final, blocks = network.forward_intermediates(images, output_fmt=taps)
    return network.forward_head(final), blocks


class Borrower(nn.Module):
    """An agent together with the ViT it borrows from, so that `functional_call` can lend it other tensors."""

    def __init__(self, vit: nn.Module, agent: nn.Module, run: Callable):
        super().__init__()
        self.vit, self.agent, self.run = vit, agent, run

    def forward(self, images: Tensor, taps: str | None) -> tuple[Tensor, list[Tensor]]:
        return self.run(self.agent, images, taps)


class Bootstrap(MixingMethod):
    """A ViT and its agent CNN learn from the labels and from each other; the ViT is what is kept.

    `agent` is "auto", which matches one to the ViT, or the name of a model; `agent_args` are its arguments. With `share` it
    borrows the ViT's value and output projections and its MLPs. The agent's optimiser settings are the ViT's unless given.
    """

    weighs_images = True
    trial: ClassVar = Trial(
        "agent",
        {"agent": "resnet9_nano", "feature_weight": 0.0},
        "a CNN that learns beside it, and both learn from each other",
        "ten classes: plain ViT 57.5, with agent 60.1 in 4.6 times the time; the hybrid in 70 s 24.0, with agent 13.0 (docs/results.md)",
        weight=-0.8,
        plain_weight=0.2,
        check_args={"agent": "resnet9_nano", "feature_weight": 0.0},
    )
    omission = Omission(
        "agent",
        "it multiplies the time, and helps plain ViTs more than those with convolutions",
        "ten classes: plain ViT 57.5, with agent 60.1 in 4.6 times the time; this hybrid with two blocks in 70 s: 24.0, with agent 13.0 "
        "(docs/results.md). "
        "CIFAR-100, 240 epochs: 61.25 and 76.19 (Bootstrapping paper, table 1)",
    )

    def __init__(
        self,
        model: nn.Module,
        *,
        agent: str = "auto",
        agent_args: dict | None = None,
        agent_lr: Annotated[float, Range(above=0, high=1000)] | None = None,
        agent_weight_decay: Rate | None = None,
        agent_clip_grad: Annotated[float, Range(0, 1e9)] = 0.0,
        share: bool = False,
        align: Literal["flat", "tensor", "none"] | None = None,
        temperature: Temperature = 4.0,
        mutual_weight: Weight = 1.0,
        feature_weight: Weight = 10.0,
        feature_decay: bool = True,
        feature_pool: Literal["sequence", "2d"] = "sequence",
        feature_norm: Literal["layer", "l2"] = "layer",
        **mixing: Any,
    ):
        super().__init__(model, **mixing)
        if align and not share:
            raise UserError(
                f"method_args.align={align} aligns gradients of shared weights; add method_args.share=true."
            )
        self.share, self.align = share, align or "flat"
        self.temperature, self.mutual_weight = temperature, mutual_weight
        self.feature_weight, self.feature_decay = feature_weight, feature_decay
        self.feature_pool, self.feature_norm = feature_pool, feature_norm
        self.agent_lr, self.agent_weight_decay, self.agent_clip_grad = agent_lr, agent_weight_decay, agent_clip_grad
        self.agent = build_agent(model, agent, agent_args or {}, share, self.num_classes)
        self.agent_args = agent_args or {}
        if feature_weight:
            self._check_features()
        self.run = run_network
        self.borrowed = borrowed_rows(model) if share else {}
        self.loan: dict[str, Tensor] = {}

    def forward(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        images, targets, weights = self.mixed(batch)
        vit, vit_blocks = self._run_vit(images)
        agent, agent_blocks = self._run_agent(images)
        losses = {
            "vit_label": F.cross_entropy(vit.float(), targets, weight=self.class_weights),
            "agent_label": F.cross_entropy(agent.float(), targets, weight=self.class_weights),
        }
        loss = losses["vit_label"] + losses["agent_label"]
        if self.mutual_weight:
            losses["vit_from_agent"] = mutual_loss(vit, agent, self.temperature, weights)
            losses["agent_from_vit"] = mutual_loss(agent, vit, self.temperature, weights)
            loss = loss + self.mutual_weight * (losses["vit_from_agent"] + losses["agent_from_vit"])
        if self.feature_weight:
            compared = zip(vit_blocks, agent_blocks, strict=True)
            losses["vit_from_agent_features"] = sum(self._feature_loss(*blocks, weights) for blocks in compared)
            fading = 1 - progress if self.feature_decay else 1.0
            loss = loss + self.feature_weight * fading * losses["vit_from_agent_features"]
        if self.share and self.align == "none":
            loss = loss / 2  # the release has Algorithm 1's half in its loss weights
        return {"loss": loss, **losses}

    @classmethod
    def companions(cls, recipe: Recipe, model: nn.Module) -> dict[str, nn.Module]:
        return {"agent": companion_agent(recipe, model)}

    def finish_gradients(self, average: Callable[[list[Tensor]], list[Tensor]]) -> dict[str, Tensor]:
        """Algorithm 1, line 8: shared tensors take half the sum of the ViT's gradient and the agent's aligned one."""
        if not self.borrowed:
            return {}
        parameters = dict(self.model.named_parameters())
        vit = [parameters[name].grad[rows] for name, rows in self.borrowed.items()]
        agent = average([self.loan[name].grad[rows] for name, rows in self.borrowed.items()])
        self.loan = {}
        measured = measure_conflict(agent, vit, self.align)
        # torch._foreach_*: no public name, but torch.optim's own steps are made of them.
        torch._foreach_add_(vit, align_gradients(agent, vit, self.align))
        if self.align != "none":
            torch._foreach_mul_(vit, 0.5)
        return measured

    def parameter_groups(self, optim: Optim, lr: float) -> list[dict]:
        decay = optim.weight_decay if self.agent_weight_decay is None else self.agent_weight_decay
        agent_lr = lr if self.agent_lr is None else self.agent_lr * lr / optim.lr  # scaled with the batch as lr is
        agent_optim = replace(optim, weight_decay=decay, lr_factors={})
        return super().parameter_groups(optim, lr) + parameter_groups(self.agent, agent_optim, agent_lr)

    def clip_limits(self, clip_grad: float) -> list[tuple[list[nn.Parameter], float]]:
        return [(list(self.model.parameters()), clip_grad), (list(self.agent.parameters()), self.agent_clip_grad)]

    def compile_networks(self) -> None:
        self.run = torch.compile(run_network)

    def unshardable(self) -> str:
        if not self.share:
            return ""
        return "method_args.share=true, where the agent computes with weights of the ViT; leave share out, or shard."

    def evaluated(self) -> dict[str, nn.Module]:
        return {"agent": self.agent}

    def kept(self) -> dict[str, tuple[nn.Module, dict[str, Any]]]:
        return {"agent": kept_agent(self.agent, self.agent_args)}

    def _run_vit(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        return self.run(self.model, images, "NLC" if self.feature_weight else None)

    def _run_agent(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        taps = "NCHW" if self.feature_weight else None
        if not self.borrowed:
            return self.run(self.agent, images, taps)
        if not self.loan:
            # New leaves over the same memory: one backward pass leaves the ViT's gradient with the ViT's tensors and the
            # agent's here, summed over the micro-batches of a step.
            parameters = dict(self.model.named_parameters())
            self.loan = {name: parameters[name].detach().requires_grad_() for name in self.borrowed}
        lent = {f"vit.{name}": tensor for name, tensor in self.loan.items()}
        return functional_call(Borrower(self.model, self.agent, self.run), lent, (images, taps))

    def _feature_loss(self, vit: Tensor, agent: Tensor, weights: Tensor | None = None) -> Tensor:
        how: dict[str, Any] = dict(pool=self.feature_pool, norm=self.feature_norm, grid=token_grid(self.model))
        return feature_loss(vit, agent, weights=weights, **how)

    def _check_features(self) -> None:
        """Refuse a pair whose features cannot be compared before the first step is taken."""
        vit = read_structure(self.model)
        agent = self.agent
        if not isinstance(agent, Agent) or (len(agent.layers), agent.embed_dim) != (vit["depth"], vit["embed_dim"]):
            raise UserError(
                f"features need an agent of the ViT's depth {vit['depth']} and width {vit['embed_dim']}, block for block; "
                "use agent=auto, or feature_weight=0 to learn from this agent's predictions only."
            )
        height, width = agent.grid_size
        tokens = torch.empty(1, token_grid(self.model)[0] * token_grid(self.model)[1], agent.embed_dim, device="meta")
        for i in range(len(agent.layers)):
            self._feature_loss(tokens, torch.empty(1, agent.embed_dim, height, width, device="meta"))
            if i in agent.down_sample:
                height, width = height // 2, width // 2


def build_agent(vit: nn.Module, name: str, arguments: dict, share: bool, num_classes: int) -> nn.Module:
    """The agent matched to the ViT, or any model by name for the same images."""
    if name == "auto":
        check_model_args(arguments, "method_args.agent_args")
        try:
            return create_agent(vit, share=share, **arguments)
        except UserError:
            raise
        except Exception as error:  # layers refuse sizes that do not fit together in many ways
            raise UserError(
                f"no agent can be built with method_args.agent_args={arguments}: {first_line(error)}"
            ) from None
    if share:
        raise UserError(
            f"an agent that shares is built from the ViT, so method_args.agent={name} cannot be it; "
            "leave agent=auto and choose its form with agent_args, such as agent_args.stem=base."
        )
    channels, *size = vit.pretrained_cfg["input_size"]
    return build_model(name, num_classes=num_classes, in_chans=channels, img_size=tuple(size), **arguments)


def kept_agent(agent: nn.Module, arguments: dict) -> tuple[nn.Module, dict[str, Any]]:
    """An agent with weights of its own as timm can build it again, and the arguments for that."""
    if not isinstance(agent, Agent) or not agent.arguments:
        return agent, arguments  # it was built by its name
    with torch.device("meta"):  # draws no random numbers
        network = build_model(NAMED_AGENT, **agent.arguments)
    network.load_state_dict(agent.plain_state(), assign=True)
    return network, {key: value for key, value in agent.arguments.items() if key != "num_classes"}


def companion_agent(recipe: Recipe, vit: nn.Module) -> nn.Module:
    """The agent that a recipe names, with weights of its own, on the ViT's device."""
    name, arguments = recipe.method_args.get("agent", "auto"), recipe.method_args.get("agent_args", {})
    with torch.device(next(vit.parameters()).device):
        agent = build_agent(vit, name, arguments, share=False, num_classes=vit.num_classes)
    # One that is matched to the ViT is not of timm's registry and has no config of its own.
    agent.pretrained_cfg = {**getattr(agent, "pretrained_cfg", {}), "input_size": vit.pretrained_cfg["input_size"]}
    return agent
