"""What one watches of a training: a small curve of the validation score, and whether the run overfits."""

from vitling.data.targets import find_score

BARS = "▁▂▃▄▅▆▇█"
RISEN = 1.1  # times its lowest: from there on the validation loss is said to rise
PATIENCE = 0.15  # of all epochs, that the lowest validation loss must lie back


class Watch:
    """The validations of a run so far."""

    def __init__(self) -> None:
        self.scores: list[float] = []
        self.lowest: tuple[float, int] | None = None  # validation loss, and its epoch
        self.overfits = False

    def add(self, record: dict) -> None:
        score = find_score(record)
        assert score, "what learns without labels is not watched"
        self.scores.append(record[score.recorded])
        if self.lowest is None or record["val_loss"] < self.lowest[0]:
            self.lowest = record["val_loss"], record["epoch"]

    def curve(self, width: int) -> str:
        """The scores so far, a character for each or for several of them, between their lowest and their highest."""
        values, width = self.scores, min(width, len(self.scores))
        if width < 2:
            return ""
        low, high = min(values), max(values)
        shown = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
        return "".join(BARS[int((value - low) / ((high - low) or 1) * (len(BARS) - 1))] for value in shown)

    def warning(self, record: dict, epochs: float) -> str | None:
        """That it overfits, said once: the validation loss has been rising while the training goes on."""
        assert self.lowest is not None, "a validation was added"
        loss, epoch = self.lowest
        risen = record["val_loss"] > RISEN * loss and record["epoch"] - epoch >= PATIENCE * epochs
        if self.overfits or not risen:
            return None
        self.overfits = True
        return (
            f"overfitting: the validation loss was lowest in epoch {epoch} ({loss:.3f}, now {record['val_loss']:.3f}). The best weights are "
            "kept; more epochs alone will not help."
        )
