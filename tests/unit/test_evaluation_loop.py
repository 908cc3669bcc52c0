"""The evaluation loop: which batches it sees, and in which mode it leaves model and torch."""

import pytest
import torch
from accelerate import Accelerator
from recorder import Recorder
from torch import nn

from vitling.data.pipeline.loader import Resident
from vitling.data.pipeline.preprocessing import Preprocessing
from vitling.evaluation.loop import evaluate_batches, predict_logits, validate

SEEN = Preprocessing((4, 4), 3, "resize", 255, (0.5,) * 3, (0.25,) * 3)


class Small(nn.Module):
    """Dropout and a batch norm, which give other outputs in training mode."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.head = nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Linear(48, 5)

    def forward(self, x):
        return self.head(self.drop(self.norm(x).flatten(1)))


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Small()
    model.norm.running_mean += 0.3
    return model


@pytest.fixture
def split():
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (10, 3, 4, 4), generator=generator, dtype=torch.uint8)
    return Resident(images, torch.randint(0, 5, (10,), generator=generator))


def test_logits_are_those_of_the_normalised_images_in_evaluation_mode(model, split):
    found = predict_logits(model, split, SEEN)
    with torch.no_grad():
        assert torch.equal(found, model.eval()((split.images.float() - 127.5) / 63.75))


def test_between_batches_every_module_and_torch_are_in_the_mode_they_were_in(model, split):
    model.train()
    model.norm.eval()  # a frozen part
    for outputs, _ in evaluate_batches(model, split, SEEN, batch_size=4):
        assert not outputs.requires_grad
        assert torch.is_grad_enabled()
        assert (model.training, model.norm.training, model.drop.training) == (True, False, True)
    assert torch.equal(model.norm.num_batches_tracked, torch.tensor(0))


def test_processes_share_the_batches_and_a_limit_counts_them(model, split):
    def labels(**options):
        return [labels.tolist() for _, labels in evaluate_batches(model, split, SEEN, batch_size=3, **options)]

    parts = [part.tolist() for part in split.labels.split(3)]
    assert labels() == parts
    assert labels(rank=0, world=2) == parts[0::2]
    assert labels(rank=1, world=2) == parts[1::2]
    assert labels(batches=2) == parts[:2]


def test_another_function_than_the_model_can_be_asked_and_progress_is_told(model, split):
    heard = Recorder()
    found = evaluate_batches(
        model, split, SEEN, function=lambda x: x.double().mean((1, 2, 3)), batch_size=4, task="means", callback=heard
    )
    means = torch.cat([mean for mean, _ in found])
    torch.testing.assert_close(means, SEEN.normalize(split.images).mean((1, 2, 3)))
    assert means.dtype == torch.float32
    assert heard.progress == [("means", 4, 10), ("means", 8, 10), ("means", 10, 10)]


def test_validation_is_the_accuracy_and_the_mean_loss(model, split):
    logits = predict_logits(model, split, SEEN)
    found = validate(model, split, SEEN, Accelerator(cpu=True))
    assert found["top1"] == (logits.argmax(1) == split.labels).double().mean().item()
    assert found["loss"] == pytest.approx(nn.functional.cross_entropy(logits, split.labels).item(), rel=1e-6)
    assert found["images"] == 10


def test_a_compiled_model_is_evaluated_without_compiling_again(model, split):
    runs = []

    def backend(graph, inputs):
        runs.append("compiled")
        return lambda *args: runs.append("ran") or graph(*args)

    eager = predict_logits(model, split, SEEN)
    model.compile(backend=backend)
    model(torch.randn(3, 3, 4, 4))
    assert runs == ["compiled", "ran"]
    model.norm.reset_running_stats()
    model.norm.running_mean += 0.3
    assert torch.equal(predict_logits(model, split, SEEN), eager)
    assert runs == ["compiled", "ran"]
    model(torch.randn(3, 3, 4, 4))
    assert runs == ["compiled", "ran", "ran"]
