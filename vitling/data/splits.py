"""Dividing labelled images: a validation split, folds, and a fraction of the training data. Always class by class.

Where images come in groups (of one patient, slide, video), a group stays whole, and the classes are as close to their proportions as whole
groups allow. scikit-learn's StratifiedGroupKFold has the same aim; ours is written here because a run's validation images must be the same
ones with every version of it, because shares other than 1 / k are asked for, and because no class may vanish from training.
"""

from collections.abc import Sequence

import numpy as np

from vitling.errors import UserError, did_you_mean

RULES = ("vitling", "bootstrapping")
MOST_ROUNDS = 20  # in which groups change sides; two or three are usual


def carve_validation(
    labels: np.ndarray,
    *,
    fraction: float = 0.1,
    seed: int = 0,
    class_names: Sequence[str] | None = None,
    groups: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Split off a part for validation in proportion to the classes; each class keeps at least one image on both sides.

    With `groups`, one per image, none is on both sides. They come in random order, again and again: one goes to validation, or back, where that
    brings the classes closer to their share, until none does. Then each class that validation still lacks sends the group that disturbs
    least. A class of a single group stays in training. Returns the sorted indices of (train, validation).
    """
    members = _members(labels, class_names, at_least=2)
    sizes = np.array([len(indices) for indices in members])
    if not 0 < fraction < 1:
        raise UserError(f"validation fraction {fraction} is not between 0 and 1; try 0.1")
    if groups is not None:
        return _carve_groups(_Groups(labels, groups, len(sizes)), fraction, seed)
    count = min(max(round(fraction * sizes.sum()), len(sizes)), sizes.sum() - len(sizes))
    taken = _apportion(sizes, count)
    chosen = [_shuffled(indices, seed, c)[:n] for c, (indices, n) in enumerate(zip(members, taken, strict=True))]
    validation = np.sort(np.concatenate(chosen))
    return np.setdiff1d(np.arange(len(labels)), validation), validation


def k_folds(
    labels: np.ndarray,
    k: int,
    seed: int = 0,
    *,
    class_names: Sequence[str] | None = None,
    groups: np.ndarray | None = None,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """k ways to split into (train, validation): every image is in validation once, each fold has its share of a class.

    A class with fewer than k images is absent from the validation of some folds, never from training. With `groups`, one per image, each is
    in one fold: the largest first, to the fold that has least of its classes so far.
    """
    if not 2 <= k <= len(labels):
        raise UserError(f"{k} folds of {len(labels)} images; choose 2 to {len(labels)}")
    members = _members(labels, class_names, at_least=2)
    if groups is not None:
        return _deal_groups(_Groups(labels, groups, len(members)), k, seed, class_names)
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
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """The sorted indices of a part of the images, the same part of every class; 10 % lies inside 50 %.

    Rule "vitling" depends on the seed and keeps at least one image of a class. Rule "bootstrapping" is that of the
    authors' release: a generator seeded with the class's number, so there is one draw whatever the seed, and the images
    must be in the order of their sorted file names. With `groups`, one per image, whole groups are taken, always one of the class that has the
    least of its images so far, until the number of images is as close as it gets; the authors' rule knows no groups.
    """
    if not 0 < fraction <= 1:
        raise UserError(f"fraction {fraction} is not in (0, 1]; 0.1 takes a tenth of every class")
    if rule not in RULES:
        raise UserError(f"unknown rule '{rule}' for taking a fraction. {did_you_mean(rule, RULES)}")
    members = _members(labels, class_names, at_least=1)
    if groups is not None:
        if rule != "vitling":
            raise UserError(
                f"rule {rule} for taking a fraction knows no groups; use vitling's, or leave the groups out"
            )
        return _take_groups(_Groups(labels, groups, len(members)), fraction, seed)
    kept = []
    for c, indices in enumerate(members):
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


class _Groups:
    """Groups by number, with how many images of which class each has."""

    def __init__(self, labels: np.ndarray, groups: np.ndarray, classes: int):
        labels = np.asarray(labels)
        if len(groups) != len(labels):
            raise UserError(f"{len(groups)} groups for {len(labels)} images; give one group per image")
        names, self.of_image = np.unique(np.asarray(groups), return_inverse=True)
        self.of_image = self.of_image.reshape(-1)
        self.count = len(names)
        if self.count < 2:
            raise UserError(
                f"all images are of one group ('{names[0]}'), which cannot be divided; check what names the groups"
            )
        self.sizes = np.bincount(self.of_image)
        self.totals = np.bincount(labels, minlength=classes)
        # Most groups have few classes: pairs of group and class, not a table of all.
        pairs, counts = np.unique(self.of_image.astype(np.int64) * classes + labels, return_counts=True)
        first = np.searchsorted(pairs, np.arange(1, self.count) * classes)
        self.classes = np.split(pairs % classes, first)  # of each group
        # And which part of all images of the class those are.
        self.shares = [c / self.totals[of] for c, of in zip(np.split(counts, first), self.classes, strict=True)]
        self.having = np.bincount(pairs % classes, minlength=classes)  # groups that have a class
        by_class = np.argsort(pairs % classes, kind="stable")
        self.of_class = np.split((pairs // classes)[by_class], np.cumsum(self.having)[:-1])

    def images(self, chosen: np.ndarray) -> np.ndarray:
        """The sorted indices of the images of some groups, given as a mask."""
        return np.flatnonzero(chosen[self.of_image])


def _carve_groups(groups: _Groups, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(seed).permutation(groups.count)
    rank = np.argsort(order)
    held = np.zeros(groups.count, bool)
    share = np.zeros(len(groups.totals))  # of each class, in validation
    left = groups.having.copy()  # groups of each class in training

    def gain(group: int) -> float:
        """By how much validation comes closer to its share of every class, as a sum of squares, when the group changes sides."""
        now = share[groups.classes[group]] - fraction
        step = -groups.shares[group] if held[group] else groups.shares[group]
        return float((now**2 - (now + step) ** 2).sum())

    def move(group: int) -> None:
        sign = -1 if held[group] else 1
        share[groups.classes[group]] += sign * groups.shares[group]
        left[groups.classes[group]] -= sign
        held[group] = not held[group]

    for _ in range(MOST_ROUNDS):
        moved = False
        for group in order:
            if gain(group) > 1e-12 and (held[group] or (left[groups.classes[group]] > 1).all()):
                move(group)
                moved = True
        if not moved:
            break
    share[np.abs(share) < 1e-12] = 0  # what went there and back
    for c in np.flatnonzero((share == 0) & (groups.having > 1)):
        able = [g for g in groups.of_class[c] if not held[g] and (left[groups.classes[g]] > 1).all()]
        if able and share[c] == 0:  # a group that an earlier class sent may have brought some
            move(max(able, key=lambda g: (gain(g), rank[g])))
    if not held.any():
        raise UserError(
            "no group can be held out for validation without taking a class from training; each class needs two groups at least"
        )
    return groups.images(~held), groups.images(held)


def _deal_groups(
    groups: _Groups, k: int, seed: int, class_names: Sequence[str] | None
) -> list[tuple[np.ndarray, np.ndarray]]:
    if k > groups.count:
        raise UserError(f"{k} folds of {groups.count} groups; choose 2 to {groups.count}")
    if single := [_name(c, class_names) for c in np.flatnonzero(groups.having == 1).tolist()]:
        raise UserError(
            f"{name_some(single, 'class', 'classes')} of a single group: one fold would have to do without; folds need two groups of each class"
        )
    order = np.random.default_rng(seed).permutation(groups.count)
    order = order[np.argsort(-groups.sizes[order], kind="stable")]
    share, images = np.zeros((k, len(groups.totals))), np.zeros(k, np.int64)
    place = np.full(groups.count, -1)
    left = groups.having.copy()
    for group in order:
        of, added = groups.classes[group], groups.shares[group]
        # By how much the squares of the shares grow, less what they grow by in any fold.
        crowding = (2 * share[:, of] * added).sum(axis=1)
        # The last group of a class does not join all the others of it: that fold would train without the class.
        last = of[left[of] == 1]
        there = share[:, last] > 0
        crowding[(there & (there.sum(axis=0) == 1)).any(axis=1)] = np.inf
        place[group] = fold = np.lexsort((images, np.round(crowding, 12)))[0]
        share[fold, of] += added
        images[fold] += groups.sizes[group]
        left[of] -= 1
    if (share > 1 - 1e-9).any():
        raise UserError(
            f"groups of several classes each leave no way found to {k} folds that all train on every class; choose more folds, or another seed"
        )
    return [(groups.images(place != fold), groups.images(place == fold)) for fold in range(k)]


def _take_groups(groups: _Groups, fraction: float, seed: int) -> np.ndarray:
    order = np.random.default_rng(seed).permutation(groups.count)
    waiting: list[list[int]] = [[] for _ in groups.totals]
    for group in order[::-1]:  # so that the next one is the last of a list
        for c in groups.classes[group]:
            waiting[c].append(group)
    share, images = np.zeros(len(groups.totals)), 0
    taken = np.zeros(groups.count, bool)
    wanted = fraction * groups.sizes.sum()
    while not taken.all():
        c = int(share.argmin())
        while taken[waiting[c][-1]]:
            waiting[c].pop()
        group = waiting[c][-1]
        # The next group may overshoot by more than now is missing; each class has one at least.
        if share[c] > 0 and images + groups.sizes[group] - wanted > wanted - images:
            break
        taken[group] = True
        share[groups.classes[group]] += groups.shares[group]
        images += groups.sizes[group]
        for of in groups.classes[group]:
            if share[of] > 1 - 1e-9:
                share[of] = np.inf
    return groups.images(taken)


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
