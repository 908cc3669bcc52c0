"""Candidates: what could make a run better, with reasons from what it shows and from what was found elsewhere.

One rule per idea. A rule gives a candidate, or says why there is none; what cannot be built or afforded is named and left out, too.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from timm.layers import to_2tuple
from torch import nn

from vitling.errors import UserError
from vitling.improvement.symptoms import Symptoms
from vitling.methods import Trial, create_method, find_method, find_trials
from vitling.models import build_model
from vitling.models.macs import count_macs
from vitling.planning.conflicts import overlaps
from vitling.planning.rules import CUTOUT, JITTER, LADDER, MIXED, STRONG, TINY_SIDE
from vitling.planning.sizes import FULL_SIZE_SIDE, whole_patch
from vitling.planning.survey import Survey
from vitling.recipes import Recipe, load_recipe, override, to_dict
from vitling.training.setup import check_settings

BASELINE = "as it is"
PLAIN_METHOD = Recipe().method  # which others take the place of
LARGER_IMAGES, SMALLER_IMAGES, LEAST_SIDE = 1.5, 2 / 3, 32
MOST_TOKENS, LEAST_GRID = 1024, 3  # of a finer and of a coarser patch
WIDE = 192  # a plain ViT beyond that is worse on small data
UNBALANCED = 2.0
LONG_RUN_STEPS, LONG_DECAY, SHORT_DECAY = 5000, 0.998, 0.99  # averaging over about 500 and about 100 steps


@dataclass(frozen=True)
class Candidate:
    """A change to the run's recipe. `weight` says how early it is tried: what is expected of it, from what the run shows."""

    name: str
    changes: dict[str, Any]
    reason: str
    evidence: str = ""
    weight: float = 0.0
    parents: tuple[str, ...] = ()

    def apply(self, recipe: Recipe) -> Recipe:
        return override(recipe, self.changes)

    @classmethod
    def from_dict(cls, tree: dict) -> "Candidate":
        return cls(**{**tree, "parents": tuple(tree["parents"])})

    def to_dict(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Omitted:
    """What is not tried, and why."""

    name: str
    reason: str


@dataclass
class Situation:
    """What the rules look at."""

    recipe: Recipe  # of the run, resolved
    size: tuple[int, int]
    symptoms: Symptoms
    survey: Survey
    steps: int  # that the run took
    init: str = ""  # pre-trained weights that were given
    init_reason: str = ""  # why these cannot be used
    model: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        self.model = self.build(self.recipe, self.size)

    def build(self, recipe: Recipe, size: tuple[int, int]) -> nn.Module:
        classes, channels = len(self.survey.class_counts), self.survey.channels
        return build_model(recipe.model, num_classes=classes, in_chans=channels, img_size=size, **recipe.model_args)

    @property
    def depth(self) -> int:
        return len(getattr(self.model, "blocks", ()))

    @property
    def patch(self) -> int:
        stem = getattr(self.model, "patch_embed", None)
        return max(to_2tuple(getattr(stem, "patch_size", 0)))

    @property
    def plain(self) -> bool:
        """A ViT without any convolution that lets neighbours meet."""
        return bool(self.depth) and not overlaps(self.model)

    @property
    def mixes(self) -> bool:
        return self.recipe.method == PLAIN_METHOD


Rule = Callable[[Situation], Candidate | Omitted]


def propose(situation: Situation) -> tuple[list[Candidate], list[Omitted]]:
    """Every candidate that can be built, the most promising first, and what is left out."""
    candidates: list[Candidate] = []
    omitted: list[Omitted] = []
    for rule in RULES:
        found = rule(situation)
        if isinstance(found, Candidate) and (reason := why_impossible(found, situation)):
            found = Omitted(found.name, reason)
        if isinstance(found, Candidate):
            candidates.append(found)
        else:
            omitted.append(found)
    return sorted(candidates, key=lambda candidate: -candidate.weight), omitted


def why_impossible(candidate: Candidate, situation: Situation) -> str:
    """Why the changed recipe cannot be trained, in a line; empty where it can."""
    try:
        recipe = candidate.apply(situation.recipe)
        check_settings(recipe)
        size = to_2tuple(recipe.img_size) if recipe.img_size else situation.size
        method = find_method(recipe.method)
        trained_first = method.first_run(recipe) is not None
        if not trained_first and (missing := method.missing(recipe)):
            return missing
        model = situation.build(recipe, size)
        trial = find_trials().get(recipe.method)
        if recipe.method != situation.recipe.method and trial and trial.check_args is not None:
            classes = len(situation.survey.class_counts)
            create_method(recipe.method, model, num_classes=classes, **trial.check_args)
    except UserError as error:
        return str(error).rstrip(".")
    return ""


def relative_cost(recipe: Recipe, situation: Situation) -> float:
    """Multiply-adds of a training image, the networks beside the model included, as a multiple of the run's own."""
    return _training_macs(recipe, situation) / _training_macs(situation.recipe, situation)


def _training_macs(recipe: Recipe, situation: Situation) -> float:
    """The backward pass takes twice the forward one; a network that only answers has none."""
    size = to_2tuple(recipe.img_size) if recipe.img_size else situation.size
    model, shape = situation.build(recipe, size), (situation.survey.channels, *size)
    model.pretrained_cfg = {**getattr(model, "pretrained_cfg", {}), "input_size": shape}
    beside = find_method(recipe.method).companions(recipe, model)
    total = 3.0 * count_macs(model.requires_grad_(False), shape)
    for network in beside.values():
        learns = any(p.requires_grad for p in network.parameters())
        total += (3.0 if learns else 1.0) * count_macs(network.requires_grad_(False), shape)
    return total


# --- the network ------------------------------------------------------------------------------------------------------


def _rung(situation: Situation, step: int) -> dict[str, Any] | None:
    """The next size of the house family, as changes; None beyond its ends or for another family."""
    models = [load_recipe(rung.recipe).model for rung in LADDER]
    if situation.recipe.model not in models:
        return None
    place = models.index(situation.recipe.model) + step
    if not 0 <= place < len(LADDER):
        return None
    rung = LADDER[place]
    base = load_recipe(rung.recipe)
    args = {**base.model_args, "patch_size": whole_patch(situation.size, rung.least_grid)}
    if "stem_full_size" in args:
        args["stem_full_size"] = min(situation.size) <= FULL_SIZE_SIDE
    epochs = situation.recipe.epochs
    optim = to_dict(base)["optim"] | {"warmup_epochs": base.optim.warmup_epochs * epochs / base.epochs}
    return {"model": base.model, "model_args": args, "optim": optim, "ema_decay": base.ema_decay}


def larger(s: Situation) -> Candidate | Omitted:
    weight = 2.0 if s.symptoms.underfits else -0.5 if s.symptoms.overfits else 0.8
    shown = f"it knows {100 * s.symptoms.train_top1:.0f} % of its training images"
    if changes := _rung(s, 1):
        reason = f"{shown}; {changes['model']} is the next size, and better where there is time for it"
        return Candidate("larger", changes, reason, "the sizes of the house family by time: docs/planning.md", weight)
    if s.depth and s.plain and getattr(s.model, "embed_dim", 0) >= WIDE:
        return Omitted(
            "larger",
            "a larger plain ViT is worse on small data (CIFAR-100: ViT-S 61.25, ViT-B 53.07; Bootstrapping paper, table 1)",
        )
    if not s.depth:
        return Omitted("larger", f"{s.recipe.model} has no number of blocks to raise")
    depth = max(s.depth + 1, round(1.5 * s.depth))
    reason = f"{shown}; {depth} blocks instead of {s.depth} can know more"
    return Candidate("larger", {"model_args.depth": depth}, reason, "", weight)


def smaller(s: Situation) -> Candidate | Omitted:
    weight = 0.8 if s.symptoms.overfits else -0.5
    gap = s.symptoms.knows()
    if changes := _rung(s, -1):
        reason = f"{gap}; {changes['model']} sees each image more often in the same time"
        return Candidate("smaller", changes, reason, "the sizes of the house family by time: docs/planning.md", weight)
    if s.depth < 2:
        what = "one block, and there is no smaller size" if s.depth else "no number of blocks to lower"
        return Omitted("smaller", f"{s.recipe.model} has {what}")
    depth = s.depth // 2
    reason = f"{gap}; {depth} blocks instead of {s.depth} see each image more often in the same time"
    return Candidate("smaller", {"model_args.depth": depth}, reason, "", weight)


def finer_patches(s: Situation) -> Candidate | Omitted:
    name = "smaller patches"
    if not s.patch:
        return Omitted(name, f"{s.recipe.model} has no patches")
    if s.plain:
        return Omitted(
            name,
            "smaller patches help only with a convolutional stem (CIFAR-100, patch 4 to 2: DeiT-T 67.59 to 65.86, DHVT-T 80.93 to "
            "83.54; DHVT paper, table 4)",
        )
    patch = s.patch // 2
    tokens = (s.size[0] // max(patch, 1)) * (s.size[1] // max(patch, 1))
    if patch < 2 or tokens > MOST_TOKENS:
        return Omitted(name, f"patches of {s.patch} pixels are as small as they can be at {s.size[0]} x {s.size[1]}")
    return Candidate(
        name,
        {"model_args.patch_size": patch},
        f"{tokens} tokens instead of {tokens // 4} see more detail",
        "CIFAR-100, patch 4 to 2: DHVT-T 80.93 to 83.54 (DHVT paper, table 4), at four times the time",
        0.5,
    )


def coarser_patches(s: Situation) -> Candidate | Omitted:
    name = "larger patches"
    if not s.patch:
        return Omitted(name, f"{s.recipe.model} has no patches")
    patch = 2 * s.patch
    if min(s.size) // patch < LEAST_GRID:
        return Omitted(name, f"patches of {patch} pixels would leave fewer than {LEAST_GRID} tokens along a side")
    weight = 0.4 if s.symptoms.underfits else 0.1
    return Candidate(
        name, {"model_args.patch_size": patch}, "a quarter of the tokens: each image is seen more often", "", weight
    )


def _resized(s: Situation, factor: float) -> tuple[int, int]:
    unit = max(s.patch, 8)
    height, width = (max(unit, round(side * factor / unit) * unit) for side in s.size)
    return height, width


def larger_images(s: Situation) -> Candidate | Omitted:
    name, size = "larger images", _resized(s, LARGER_IMAGES)
    if min(s.survey.median) <= min(s.size):
        height, width = s.survey.median
        return Omitted(name, f"the images have {height} x {width} pixels: enlarged, they would show nothing more")
    reason = f"the images have about {s.survey.median[0]} x {s.survey.median[1]} pixels and are shown at {s.size[0]} x {s.size[1]}"
    return Candidate(name, {"img_size": size, "train_size": None}, reason, "", 0.6)


def smaller_images(s: Situation) -> Candidate | Omitted:
    name, size = "smaller images", _resized(s, SMALLER_IMAGES)
    if min(size) < LEAST_SIDE or size == s.size:
        return Omitted(name, f"{s.size[0]} x {s.size[1]} pixels are few already")
    weight = 0.4 if s.symptoms.underfits else 0.0
    reason = f"at {size[0]} x {size[1]} each image is seen about twice as often"
    return Candidate(name, {"img_size": size, "train_size": None}, reason, "", weight)


def dhvt(s: Situation) -> Candidate | Omitted:
    name = "DHVT"
    if s.recipe.model.startswith("dhvt"):
        return Omitted(name, f"{s.recipe.model} is one")
    plain = to_dict(Recipe())["optim"] | {"warmup_epochs": 0.05 * s.recipe.epochs}
    changes = {
        "model": "dhvt_nano",
        "model_args": {"patch_size": whole_patch(s.size)},
        "optim": plain,
        "batch_size": min(s.recipe.batch_size, 64),
        "ema_decay": 0.0,
        "soup_epochs": 0,
        "init": "",
        "freeze": (),
    }
    reason = "a ViT made for few images: convolutions in its patches and its MLP"
    evidence = "ten classes, eight epochs: 67.1, a plain ViT 51.3 (docs/results.md); CIFAR-100: DHVT-T 80.93, DeiT-T 67.59 (DHVT paper)"
    return Candidate(name, changes, reason, evidence, 1.5 if s.plain else 0.2)


# --- the images -------------------------------------------------------------------------------------------------------


def augmentation(recipe: Recipe) -> str:
    """How strong it is: none, light, moderate or strong."""
    augment = recipe.augment
    if augment.randaugment:
        return "strong"
    if recipe.method_args.get("cutmix") or recipe.method_args.get("mixup"):
        return "moderate"
    light = augment.crop != "none" or augment.hflip or augment.color_jitter or augment.cutout or augment.erase
    return "light" if light else "none"


def stronger(s: Situation) -> Candidate | Omitted:
    name, level, colour = "stronger augmentation", augmentation(s.recipe), s.survey.channels == 3
    if min(s.size) < TINY_SIDE:
        return Omitted(name, f"moving an image of {s.size[0]} x {s.size[1]} by a pixel makes another image of it")
    if level == "strong":
        return Omitted(name, "it is the strongest that there is")
    if level != "none" and not s.mixes:
        return Omitted(name, f"method={s.recipe.method} has labels of its own, which mixed images would confuse")
    weight = 2.0 if s.symptoms.overfits else -0.2
    shown = s.symptoms.knows()
    if level == "none":
        small = {"augment.crop": "pad", "augment.crop_padding_mode": "reflect"}
        photos = {"augment.crop": "resized", "augment.crop_scale": (0.35, 1.0)}
        changes = {**(small if s.survey.small else photos), "augment.hflip": 0.5 if colour else 0.0}
        return Candidate(
            name,
            changes,
            f"{shown}; crops make each image new",
            "100 classes, three minutes: 36.5 with crops and flips, 27.6 without (docs/results.md)",
            weight,
        )
    if level == "light":
        jitter = JITTER if colour else 0.0
        changes = {**MIXED, "augment.color_jitter": jitter, "augment.cutout": CUTOUT if s.survey.small else 0.0}
        evidence = "paintings, 80 epochs: 61.5 with cutmix, 60.3 without (one run each, docs/results.md)"
        return Candidate(
            name, changes, f"{shown}; cutmix on half of the images, covered squares, colours", evidence, weight
        )
    return Candidate(
        name,
        dict(STRONG),
        f"{shown}; RandAugment, erasing, mixup and cutmix",
        "the 300-epoch rows of DHVT, T2T-ViT and DeiT",
        weight,
    )


def weaker(s: Situation) -> Candidate | Omitted:
    name, level = "weaker augmentation", augmentation(s.recipe)
    if level == "none":
        return Omitted(name, "there is none")
    weight = 1.2 if s.symptoms.underfits and not s.symptoms.overfits else -0.2
    shown = (
        f"it knows only {100 * s.symptoms.train_top1:.0f} % of its training images"
        if s.symptoms.underfits
        else "what is changed less is learnt faster"
    )
    evidence = "short runs lose by mixing: 24.0 without, 18.2 with mixup and cutmix in 70 s (docs/results.md)"
    if level == "strong":
        mixing = {key: value for key, value in {**MIXED, "method_args.mixup": 0.0}.items() if s.mixes}
        changes = {"augment.randaugment": "", "augment.erase": 0.0, **mixing}
    elif level == "moderate":
        changes = {"method_args.cutmix": 0.0, "method_args.mixup": 0.0}
    else:
        extras = {key: 0.0 for key in ("color_jitter", "cutout", "erase") if getattr(s.recipe.augment, key)}
        changes = {f"augment.{key}": value for key, value in extras.items()} or {"augment.crop": "none"}
        evidence = ""
        weight -= 0.0 if extras else 0.5
    return Candidate(name, changes, shown, evidence, weight)


def mirroring(s: Situation) -> Candidate | Omitted:
    if s.recipe.augment.hflip:
        weight = 0.6 if s.survey.channels == 1 else -0.4
        return Candidate(
            "no mirroring",
            {"augment.hflip": 0.0},
            "mirrored characters, and whatever has a left and a right, are other classes",
            "",
            weight,
        )
    weight = 0.6 if min(s.size) >= TINY_SIDE else -0.6
    return Candidate(
        "mirroring", {"augment.hflip": 0.5}, "twice the images, where left and right mean the same", "", weight
    )


def balance(s: Situation) -> Candidate | Omitted:
    if s.recipe.balance != "none":
        return Candidate(
            "no balance",
            {"balance": "none"},
            f"balance={s.recipe.balance} costs accuracy where rare classes are rare in use, too",
            "",
            0.1,
        )
    if s.symptoms.imbalance < UNBALANCED:
        return Omitted(
            "balance", f"the largest class has only {s.symptoms.imbalance:.1f} times the images of the smallest"
        )
    worst = f"; the worst class is {s.symptoms.worst[0][0]}" if s.symptoms.worst else ""
    reason = f"the largest class has {s.symptoms.imbalance:.0f} times the images of the smallest{worst}"
    return Candidate("balance", {"balance": "sampler"}, reason, "", 0.5)


# --- the training -----------------------------------------------------------------------------------------------------


def averaging(s: Situation) -> Candidate | Omitted:
    if s.recipe.ema_decay:
        return Candidate(
            "no averaging", {"ema_decay": 0.0}, "a schedule that ends at a rate of almost 0 does as much", "", -0.3
        )
    decay = LONG_DECAY if s.steps >= LONG_RUN_STEPS else SHORT_DECAY
    evidence = "usual in the 300-epoch recipes; brought nothing in three minutes (docs/results.md)"
    return Candidate(
        "averaging", {"ema_decay": decay}, "the mean of the last weights is steadier than the last ones", evidence, 0.3
    )


def higher_rate(s: Situation) -> Candidate | Omitted:
    weight = 0.3 if s.symptoms.underfits else 0.0
    return Candidate(
        "higher rate", {"optim.lr": 2 * s.recipe.optim.lr}, "larger steps get further in a short time", "", weight
    )


def lower_rate(s: Situation) -> Candidate | Omitted:
    weight = 0.1 if s.symptoms.loss_falls else 0.2
    return Candidate("lower rate", {"optim.lr": s.recipe.optim.lr / 2}, "smaller steps are steadier", "", weight)


def _kept_args(s: Situation) -> dict[str, Any]:
    """What methods that mix have in common."""
    known = ("mixup", "cutmix", "mix_prob", "label_smoothing")
    return {key: value for key, value in s.recipe.method_args.items() if key in known}


def _method_rule(name: str, trial: Trial) -> Rule:
    """The rule of a method, by what it says of itself."""

    def rule(s: Situation) -> Candidate | Omitted:
        if not s.mixes:
            return Omitted(trial.what, f"the run learns by method={s.recipe.method} already")
        args = {**trial.args, **(_kept_args(s) if trial.keeps_mixing else {})}
        weight = trial.plain_weight if s.plain else trial.weight
        return Candidate(trial.what, {"method": name, "method_args": args}, trial.reason, trial.evidence, weight)

    return rule


def pretraining(s: Situation) -> Candidate | Omitted:
    name = "pre-training"
    if not s.init:
        return Omitted(name, "no pre-trained weights were given")
    if s.init_reason:
        return Omitted(name, s.init_reason)
    if s.recipe.init == s.init:
        return Omitted(name, f"the run began with {s.init}")
    rate = s.recipe.optim.lr / 4
    evidence = "CIFAR-100, ViT-S: 61.25 from scratch, 80.91 pre-trained (Bootstrapping paper, table 1)"
    return Candidate(
        name, {"init": s.init, "optim.lr": rate}, f"begins with {s.init}, at a quarter of the rate", evidence, 2.5
    )


RULES: tuple[Rule, ...] = (
    larger,
    smaller,
    finer_patches,
    coarser_patches,
    larger_images,
    smaller_images,
    stronger,
    weaker,
    mirroring,
    averaging,
    balance,
    higher_rate,
    lower_rate,
    dhvt,
    *(_method_rule(name, trial) for name, trial in find_trials().items()),
    pretraining,
)


def combine(first: Candidate, second: Candidate) -> Candidate | None:
    """Both changes at once; None where they touch the same settings."""
    if _groups(first) & _groups(second):
        return None
    return Candidate(
        f"{first.name} + {second.name}",
        {**first.changes, **second.changes},
        "both were better than the run's own recipe in the round before",
        parents=(first.name, second.name),
    )


def _groups(candidate: Candidate) -> set[str]:
    """What a candidate changes, as coarse as replacing whole groups is: a method brings its arguments, a network its rate."""
    own = {key.split(".")[0] if key.startswith(("model", "optim", "method")) else key for key in candidate.changes}
    return {"model" if key == "model_args" else "method" if key == "method_args" else key for key in own}
