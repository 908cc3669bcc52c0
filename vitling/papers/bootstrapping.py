"""The tables of "Bootstrapping ViTs: Towards Liberating Vision Transformers from Pre-training" (Zhang et al. 2022)."""

from dataclasses import replace
from typing import Any

from vitling.papers.table import (
    CIFAR10,
    CIFAR100,
    IMAGENET,
    NO_NANO,
    Data,
    Description,
    Figure,
    Illustration,
    Row,
    Table,
    nano,
)
from vitling.recipes import Recipe

_MEASURED = "last epoch of one run, on the test set"
_FINE_TUNED = "pre-training on ImageNet has no nano counterpart"

# -- nano networks: S has six blocks, B is deeper -----------------------------------------------------------------------


def _vit(size: str = "s", **changes) -> Recipe:
    deeper: dict[str, Any] = {} if size == "s" else {"depth": 8}
    return nano("boot_vit_nano", **deeper, **changes)


def _agent(size: str = "s", **changes) -> Recipe:
    # as Agent-B is to Agent-S
    deeper: dict[str, Any] = {} if size == "s" else {"depth": 8, "down_sample": [1, 5], "pre_norm": False}
    return nano("agent_nano", **deeper, **changes)


def _with_sam(recipe: Recipe) -> Recipe:
    return replace(recipe, optim=replace(recipe.optim, sam_rho=0.1))


def joint(size: str = "s", **method_args: Any) -> Recipe:
    """The nano ViT with its agent; `method_args` as for method=bootstrap."""
    return _vit(size, method="bootstrap", method_args=method_args)


_NANO = {
    "resnet50": nano("diag_resnet18_nano"),
    **{f"agent_{size}": _agent(size) for size in "sb"},
    **{f"vit_{size}": _vit(size) for size in "sb"},
    **{f"vit_{size}_sam": _with_sam(_vit(size)) for size in "sb"},
    **{f"vit_{size}_sparse": _vit(size, attention="entmax") for size in "sb"},
    **{f"vit_{size}_joint": joint(size) for size in "sb"},
    **{f"vit_{size}_shared": joint(size, share=True) for size in "sb"},
}

# -- Table 1 -----------------------------------------------------------------------------------------------------------

_AGENT_COUNT = "no released configuration has the paper's FLOPs; computed as convolutions"
_BASE_SIZE = "8.73 M is the base agent's size; the released one is res-like"
_SLIP = "25.91 M fits no agent, probably a slip for 25.09 M"
_INIT_S = "starts from a run of bootstrapping/imagenet_vit_s"
_INIT_B = "starts from DeiT-S's weights, which have the same sizes"

# fmt: off
# label, recipe, top-1 on CIFAR-10 and CIFAR-100, millions of parameters on both, 10^9 multiply-adds, network, note
_TABLE_1: tuple[tuple[Any, ...], ...] = (
    ("EfficientNet-B2",     "efficientnet_b2",  94.14, 75.55, 7.71, 7.84, 0.70, "model", "computed 0.66 G"),
    ("ResNet-50",           "resnet50",         94.92, 77.57, 23.53, 23.71, 4.14, "model", ""),
    ("Agent-S",             "agent_s",          94.18, 74.62, 8.66, 8.73, 3.37, "model", f"{_AGENT_COUNT}; {_BASE_SIZE}"),
    ("Agent-B",             "agent_b",          94.83, 74.78, 25.05, 25.91, 9.46, "model", f"{_AGENT_COUNT}; {_SLIP}"),
    ("ViT-S",               "vit_s",            87.32, 61.25, 6.28, 6.30, 1.37, "model", ""),
    ("ViT-S-SAM",           "vit_s_sam",        87.77, 62.60, 6.28, 6.30, 1.37, "model", ""),
    ("ViT-S-Sparse",        "vit_s_sparse",     87.43, 62.29, 6.28, 6.30, 1.37, "model", ""),
    ("ViT-B",               "vit_b",            79.24, 53.07, 21.67, 21.70, 4.62, "model", ""),
    ("ViT-B-SAM",           "vit_b_sam",        86.57, 58.18, 21.67, 21.70, 4.62, "model", ""),
    ("ViT-B-Sparse",        "vit_b_sparse",     83.87, 57.22, 21.67, 21.70, 4.62, "model", ""),
    ("ViT-S, pre-trained",  "vit_s_pretrained", 95.70, 80.91, 6.28, 6.30, 1.37, "model", _INIT_S),
    ("ViT-B, pre-trained",  "vit_b_pretrained", 97.17, 84.95, 21.67, 21.70, 4.62, "model", _INIT_B),
    ("ViT-S, joint",        "vit_s_joint",      95.14, 76.19, 6.28, 6.30, 1.37, "model", ""),
    ("Agent-S, joint",      "vit_s_joint",      94.90, 74.06, None, None, None, "agent", ""),
    ("ViT-B, joint",        "vit_b_joint",      95.00, 77.83, 21.67, 21.70, 4.62, "model", ""),
    ("Agent-B, joint",      "vit_b_joint",      95.06, 76.57, None, None, None, "agent", ""),
    ("ViT-S, shared",       "vit_s_shared",     93.72, 75.50, 6.28, 6.30, 1.37, "model", ""),
    ("Agent-S, shared",     "vit_s_shared",     93.22, 74.06, None, None, None, "agent", ""),
    ("ViT-B, shared",       "vit_b_shared",     93.34, 75.71, 21.67, 21.70, 4.62, "model", ""),
    ("Agent-B, shared",     "vit_b_shared",     92.66, 74.11, None, None, None, "agent", ""),
)
# fmt: on


def _table_1() -> tuple[Row, ...]:
    rows = []
    for column, (data, prefix) in enumerate(((CIFAR10, "cifar10"), (CIFAR100, "cifar100"))):
        for label, recipe, *top1, params10, params100, macs, network, note in _TABLE_1:
            rows.append(
                Row(
                    label,
                    top1[column],
                    f"bootstrapping/{prefix}_{recipe}",
                    _NANO.get(recipe),
                    params=(params10, params100)[column],
                    macs=macs,
                    data=data,
                    network=network,
                    note=note,
                    no_nano=_FINE_TUNED if "pretrained" in recipe else NO_NANO,
                )
            )
    return tuple(rows)


table1 = Table("Results on CIFAR-10 and CIFAR-100", _MEASURED, _table_1())

# -- Table 2 -----------------------------------------------------------------------------------------------------------

_STRUCTURE = "it describes networks; there is nothing to train"


def _described(label: str, recipe: str) -> Row:
    describes = f"bootstrapping/cifar100_{recipe}"
    return Row(label, None, describes=describes, data=CIFAR100, why_not=_STRUCTURE, no_nano=_STRUCTURE)


table2 = Description(
    "Sizes of the ViTs and their agents",
    "read off the configuration",
    (
        _described("ViT-S", "vit_s"),
        _described("ViT-B", "vit_b"),
        _described("Agent-S", "agent_s"),
        _described("Agent-B", "agent_b"),
    ),
    printed={
        "ViT-S": {"layers": 6, "width": 288, "heads": 9},
        "ViT-B": {"layers": 12, "width": 384, "heads": 6},
        "Agent-S": {"layers": 6, "width": 288, "heads": 9},
        "Agent-B": {"layers": 12, "width": 384, "heads": 6},
    },
)

# -- Table 3 -----------------------------------------------------------------------------------------------------------

# fmt: off
_TABLE_3 = (  # label, recipe, top-1 with 5 %, 10 % and 50 % of the images
    ("ResNet-50",    "resnet50",     35.43, 50.86, 70.05),
    ("Agent-B",      "agent_b",      35.28, 47.46, 68.13),
    ("ViT-B",        "vit_b",        16.60, 28.11, 63.40),
    ("ViT-B-SAM",    "vit_b_sam",    16.67, 28.66, 64.37),
    ("ViT-B-Sparse", "vit_b_sparse", 10.39, 28.92, 66.01),
    ("joint",        "vit_b_joint",  36.01, 49.73, 71.36),
    ("shared",       "vit_b_shared", 33.06, 45.75, 66.48),
)
# fmt: on
_FRACTIONS = {
    percent: Data(
        f"{percent} % of ImageNet",
        IMAGENET.classes,
        round(IMAGENET.images * percent / 100),
        source=IMAGENET.name,
        test_split=IMAGENET.test_split,
    )
    for percent in (5, 10, 50)
}
table3 = Table(
    "Part of ImageNet",
    "last epoch of one run, on the validation set",
    tuple(
        Row(
            label,
            top1[column],
            f"bootstrapping/imagenet_{percent}pct_{recipe}",
            replace(_NANO[recipe], fraction=percent / 100),
            data=data,
        )
        for column, (percent, data) in enumerate(_FRACTIONS.items())
        for label, recipe, *top1 in _TABLE_3
    ),
)

# -- Table 4 -----------------------------------------------------------------------------------------------------------

VIT_S = _NANO["vit_s"]
AGENT_S = _NANO["agent_s"]
KD_ONLY = joint(feature_weight=0.0)
FEATURES_ONLY = joint(mutual_weight=0.0)


def _ablation(label: str, top1: float | None, recipe: str, nano_recipe: Recipe) -> Row:
    return Row(label, top1, f"bootstrapping/cifar100_{recipe}", nano_recipe, data=CIFAR100)


# fmt: off
_TABLE_4: tuple[tuple[str, float, float, str, Recipe], ...] = (  # label, top-1, hours of training, recipe, nano recipe
    ("alone",                   61.25, 3.3, "vit_s",                        VIT_S),
    ("predictions only",        67.16, 3.6, "vit_s_kd_only",                KD_ONLY),
    ("features only, no decay", 73.59, 3.8, "vit_s_features_only_no_decay", joint(mutual_weight=0.0, feature_decay=False)),
    ("features only",           74.94, 3.8, "vit_s_features_only",          FEATURES_ONLY),
    ("features only, AP-2D",    71.06, 6.6, "vit_s_features_only_2d",       joint(mutual_weight=0.0, feature_pool="2d")),
    ("both, no decay",          75.15, 3.8, "vit_s_joint_no_decay",         joint(feature_decay=False)),
    ("both",                    76.19, 3.8, "vit_s_joint",                  joint()),
)
# fmt: on
table4 = Table(
    "What the ViT learns from its agent, ViT-S on CIFAR-100",
    f"{_MEASURED}; hours of training on two A100",
    tuple(
        replace(_ablation(label, top1, recipe, nano_recipe), hours=hours)
        for label, top1, hours, recipe, nano_recipe in _TABLE_4
    ),
)

# -- Table 5 -----------------------------------------------------------------------------------------------------------

_BASE_JOINT = joint(agent_args=dict(stem="base"))
_BASE_ALONE = _agent(stem="base", down_sample=[])
_TABLES_DIFFER = "Table 1 says 74.62 for the same network"


def _agent_choice(label: str, top1: float, recipe: str, nano_recipe: Recipe, network="model", note="") -> Row:
    row = _ablation(label, top1, recipe, nano_recipe)
    return replace(row, network=network, note=note)


# fmt: off
table5 = Table(
    "The agent's form, ViT-S on CIFAR-100",
    _MEASURED,
    (
        _agent_choice("Agent-S base, alone",     72.73, "agent_s_base",           _BASE_ALONE),
        _agent_choice("ViT-S with base",         73.18, "vit_s_joint_base_agent", _BASE_JOINT),
        _agent_choice("Agent-S base, joint",     73.79, "vit_s_joint_base_agent", _BASE_JOINT, "agent"),
        _agent_choice("Agent-S res-like, alone", 74.78, "agent_s",                AGENT_S, note=_TABLES_DIFFER),
        _agent_choice("ViT-S with res-like",     76.19, "vit_s_joint",            joint()),
        _agent_choice("Agent-S res-like, joint", 74.06, "vit_s_joint",            joint(), "agent"),
    ),
)
# fmt: on

# -- Figure 5 ----------------------------------------------------------------------------------------------------------

_DRAWN = "drawn, not printed"

_CURVES_OF = (  # label, recipe, nano recipe
    ("ViT", "vit_s", VIT_S),
    ("Agent", "agent_s", AGENT_S),
    ("Joint", "vit_s_joint", joint()),
    ("Shared", "vit_s_shared", joint(share=True)),
    ("Mutual", "vit_s_kd_only", KD_ONLY),
    ("Feat", "vit_s_features_only", FEATURES_ONLY),
)
fig5 = Figure(
    "Learning curves, ViT-S on CIFAR-10 and CIFAR-100",
    _DRAWN,
    (
        *(
            Row(label, None, f"bootstrapping/cifar10_{recipe}", small, data=CIFAR10)
            for label, recipe, small in _CURVES_OF[:4]
        ),
        *(_ablation(label, None, recipe, small) for label, recipe, small in _CURVES_OF),
    ),
    kind="curves",
    groups={
        "alone, joint and shared, on CIFAR-10": tuple(f"{label}, CIFAR-10" for label, *_ in _CURVES_OF[:4]),
        "alone, joint and shared, on CIFAR-100": tuple(f"{label}, CIFAR-100" for label, *_ in _CURVES_OF[:4]),
        "what is learnt from the agent, on CIFAR-100": tuple(
            f"{label}, CIFAR-100" for label in ("ViT", "Mutual", "Feat", "Joint", "Agent")
        ),
    },
)

# -- Figure 6 ----------------------------------------------------------------------------------------------------------

# The text does not print the values that were tried; these are ours, the paper's choice among them.
_TRIED = {
    "mutual_weight": (0.1, 1.0, 10.0),
    "feature_weight": (0.1, 1.0, 10.0, 100.0),
    "temperature": (1.0, 2.0, 4.0, 8.0),
}


def _tried(setting: str, value: float) -> Row:
    return Row(
        f"{setting} {value:g}",
        None,
        "bootstrapping/cifar100_vit_s_joint",
        joint("s", **{setting: value}),
        data=CIFAR100,
        change={f"method_args.{setting}": value},
    )


fig6 = Figure(
    "Sensitivity to the weights and the temperature, ViT-S on CIFAR-100",
    _DRAWN,
    tuple(_tried(setting, value) for setting, values in _TRIED.items() for value in values),
    kind="sensitivity",
    groups={setting: tuple(f"{setting} {value:g}" for value in values) for setting, values in _TRIED.items()},
)

# -- Drawings ----------------------------------------------------------------------------------------------------------

fig1 = Illustration("A ViT learns from an agent CNN that shares its weights", "`method=bootstrap` in docs/methods.md")
fig2 = Illustration("Optimising a ViT along with its agent", "`Bootstrap` in vitling/methods/bootstrap.py")
fig3 = Illustration(
    "A ViT, the base and the res-like agent", "`vitling reproduce bootstrapping/table2`, which has their sizes"
)
fig4 = Illustration("Bootstrapping and multi-task learning", "`align_gradients` in vitling/methods/bootstrap.py")
