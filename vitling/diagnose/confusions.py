"""Classes that are taken for each other."""

from vitling.evaluation.metrics import Evaluation


def mixed_up(evaluation: Evaluation, most: int = 8) -> list[dict]:
    """The pairs of classes that are taken for each other most often, in either direction."""
    counts, names = evaluation.confusion, evaluation.class_names
    pairs = [(counts[i][j] + counts[j][i], i, j) for i in range(len(names)) for j in range(i)]
    return [
        {"first": names[j], "second": names[i], "images": count}
        for count, i, j in sorted(pairs, key=lambda pair: -pair[0])[:most]
        if count
    ]
