"""Half precision on a CPU: what is computed in float32 even so, and when it is chosen."""

import pytest
import timm
import torch
import torch.nn.functional as F

from vitling.planning.machine import measure_step, this_machine
from vitling.recipes import Recipe
from vitling.runs.device import default_device
from vitling.training import half_precision
from vitling.training.half_precision import bf16_pays, keep_attention_whole

CPU = default_device().type == "cpu"


@pytest.fixture
def tokens() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, 5, 8, generator=generator) for _ in range(3)]


def test_attention_is_computed_in_float32_and_nothing_else_is(tokens):
    queries, keys, values = (x.bfloat16() for x in tokens)
    for mask in (None, torch.ones(5, 5, dtype=torch.bool).tril(), torch.zeros(5, 5, dtype=torch.bfloat16)):
        whole = mask.float() if mask is not None and mask.is_floating_point() else mask
        wanted = F.scaled_dot_product_attention(queries.float(), keys.float(), values.float(), attn_mask=whole)
        keep_attention_whole()
        with torch.autocast("cpu", torch.bfloat16):
            found = F.scaled_dot_product_attention(queries, keys, value=values, attn_mask=mask)
            assert (queries @ keys.transpose(-1, -2)).dtype == torch.bfloat16
            assert F.linear(tokens[0], torch.ones(2, 8)).dtype == torch.bfloat16
        assert torch.equal(found, wanted)


def test_it_is_declared_once_without_a_word(recwarn):
    assert keep_attention_whole() is keep_attention_whole()
    assert not recwarn


def test_attention_that_is_computed_again_for_its_gradients_is_the_same():
    """Gradient checkpointing refuses a second pass of other types."""
    keep_attention_whole()
    model = timm.create_model("hybrid_vit_test").train()
    model.set_grad_checkpointing()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(2, 3, 16, 16)).float().square().mean()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("seconds", "pays"), [((0.010, 0.006), True), ((0.010, 0.009), False), ((0.010, 0.030), False)]
)
def test_bf16_pays_where_it_is_clearly_faster(seconds, pays, monkeypatch):
    """A clock that gives float32 and bf16, in turns, these times."""
    now, turn = [0.0], [0]

    def clock() -> float:
        began, turn[0] = turn[0] % 2 == 0, turn[0] + 1
        if not began:
            now[0] += seconds[turn[0] // 2 % 2 - 1]
        return now[0]

    state, threads = torch.get_rng_state(), torch.get_num_threads()
    monkeypatch.setattr(half_precision.time, "process_time", clock)
    assert bf16_pays.__wrapped__() is pays
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.skipif(not CPU, reason="this machine has a GPU")
@pytest.mark.parametrize(("pays", "precision"), [(True, "bf16"), (False, "no")])
def test_a_machine_takes_the_faster_precision_unless_one_is_asked_for(pays, precision, monkeypatch):
    monkeypatch.setattr("vitling.planning.machine.bf16_pays", lambda: pays)
    assert this_machine(threads=1).precision == precision
    assert this_machine(threads=1, precision="no").precision == "no"


def test_a_step_is_measured_in_the_precision_it_is_asked_for():
    seen = set()
    model = timm.create_model("hybrid_vit_test")
    model.head.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
    for precision in ("no", "bf16"):
        assert measure_step((Recipe(model="hybrid_vit_test", batch_size=2), model, (3, 16, 16)), 1, precision) > 0
    assert seen == {torch.float32, torch.bfloat16}
