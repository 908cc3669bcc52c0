"""Dividing labelled images: a validation split, folds, and a fraction of the training data. Always class by class."""

from collections.abc import Sequence

import numpy as np

from vitling.errors import UserError, did_you_mean

RULES = ("vitling", "bootstrapping")


def carve_validation(
    labels: np.ndarray,
    *,
    fraction: float = 0.1,
    seed: int = 0,
    class_names: Sequence[str] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Split off a part for validation in proportion to the classes; each class keeps at least one image on both sides.

    Returns the sorted indices of (train, validation).
    """
    members = _members(labels, class_names, at_least=2)
    sizes = np.array([len(indices) for indices in members])
    if not 0 < fraction < 1:
        raise UserError(f"validation fraction {fraction} is not between 0 and 1; try 0.1")
    count = min(max(round(fraction * sizes.sum()), len(sizes)), sizes.sum() - len(sizes))
    taken = _apportion(sizes, count)
    chosen = [_shuffled(indices, seed, c)[:n] for c, (indices, n) in enumerate(zip(members, taken, strict=True))]
    validation = np.sort(np.concatenate(chosen))
    return np.setdiff1d(np.arange(len(labels)), validation), validation


def k_folds(
    labels: np.ndarray, k: int, seed: int = 0, *, class_names: Sequence[str] | None = None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """k ways to split into (train, validation): every image is in validation once, each fold has its share of a class.

    A class with fewer than k images is absent from the validation of some folds, never from training.
    """
    if not 2 <= k <= len(labels):
        raise UserError(f"{k} folds of {len(labels)} images; choose 2 to {len(labels)}")
    members = _members(labels, class_names, at_least=2)
    # Dealt like cards, going on where the last class stopped: folds then differ by one image at most.
    dealt = np.concatenate([_shuffled(indices, seed, c) for c, indices in enumerate(members)])
    everything = np.arange(len(labels))
    folds = [np.sort(dealt[fold::k]) for fold in range(k)]
    return [(np.setdiff1d(everything, fold), fold) for fold in folds]


def take_fraction(
    labels: np.ndarray,
    fraction: float,
    seed: int = 0,
    rule: str = "vitling",
    *,
    class_names: Sequence[str] | None = None,
) -> np.ndarray:
    """The sorted indices of a part of the images, the same part of every class; 10 % lies inside 50 %.

    Rule "vitling" depends on the seed and keeps at least one image of a class. Rule "bootstrapping" is that of the
    authors' release: a generator seeded with the class's number, so there is one draw whatever the seed, and the images
    must be in the order of their sorted file names.
    """
    if not 0 < fraction <= 1:
        raise UserError(f"fraction {fraction} is not in (0, 1]; 0.1 takes a tenth of every class")
    if rule not in RULES:
        raise UserError(f"unknown rule '{rule}' for taking a fraction. {did_you_mean(rule, RULES)}")
    kept = []
    for c, indices in enumerate(_members(labels, class_names, at_least=1)):
        if rule == "vitling":
            kept.append(_shuffled(indices, seed, c)[: max(1, int(fraction * len(indices) + 0.5))])
            continue
        order = indices.tolist()
        np.random.default_rng(c).shuffle(order)
        if not (keep := round(fraction * len(order))):
            raise UserError(
                f"fraction {fraction} leaves nothing of class {_name(c, class_names)} ({len(order)} images); "
                "take more, or use rule=vitling, which keeps one"
            )
        kept.append(np.array(order[:keep], dtype=np.int64))
    return np.sort(np.concatenate(kept))


def _members(labels: np.ndarray, class_names: Sequence[str] | None, at_least: int) -> list[np.ndarray]:
    """The indices of each class, in order. Every class must have `at_least` so many."""
    labels = np.asarray(labels)
    if not len(labels):
        raise UserError("there are no images to divide")
    members = [np.flatnonzero(labels == c) for c in range(len(class_names or ()) or int(labels.max()) + 1)]
    few = [_name(c, class_names) for c, indices in enumerate(members) if len(indices) < at_least]
    if few:
        needed = "two images, one to learn from and one to validate" if at_least == 2 else "one image"
        raise UserError(f"{name_some(few, 'class', 'classes')} cannot be divided: each needs at least {needed}")
    return members


def _apportion(sizes: np.ndarray, count: int) -> np.ndarray:
    """How many to take of each class: in proportion, exactly `count` in all, at least one, never the last one."""
    quota = count * sizes / sizes.sum()
    taken = np.maximum(np.floor(quota).astype(np.int64), 1)
    while taken.sum() < count:
        taken[np.argmax(np.where(taken < sizes - 1, quota - taken, -np.inf))] += 1
    while taken.sum() > count:
        taken[np.argmax(np.where(taken > 1, taken - quota, -np.inf))] -= 1
    return taken


def _shuffled(indices: np.ndarray, seed: int, c: int) -> np.ndarray:
    # A generator of its own per class: adding images to one class leaves the choice in the others as it was.
    return np.random.default_rng([seed, c]).permutation(indices)


def _name(c: int, class_names: Sequence[str] | None) -> str:
    return class_names[c] if class_names is not None else str(c)


def name_some(names: Sequence[str], one: str, many: str, *, show: int = 5) -> str:
    """'class 'a'' or 'classes 'a', 'b' and 7 more', for one-line messages."""
    shown = ", ".join(f"'{name}'" for name in names[:show])
    more = f" and {len(names) - show} more" if len(names) > show else ""
    return f"{one if len(names) == 1 else many} {shown}{more}"
