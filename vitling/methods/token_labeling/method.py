"""Token labeling: every token learns the class of what it shows, from label maps that another model made.

Paper: Jiang et al. 2021, "All Tokens Matter: Token Labeling for Training Better Vision Transformers".
Equal to the authors' release in tests/golden/test_tokenlabel.py. Deviates: any model with tokens, any class count and grid; maps
follow their images geometrically, erased tokens lose their label, and CutMix mixes the labels of the tokens it covers. With
`axes="official"` the three are as released: x and y exchanged, labels kept, all tokens mixed alike. What a map holds is the
annotator's affair: the release stores raw scores.
"""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from vitling.data.pipeline.keeping import crops_show_whole_pictures
from vitling.data.pipeline.preprocessing import as_size
from vitling.data.pipeline.training_data import split_training
from vitling.errors import UserError
from vitling.methods.method import Batch, Trial
from vitling.methods.mixing import MixingMethod
from vitling.methods.pool import CONFIDENCE, Pool, UnlabelledShare, make_pool
from vitling.methods.preparation import Preparation, cnn_recipe
from vitling.methods.token_labeling.label_maps import LabelMaps
from vitling.methods.token_labeling.relabeling import relabel as write_maps
from vitling.methods.token_labeling.transport import transport_labels
from vitling.models.contract import token_grid
from vitling.models.lvvit import Box, Mirror, flip_batch, mix_tokens, random_box
from vitling.optim import parameter_groups
from vitling.recipes import Optim, Recipe, replace
from vitling.runs.opening import Source
from vitling.validation.values import Count, PartOf, Range, Share, Side, Weight

SMALL_IMAGE = 96  # pixels; up to here relabel=auto trains the ResNet for small images, of stride 8
SMALLEST_IMAGE = 32  # pixels that it sees, so that its maps have four cells on a side
ANNOTATOR_EPOCHS = 50


class TokenLabeling(MixingMethod):
    """Cross-entropy on the label of the crop and on the label of every token, with MixToken.

    `maps` holds the label maps of the training split; without them, every token learns the label of its image.
    `label_tokens=False` is plain re-labeling: one label per crop, none for tokens. `class_label="truth"` gives the class token
    the data's own label in place of the map's. The weights default to the release's; the paper's dense weight is 0.5. Unlabelled images
    in a `pool` join every batch, `unlabelled_share` times as many: all their tokens learn the soft label of the image.
    """

    mixes_tokens = True
    weighs_images = True
    trial: ClassVar = Trial(
        "token labels",
        {"relabel": "auto"},
        "a label for every patch, from a small CNN that is trained first",
        "ten classes: 52.4 without, 47.1 with a weak annotator (docs/results.md); published gains are with a strong one (LV-ViT paper)",
        weight=-1.0,
        plain_weight=-1.0,
        check_args={},
        keeps_mixing=False,
    )

    def __init__(
        self,
        model: nn.Module,
        *,
        num_classes: int,
        maps: LabelMaps | None = None,
        label_tokens: bool = True,
        class_label: Literal["map", "truth"] = "map",
        cls_weight: Weight = 1.0,
        dense_weight: Weight = 1.0,
        label_smoothing: Share = 0.1,
        mix_token: bool = True,
        axes: Literal["geometric", "official"] = "geometric",
        pool: Pool | None = None,
        unlabelled_share: UnlabelledShare = 1.0,
        **mixing: Any,
    ):
        super().__init__(model, num_classes=num_classes, label_smoothing=label_smoothing, **mixing)
        if maps is not None and len(maps.header.class_names) != num_classes:
            raise UserError(
                f"label maps of {len(maps.header.class_names)} classes do not fit a model of {num_classes} classes."
            )
        if not hasattr(model, "num_prefix_tokens"):
            raise UserError(f"{type(model).__name__} has no tokens to label; use a vision transformer.")
        self.maps, self.wants_geometry = maps, maps is not None
        self.label_tokens, self.class_label, self.axes = label_tokens, class_label, axes
        self.pool, self.unlabelled_share = pool, unlabelled_share
        self.cls_weight, self.dense_weight, self.label_smoothing = cls_weight, dense_weight, label_smoothing
        self.grid = token_grid(model)
        self.mix_token = mix_token
        if getattr(model, "mix_token", False) and not mix_token:
            raise UserError(
                "model_args.mix_token=true and method_args.mix_token=false contradict each other; leave one out."
            )
        if mix_token:
            find_embedding(model)  # refuse now what could not be mixed later
        self.has_own_head = getattr(model, "aux_head", None) is not None
        if self.has_own_head and not label_tokens:
            raise UserError(
                "label_tokens=false would leave the dense head of this model untrained; build it without: "
                "model_args.return_dense=false."
            )
        self.dense_head = None
        if label_tokens and not self.has_own_head:
            self.dense_head = nn.Linear(model.num_features, num_classes)
            trunc_normal_(self.dense_head.weight, std=0.02)
            nn.init.zeros_(self.dense_head.bias)

    @classmethod
    def prepare(
        cls,
        preparation: Preparation,
        *,
        labels: str = "",
        annotator: str = "",
        relabel: Literal["", "auto"] = "",
        annotator_epochs: Count | None = None,
        annotator_size: Side | tuple[Side, Side] | None = None,
        top_k: Annotated[int, Range(1, 65_536)] = 5,
        teacher: str = "",
        unlabelled: str = "",
        confidence: PartOf | None = None,
        **others: Any,
    ) -> dict:
        """Find the label maps, or have them made; and the soft labels of unlabelled images, where there are some.

        `labels` is a folder that `vitling relabel` wrote, or "truth" for no maps; `annotator` a run or a model of timm whose maps
        are made now and kept in the run directory; relabel="auto" trains a small CNN first, for `annotator_epochs`, and takes it as
        the annotator. With `teacher`, a run, the images in `unlabelled` of which it is sure (`confidence`) join with its soft labels.
        """
        given = [bool(source) for source in (labels, annotator, relabel)]
        if given.count(True) != 1 or "maps" in others:
            raise UserError(
                "token labeling needs labels: give one of method_args.labels=FOLDER (from `vitling relabel`), "
                "method_args.annotator=RUN, method_args.relabel=auto, or labels=truth for each image's own class."
            )
        if annotator_epochs is not None and relabel != "auto":
            raise UserError(
                f"method_args.{annotator_epochs=} is for method_args.relabel=auto, which trains an annotator."
            )
        if bool(teacher) != bool(unlabelled) or "pool" in others:
            raise UserError(
                "unlabelled images join token labeling by method_args.unlabelled=IMAGES and method_args.teacher=RUN together, a finished run on "
                "the same classes; give both or neither."
            )
        if not teacher and (confidence is not None or "unlabelled_share" in others):
            raise UserError(
                "method_args.confidence and method_args.unlabelled_share are for unlabelled images; give method_args.unlabelled=IMAGES and "
                "method_args.teacher=RUN, or leave them out."
            )
        if teacher:
            sure = CONFIDENCE if confidence is None else confidence
            pool = make_pool(preparation, teacher=teacher, unlabelled=unlabelled, confidence=sure)
            others = {**others, "pool": pool}
        if labels == "truth":
            return others
        data, recipe = preparation.data, preparation.recipe
        whole = crops_show_whole_pictures(recipe)
        source: Source = annotator
        folder: str | Path = labels
        if relabel == "auto":
            preparation.callback.log("training a small CNN that will label the tokens")
            source = preparation.train(annotator_recipe(recipe), "annotator")
        if source:
            folder = preparation.folder / "labels"
            preparation.once(
                lambda: write_maps(
                    source,
                    data.dataset,
                    folder,
                    size=annotator_size,
                    fit="resize" if whole else recipe.fit,
                    top_k=top_k,
                    callback=preparation.callback,
                )
            )
        train, _ = split_training(data.dataset, recipe)
        shown = as_size(recipe.train_size) or data.preprocessing.size
        maps = LabelMaps.open(folder)
        return {"maps": maps.of_split(data.dataset, train, fit=recipe.fit, size=shown, whole=whole), **others}

    @classmethod
    def first_run(cls, recipe: Recipe) -> Recipe | None:
        return annotator_recipe(recipe) if recipe.method_args.get("relabel") == "auto" else None

    @classmethod
    def with_first_epochs(cls, recipe: Recipe, epochs: int) -> Recipe:
        if recipe.method_args.get("relabel") != "auto":
            return recipe
        return replace(recipe, method_args={**recipe.method_args, "annotator_epochs": epochs})

    @classmethod
    def techniques(cls, recipe: Recipe) -> set[str]:
        switches = {"label_tokens": "token labels", "mix_token": "MixToken"}
        used = {name for key, name in switches.items() if recipe.method_args.get(key, True)}
        return super().techniques(recipe) | used

    @classmethod
    def conflicts(cls, recipe: Recipe) -> list[str]:
        mixing = [name for name in ("mixup", "cutmix") if recipe.method_args.get(name)]
        if not mixing:
            return []
        return [
            f"{' and '.join(mixing)} with token labels: mixed images have no clean label per token; leave it out, MixToken does "
            "the mixing (LV-ViT paper, table 7: 83.3 without mixup, 83.1 with it)"
        ]

    @classmethod
    def missing(cls, recipe: Recipe) -> str:
        labels = recipe.method_args.get("labels", "truth")
        if labels == "truth" or Path(labels).exists():
            return ""
        how = f"fit={recipe.fit}" + (" and raw_scores" if recipe.method_args.get("axes") == "official" else "")
        return f"it needs label maps in {labels}; write them there with `vitling relabel`, {how}."

    def forward(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        losses = self.token_losses(batch)[0]
        return {"loss": sum(losses.values()), **losses}

    def token_losses(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        """The weighted terms; and what they were computed from: images and labels as mixed, class logits."""
        images, target = batch["image"], self.targets(batch)
        if "weight" in batch:  # cross-entropy is linear in the labels, however they are mixed afterwards
            target = target * batch["weight"].to(target)[:, None, None]
        if self.pool is not None:
            unlabelled, soft_labels = self.pool.draw(images, self.unlabelled_share)
            images = torch.cat([images, unlabelled])
            target = torch.cat([target, soft_labels[:, :, None].expand(-1, -1, target.shape[2])])
        if self.mix.mixes:
            share, boxes = self.mix.draw(len(images), *images.shape[-2:])
            by_token = self.axes == "geometric" and self.label_tokens
            kept = token_shares(share, boxes, tuple(images.shape[-2:]), self.grid) if by_token else None
            target = mix_targets(target, share, kept, self.partners.mirror)
            images = self.mix.mix_images(images, share, boxes)
        cls_logits, dense_logits, box = self.forward_tokens(images)
        cls_term, dense_term = token_label_terms(
            cls_logits, dense_logits, target, box, self.grid, self.class_weights, self.partners.mirror
        )
        losses = {"cls_label": cls_term * self.cls_weight}
        if dense_term is not None:
            losses["token_labels"] = dense_term * self.dense_weight
        return losses, images, target, cls_logits

    def forward_tokens(self, images: Tensor) -> tuple[Tensor, Tensor | None, Box | None]:
        """Class logits, dense logits (B, N, classes) put back to the images they came from, and the box that was mixed."""
        with self.partners.drawing():
            box = random_box(self.grid) if self.mix_token else None
        if self.has_own_head:
            return self.model.forward_tokens(images, box, self.partners.mirror)
        tokens = self.mixed_features(images, box)
        cls_logits = self.model.forward_head(tokens)
        if self.dense_head is None:
            return cls_logits, None, box
        dense_logits = self.dense_head(tokens[:, self.model.num_prefix_tokens :])
        if box is not None:
            dense_logits = mix_map(dense_logits, box, self.grid, self.partners.mirror)
        return cls_logits, dense_logits, box

    def mixed_features(self, images: Tensor, box: Box | None) -> Tensor:
        """The model's tokens, with the box exchanged where images become tokens, before positions are added."""
        if box is None:
            return self.model.forward_features(images)
        embedding = find_embedding(self.model)
        hook = embedding.register_forward_hook(
            lambda module, args, output: mix_map(output, box, self.grid, self.partners.mirror)
        )
        try:
            return self.model.forward_features(images)
        finally:
            hook.remove()

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Labels (B, classes, 2 + N): the truth, the crop's, each token's. Without `label_tokens` the first two."""
        labels, images = batch["label"], batch["image"]
        tokens = self.grid[0] * self.grid[1] if self.label_tokens else 0
        truth = smooth(F.one_hot(labels, self.num_classes).float(), self.label_smoothing)
        if self.maps is None:
            return truth[:, :, None].expand(-1, -1, 2 + tokens)
        with torch.autocast(images.device.type, enabled=False):  # labels in full precision whatever the model's is
            scores, classes = self.maps.take(batch["index"])
            geometry = batch["geometry"]
            where: dict[str, Any] = dict(
                num_classes=self.num_classes,
                img_size=tuple(images.shape[-2:]),
                axes=self.axes,
                covered=self.maps.covered_shares(geometry.sizes),
            )
            crop = transport_labels(scores, classes, geometry, size=(1, 1), **where)
            dense = [transport_labels(scores, classes, geometry, size=self.grid, **where)] if tokens else []
            target = label_target(labels, crop, *dense, label_smoothing=self.label_smoothing)
        if self.class_label == "truth":
            target[:, :, 1] = target[:, :, 0]
        return target

    def compile_networks(self) -> None:
        """The blocks, not the whole: a box is new at every step and would be compiled anew."""
        for block in self.model.blocks:
            block.compile()

    def parameter_groups(self, optim: Optim, lr: float) -> list[dict]:
        groups = super().parameter_groups(optim, lr)
        if self.dense_head is not None:
            groups += parameter_groups(self.dense_head, replace(optim, layer_decay=1.0, lr_factors={}), lr)
        return groups


def token_label_loss(
    cls_logits: Tensor,
    dense_logits: Tensor,
    target: Tensor,
    box: Box | None = None,
    grid: tuple[int, int] | None = None,
    *,
    cls_weight: float = 1.0,
    dense_weight: float = 1.0,
) -> Tensor:
    """Token labeling's loss: the crop's label for the class logits, mixed by the area of the box, and each token's for its own.

    `target` (B, classes, 2 + N) holds the truth, which is not used, the crop's label and the tokens'; or it is (B, classes), one
    label for the image and all its tokens. `dense_logits` (B, N, classes) are put back, as `forward_tokens` returns them.
    """
    grid = grid or (1, dense_logits.shape[1])
    cls_term, dense_term = token_label_terms(cls_logits, dense_logits, target, box, grid)
    assert dense_term is not None, "dense logits have a term"
    return cls_weight * cls_term + dense_weight * dense_term


def token_label_terms(
    cls_logits: Tensor,
    dense_logits: Tensor | None,
    target: Tensor,
    box: Box | None,
    grid: tuple[int, int],
    class_weights: Tensor | None = None,
    mirror: Mirror = flip_batch,
) -> tuple[Tensor, Tensor | None]:
    """The two terms of the loss, without their weights; the second is None without dense logits."""
    cls_label = target if target.ndim == 2 else target[:, :, 1]
    if box is not None:
        top, left, bottom, right = box
        kept = 1 - (bottom - top) * (right - left) / (grid[0] * grid[1])  # the mean of M in eq. 10
        cls_label = kept * cls_label + (1 - kept) * mirror(cls_label)
    cls_term = F.cross_entropy(cls_logits.float(), cls_label, weight=class_weights)
    if dense_logits is None:
        return cls_term, None
    token_labels = target[:, :, None].expand(-1, -1, dense_logits.shape[1]) if target.ndim == 2 else target[:, :, 2:]
    return cls_term, F.cross_entropy(dense_logits.float().transpose(1, 2), token_labels, weight=class_weights)


def label_target(labels: Tensor, *scores: Tensor, label_smoothing: float = 0.1) -> Tensor:
    """One label per column, (B, classes, 1 + ...): the truth, then the softmax of each place of the score maps, row by row."""
    truth = smooth(F.one_hot(labels, scores[0].shape[1]).float(), label_smoothing)
    # The release smooths these with the same two numbers as the truth, though they are not one-hot: they sum to 1 + s / K.
    K = scores[0].shape[1]
    on, off = 1 - label_smoothing + label_smoothing / K, label_smoothing / K
    machine = [part.flatten(2).softmax(dim=1).mul_(on).add_(off) for part in scores]
    return torch.cat([truth[:, :, None], *machine], dim=2)


def smooth(labels: Tensor, label_smoothing: float) -> Tensor:
    return labels * (1 - label_smoothing) + label_smoothing / labels.shape[1]


def mix_map(x: Tensor, box: Box, grid: tuple[int, int], mirror: Mirror = flip_batch) -> Tensor:
    """`mix_tokens` for tokens (B, N, D), and for maps with their channels first or last."""
    if x.ndim == 3:
        return mix_tokens(x.unflatten(1, grid), box, mirror).flatten(1, 2)
    if tuple(x.shape[2:]) == tuple(grid):
        return mix_tokens(x.permute(0, 2, 3, 1), box, mirror).permute(0, 3, 1, 2)
    return mix_tokens(x, box, mirror)


def mix_targets(
    target: Tensor, share: Tensor, token_share: Tensor | None = None, mirror: Mirror = flip_batch
) -> Tensor:
    """Labels (B, classes, 2 + N) of images that Mixup or CutMix mixed with their mirrors in the batch.

    `share` (B,) is what each image kept of itself, and `token_share` (B, N) what each of its tokens kept; else all equally.
    """
    kept = share.view(-1, 1, 1).expand(-1, 1, target.shape[2])
    if token_share is not None:
        kept = torch.cat([kept[:, :, :2], token_share[:, None]], dim=2)
    kept = kept.to(target)
    return target * kept + mirror(target) * (1 - kept)


def token_shares(share: Tensor, boxes: Tensor, img_size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """What each token kept of itself, (B, N): the part outside its image's CutMix box, or the share where there is no box."""

    def covered(start: Tensor, end: Tensor, length: int, parts: int) -> Tensor:
        edges = torch.arange(parts + 1) * length / parts
        overlap = torch.minimum(end[:, None], edges[1:]) - torch.maximum(start[:, None], edges[:-1])
        return overlap.clamp(min=0) * parts / length

    top, left, bottom, right = boxes.float().unbind(dim=1)
    rows, columns = covered(top, bottom, img_size[0], grid[0]), covered(left, right, img_size[1], grid[1])
    outside = 1 - (rows[:, :, None] * columns[:, None]).flatten(1)
    return torch.where(((bottom > top) & (right > left))[:, None], outside, share[:, None])


def find_embedding(model: nn.Module) -> nn.Module:
    """The module that makes tokens of images, before positions are added."""
    embedding = getattr(model, "front_end", None) or getattr(model, "patch_embed", None)
    if embedding is None:
        raise UserError(
            f"{type(model).__name__} has no patch_embed, so its tokens cannot be mixed; try method_args.mix_token=false."
        )
    return embedding


def annotator_recipe(recipe: Recipe) -> Recipe:
    """A small CNN, at a size that it can see something at."""
    size = as_size(recipe.img_size) or (SMALL_IMAGE, SMALL_IMAGE)  # a resolved recipe has one
    epochs = recipe.method_args.get("annotator_epochs") or min(recipe.epochs, ANNOTATOR_EPOCHS)
    if min(size) < SMALLEST_IMAGE:
        scale = SMALLEST_IMAGE / min(size)
        height, width = (round(side * scale) for side in size)
        recipe = replace(recipe, img_size=(height, width), train_size=None)
    return cnn_recipe(
        recipe,
        model="diag_resnet18_nano" if max(size) <= SMALL_IMAGE else "resnet18",
        epochs=epochs,
        optim=Optim(name="sgd", lr=0.05, weight_decay=5e-4, warmup_epochs=0.05 * epochs, min_lr=1e-4),
        augment=replace(recipe.augment, erase=0.0, repeats=1),
    )


__all__ = ["TokenLabeling", "mix_tokens", "token_label_loss"]
