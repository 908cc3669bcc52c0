"""What cannot be trained in shards is refused in one line; the parts of several processes without the processes."""

from types import SimpleNamespace

import pytest
import timm
import torch
from torch import distributed, nn

from vitling.errors import UserError
from vitling.methods import create_method
from vitling.methods.mixing import Mix
from vitling.recipes import Optim, Recipe
from vitling.training.batch_norm import synchronise_batch_norm
from vitling.training.course import Course
from vitling.training.partners import ProcessPartners
from vitling.training.settings import Settings
from vitling.training.setup import create_accelerator
from vitling.training.sharding import check_sharding, shard_blocks
from vitling.training.state import State


def several(**changes):
    """What `check_sharding` reads of accelerate's Accelerator."""
    return SimpleNamespace(**{"num_processes": 2, "mixed_precision": "no", "device": torch.device("cpu"), **changes})


@pytest.mark.parametrize(
    ("recipe", "accelerator", "message"),
    [
        (Recipe(), several(num_processes=1), "this is only one"),
        (Recipe(), several(mixed_precision="fp16"), "use bf16"),
        (Recipe(compile="on"), several(), "leave compile=auto"),
        (Recipe(optim=Optim(name="lamb")), several(), "optim.name=lamb; use one of adam, adamw"),
    ],
)
def test_what_cannot_be_trained_in_shards_is_refused_in_a_line(recipe, accelerator, message):
    with pytest.raises(UserError, match=message) as refused:
        check_sharding(recipe, accelerator, "")
    assert "\n" not in str(refused.value)


def test_an_agent_that_shares_the_weights_of_the_vit_is_refused_and_one_of_its_own_is_not():
    for share in (True, False):
        method = create_method("bootstrap", timm.create_model("boot_vit_test"), num_classes=10, share=share)
        assert bool(method.unshardable()) is share
    with pytest.raises(UserError, match=r"does not go with method_args.share=true.*leave share out"):
        check_sharding(Recipe(), several(), "method_args.share=true; leave share out")


def test_fsdp_of_the_launcher_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UserError, match="let vitling shard"):
        create_accelerator(Settings(), tmp_path)


@pytest.mark.parametrize("sharded", [True, False])
def test_a_run_is_resumed_as_it_was_begun(sharded):
    with pytest.raises(UserError, match="resume it without shard" if sharded else "resume it with shard"):
        State(Course.straight(3)).restore({"sharded": not sharded}, SimpleNamespace(sharded=sharded), None)


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("processes", [2, 3])
def test_processes_draw_together_what_one_alone_draws(mode, processes):
    def draws(mix, rows):
        return [mix.draw(rows, 8, 8) for _ in range(2)]  # two micro-batches

    alone = Mix(num_classes=3, mode=mode)
    alone.partners = ProcessPartners(0, 1)
    alone.partners.begin_step("a seed", 7)
    expected = draws(alone, 12)
    for process in range(processes):
        mix = Mix(num_classes=3, mode=mode)
        mix.partners = ProcessPartners(process, processes)
        mix.partners.begin_step("a seed", 7)
        torch.manual_seed(process)  # what else is drawn differs
        for found, whole in zip(draws(mix, 12 // processes), expected, strict=True):
            for mine, theirs in zip(found, whole, strict=True):
                assert torch.equal(mine, theirs[process::processes])
        torch.manual_seed(process)
        before = torch.rand(1)
        torch.manual_seed(process)
        draws(mix, 2)
        assert torch.equal(torch.rand(1), before), "the process's own generator moved"


@pytest.fixture
def group():
    """A group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm2d(5), (4, 5, 3, 3)),
        (nn.BatchNorm1d(5, momentum=None), (4, 5, 7)),
        (nn.BatchNorm1d(5, affine=False), (6, 5)),
        (nn.BatchNorm2d(5, track_running_stats=False), (4, 5, 3, 3)),
    ],
)
def test_synchronised_batch_norm_on_a_cpu_computes_what_torch_computes(norm, shape, group):
    import copy

    torch.manual_seed(0)
    ours = synchronise_batch_norm(copy.deepcopy(norm), torch.device("cpu"))
    assert type(ours) is not type(norm)
    assert ours.state_dict().keys() == norm.state_dict().keys()
    for training in (True, True, False):
        x = torch.randn(shape) * 3 + 1
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        (ours.train(training)(mine) ** 3).sum().backward()
        (norm.train(training)(theirs) ** 3).sum().backward()
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)
        for one, other in zip(ours.state_dict().values(), norm.state_dict().values(), strict=True):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        ours.train()(torch.zeros(1, 5))


def test_a_norm_that_timm_joins_with_an_activation_keeps_it(group):
    model = timm.create_model("efficientnet_b0", num_classes=10).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = model(x)
        assert torch.allclose(synchronise_batch_norm(model, torch.device("cpu"))(x), expected, atol=1e-5)


def test_a_model_without_blocks_is_refused(group):
    with pytest.raises(UserError, match="Linear has no blocks that could be found"):
        shard_blocks([nn.Linear(2, 2)], several(num_processes=1))
