"""The measurements of the diagnosis against the authors' release and against independent computations."""

import re

import pytest
import torch
import torch.nn.functional as F
from rule import Draw, draws, every, fan_in, golden, images, numbers_in, randn, tolerance
from test_diag_models import build
from torch import nn

from vitling.diagnose import (
    Hessian,
    adaptive_calibration_error,
    attention_distance,
    attention_entropy,
    attention_masks,
    attention_rollout,
    brier_score,
    capture_batch,
    channel_correlation,
    channel_health,
    cka_matrix,
    classwise_calibration_error,
    conv_maps,
    expected_calibration_error,
    feature_ranks,
    fourier_profile,
    gradient_relevance,
    hsic1,
    linear_cka,
    local_mass,
    loss_sharpness,
    match_layers,
    minibatch_cka,
    per_class_accuracy,
    reliability_curve,
    resize_masks,
    ridge_probe,
    spatial_variance,
    token_similarity,
    uniform_distance,
)


def double(shape, seed: int) -> torch.Tensor:
    return randn(shape, seed).double()


def drawn(sentence: str) -> list[torch.Tensor]:
    return [draw.tensor(dtype=torch.float64) for draw in draws(sentence)]


def randint_in(sentence: str) -> torch.Tensor:
    """The labels of a sentence that says `randint(0,4,(40,)) seed 804`, or gives the generator's `manual_seed(804)`."""
    high, count = numbers_in(r"randint\(0,#,\(#,\)", sentence)
    (seed,) = numbers_in(r"seed[ (]#", sentence[sentence.index("randint") :])
    generator = torch.Generator().manual_seed(int(seed))
    return torch.randint(0, int(high), (int(count),), generator=generator)


def close(measured, expected, rel=0.0, abs_=0.0) -> None:
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(torch.as_tensor(measured, dtype=torch.float64), expected, rtol=rel, atol=abs_)


def allowed(file: dict, part: str) -> dict[str, float]:
    """The file's tolerance, as `close` takes it."""
    found = tolerance(file, part)
    return dict(rel=found["rtol"], abs_=found["atol"])


# ---------------------------------------------------------------------------------------------------------------------
# CKA


def cka_inputs(file: dict) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The pairs of the cases: what their sentences say, with the file's sizes and seeds."""
    seed, n, p1, p2 = file["seeds"], file["n"], file["p1"], file["p2"]
    how = {case["name"]: case["how"] for case in file["cases"]}
    X, Y = double((n, p1), seed["X"]), double((n, p2), seed["Y"])
    (noise,) = numbers_in(r"\+ #\*N", how["related"])
    Z = X @ double((p1, p2), seed["W"]) / p1**0.5 + noise * double((n, p2), seed["N"])
    Q = torch.linalg.qr(double((p1, p1), seed["Q"])).Q
    left, right = numbers_in(r"#\*X@Q vs #\*Z", how["rotated_scaled"])
    (shift,) = numbers_in(r"X \+ #\*m", how["shifted"])
    first, last = numbers_in(r"linspace\(#,#,p1", how["not_invariant_to_general_linear"])
    map_a, map_b = draws(how["four_dimensional"])
    A, B = map_a.tensor(seed["A"]).double(), map_b.tensor(seed["B"]).double()
    small = [draw.tensor(s).double() for draw, s in zip(draws(how["smallest_batch_n4"]), seed["n4"], strict=True)]
    return {
        "independent": (X, Y),
        "related": (X, Z),
        "self": (X, X),
        "rotated_scaled": (left * X @ Q, right * Z),
        "shifted": (X + shift * double((1, p1), seed["m"]), Z),
        "not_invariant_to_general_linear": (X * torch.linspace(first, last, p1, dtype=torch.float64), Z),
        "four_dimensional": (A, B + A[:, :1, : B.shape[2], : B.shape[3]]),
        "smallest_batch_n4": tuple(small),
    }


@every("diagnosis__cka_basic")
def test_cka_of_two_layers_equals_the_golden_numbers_biased_and_unbiased(name):
    file = golden(name)
    inputs = cka_inputs(file)
    exact, single = allowed(file, "float64"), allowed(file, "float32")
    for case in file["cases"]:
        x, y = inputs[case["name"]]
        close(linear_cka(x, y), case["cka_biased"], **exact)
        close(linear_cka(x, y, unbiased=True), case["cka_unbiased"], **exact)
        close(torch.stack([hsic1(x, y), hsic1(x, x), hsic1(y, y)]), case["hsic1_xy_xx_yy"], **exact)
        close(linear_cka(x.float(), y.float()), case["cka_biased"], **single)
        close(linear_cka(x.float(), y.float(), unbiased=True), case["cka_unbiased"], **single)


@every("diagnosis__cka_minibatch")
def test_minibatch_cka_is_the_ratio_of_mean_hsics(name):
    file = golden(name)
    exact, single = allowed(file, "float64"), allowed(file, "float32")
    X, W1, W2 = (double(file["inputs"][key]["shape"], file["inputs"][key]["seed"]) for key in ("X", "W1", "W2"))
    x, y = X @ W1.T, X @ W2.T
    close(linear_cka(x, y), file["full_set"]["cka_biased"], **exact)
    for case in file["cases"]:
        size = case["batch_size"]
        batches = list(zip(x.split(size), y.split(size), strict=True))
        batches = batches[: len(X) // size] if case["drop_last"] else batches
        assert len(batches) == case["batches"]
        close(minibatch_cka(batches), case["cka_minibatch"], **exact)
        close(minibatch_cka([(a.float(), b.float()) for a, b in batches]), case["cka_minibatch"], **single)
        for (a, b), expected in zip(batches, case["per_batch_hsic_xy_xx_yy"], strict=True):
            close(torch.stack([hsic1(a, b), hsic1(a, a), hsic1(b, b)]), expected, rel=6e-8)  # eight digits in the file


@every("diagnosis__cka_robust")
def test_cka_in_float32_survives_a_large_common_mean(name):
    file = golden(name)
    x, mean, w = (draw.tensor() for draw in draws(file["inputs"]))
    x, w = x + mean, w / file["p"] ** 0.5
    y = (x.double() @ w.double()).float()
    # Float32 with the mean removed reaches a thousand times less than the file allows.
    limit = tolerance({"suggested_tolerance": file["suggested_tolerance"]}, "abs")["atol"] / 1000
    close(linear_cka(x, y, unbiased=True), file["cka_unbiased_float64_of_these_float32_features"], abs_=limit)


class ModelA(nn.Module):
    """The files' first network, with the sizes of its sentence."""

    def __init__(self, sentence: str, inplace: bool):
        super().__init__()
        chans, width, kernel, padding = map(int, numbers_in(r"conv1 Conv2d\(#,#,#,padding=#", sentence))
        classes = int(numbers_in(r"head Linear\(#,#\)", sentence)[1])
        depth = {"one": 1, "two": 2, "three": 3, "four": 4}[re.search(r"ModuleList of (\w+)", sentence)[1]]
        self.conv1 = nn.Conv2d(chans, width, kernel, padding=padding, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=inplace)
        self.block = nn.ModuleList(nn.Conv2d(width, width, kernel, padding=padding, bias=False) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.act(self.bn1(self.conv1(x)))
        for block in self.block:
            x = x + block(x)
        return self.head(x.mean(dim=(2, 3)))


class ModelB(nn.Module):
    """The files' second network, with the sizes of its sentence."""

    def __init__(self, sentence: str):
        super().__init__()
        chans, width, kernel, stride = map(int, numbers_in(r"embed Conv2d\(#,#,#,stride=#", sentence))
        hidden = int(numbers_in(r"mlp Sequential\(Linear\(#,#\)", sentence)[1])
        classes = int(numbers_in(r"head Linear\(#,#\)", sentence)[1])
        self.embed = nn.Conv2d(chans, width, kernel, stride=stride)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.embed(x).flatten(2).mT
        x = x + self.mlp(self.norm(x))
        return self.head(x.mean(dim=1))


def fill(model: nn.Module, rule: dict, salt: str = "salt") -> nn.Module:
    model.double().load_state_dict(fan_in([(k, v.shape) for k, v in model.state_dict().items()], rule, salt))
    return model.eval()


@every("diagnosis__cka_models")
@pytest.mark.parametrize("inplace", [False, True])
def test_cka_of_two_networks_is_right_under_every_name_even_with_in_place_activations(name, inplace):
    file = golden(name)
    a = fill(ModelA(file["models"]["A"], inplace), file["fill"], "salt_A")
    b = fill(ModelB(file["models"]["B"]), file["fill"], "salt_B")
    batches = images(file).double().split(file["input"]["batch_size"])
    assert len(batches) == file["input"]["batches"]
    result = cka_matrix(a, b, batches)
    single = cka_matrix(a.float(), b.float(), [batch.float() for batch in batches])
    exact, rough = tolerance(file, "float64")["atol"], tolerance(file, "float32")["atol"]
    for row, expected in file["cka_by_name"].items():
        for column, value in expected.items():
            assert result.value(row, column) == pytest.approx(value, abs=exact)
            assert single.value(row, column) == pytest.approx(value, abs=rough)
    assert (result.skipped_rows, result.skipped_columns) == (["block"], [])
    # The whole model is its classifier, and an MLP its last layer; every other name has a row or a column of its own.
    assert result.rows == [row for row in file["cka_by_name"] if row]
    assert result.columns == [column for column in file["cka_by_name"]["head"] if column not in ("", "mlp")]
    assert result.column_aliases == {"mlp": "mlp.2", "": "head"}


@every("diagnosis__match")
def test_best_matches_equal_the_golden_definitions(name):
    file = golden(name)
    matrix = torch.tensor(file["cka_matrix_rows_first_model_columns_second"], dtype=torch.float64)
    match, exact = match_layers(matrix), allowed(file, "rel")
    assert match.best_match.tolist() == file["best_match_index"]
    assert match.column_best_row.tolist() == file["column_best_row"]
    close(match.best_match_depth, file["best_match_depth"], **exact)
    close(match.peak, file["peak"], **exact)
    close(match.soft_depth, file["soft_depth"], **exact)
    close(match.monotonicity, file["monotonicity"], **exact)
    close(match.block_means, file["block_means_quarters_x_halves"], **exact)
    close(match.unmatched_top_quarter, file["unmatched_top_quarter"], **exact)
    # The first row whose match lies in the upper half of the columns.
    upper = [row for row, depth in enumerate(file["best_match_depth"]) if depth >= 0.5]
    if upper:
        assert match.depth_needed == upper[0] / (len(matrix) - 1)


# ---------------------------------------------------------------------------------------------------------------------
# Attention


def softmaxed(draw: Draw, seed: int | None = None) -> torch.Tensor:
    """The attention of a sentence that says softmax(scale * randn(...))."""
    return draw.tensor(seed, torch.float64).softmax(dim=-1)


@every("diagnosis__rollout")
def test_rollout_masks_and_relevance_equal_the_release(name):
    file = golden(name)
    (draw,), (gradient,) = draws(file["inputs"]["attention"]), drawn(file["inputs"]["gradient"])
    maps = softmaxed(draw)
    exact, single = allowed(file, "float64"), allowed(file, "float32")
    (short,) = numbers_in(r"8-digit fields #", file["suggested_tolerance"])
    rollout = attention_rollout(maps)
    close(rollout[:, 0, 1:], file["rollout_class_row"], **exact)
    close(rollout[:, 0, 0], file["rollout_class_to_class"], **exact)
    close(rollout.sum(dim=-1), torch.full(rollout.shape[:2], file["rollout_rows_sum_to"]).tolist(), rel=1e-12)
    own, common = attention_masks(maps), attention_masks(maps, scale="common")
    literal = attention_masks(maps, rollout=False, scale="common")
    close(own.flatten(1), file["rollout_mask_own_max"], rel=short)
    close(common.flatten(1), file["rollout_mask_common_max"], rel=short)
    close(literal.flatten(1), file["per_layer_mask_common_max"], rel=short)
    close(rollout[:, 0, 1:].max(), file["common_factor"], **exact)
    close(maps.mean(dim=1)[:, 0, 1:], file["raw_head_mean_class_row"], rel=short)
    for fusion, expected in file["rollout_last_layer_head_fusion"].items():
        close(attention_rollout(maps, fusion=fusion)[-1, 0, 1:], expected, rel=short)
    close(gradient_relevance(maps, gradient)[0, 1:], file["relevance_class_row"]["value"], rel=short)
    near = allowed(file, "resized")
    for resized in file["resized"]:
        mask = resize_masks(own, tuple(resized["shape"]))[resized["layer"]]
        close(mask.mean(), resized["mean"], **near)
        corners = torch.stack([mask[0, 0], mask[0, -1], mask[-1, 0], mask[-1, -1]])
        close(corners, resized["corners_tl_tr_bl_br"], **near)
        close(mask[0], resized["row_0"], **near)
        close(mask[len(mask) // 2], resized["row_middle"], **near)
    close(attention_rollout(maps.float())[:, 0, 1:], file["rollout_class_row"], **single)


@every("diagnosis__attention_distance")
def test_attention_distance_entropy_and_local_mass_equal_the_golden_numbers(name):
    file = golden(name)
    exact, rough = allowed(file, "float64"), allowed(file, "float32")
    for case in file["cases"]:
        maps = softmaxed(draws(case["attention"])[0], case["seed"])
        grid, patch = tuple(case["grid"]), case["patch_size"]
        assert maps.shape[-1] == case["prefix_tokens"] + grid[0] * grid[1]
        plain = attention_distance(maps, grid, patch_size=patch, renormalize=False)
        close(plain, case["mean_distance_pixels_not_renormalised_per_head"], **exact)
        pixels = attention_distance(maps, grid, patch_size=patch)
        close(pixels, case["mean_distance_pixels_renormalised_per_head"], **exact)
        each = attention_distance(maps, grid, per_image=True)
        close(each, case["mean_distance_patches_renormalised_per_image_head"], **exact)
        close(uniform_distance(grid), case["uniform_attention_distance_patches"], **exact)
        close(attention_entropy(maps), case["mean_entropy_nats_all_queries_all_keys_per_head"], **exact)
        close(local_mass(maps, grid), case["mean_mass_within_one_patch_renormalised_per_head"], **exact)
        single = attention_distance(maps.float(), grid, patch_size=patch)
        close(single, case["mean_distance_pixels_renormalised_per_head"], **rough)


@every("diagnosis__", "attention_both_images")
def test_attention_captured_from_the_papers_vit_gives_the_releases_rollout_entropy_and_distance(name):
    file = golden(name)
    model, config = build(file), file["config"]
    seen, exact = capture_batch(model, images(file).double()), allowed(file, "float64")
    assert len(seen.attention) == len(seen.blocks) == config["depth"]
    close(seen.logits, file["logits"], **exact)
    maps = torch.stack(list(seen.attention.values()))  # (layer, B, H, N, N)
    both, grid = file["attention_both_images"], model.patch_embed.grid_size
    close(torch.stack([attention_entropy(x) for x in maps]), both["mean_entropy_nats_layer_head"], abs_=6e-7)
    distance = [attention_distance(x, grid, patch_size=config["patch_size"]) for x in maps]
    close(torch.stack(distance), both["mean_distance_pixels_renormalised_layer_head"], rel=6e-7)  # seven digits
    first = file["attention_image0"]
    rows = attention_rollout(maps)[:, 0, 0, 1:]
    close(rows[-1], first["rollout_class_row_last_layer"], **exact)
    close(rows.amax(dim=1), first["rollout_class_row_patches_each_layer_max"], **exact)
    close(rows.max(), first["common_factor_over_layers"], **exact)
    for layer, entry in ((0, "head_mean_class_row_layer0"), (-1, "head_mean_class_row_last_layer")):
        close(maps[layer, 0].mean(dim=0)[0], first[entry], **exact)


# ---------------------------------------------------------------------------------------------------------------------
# Features


@every("diagnosis__", "official_script_variant_image0")
def test_resnet_maps_come_from_a_real_forward_pass_and_the_bare_chain_is_an_option(name):
    file = golden(name)
    model, x = build(file), images(file).double()
    layers = file["feature_maps_image0"]["layers"]
    maps = conv_maps(model, x)
    assert [(layer, *y.shape[1:]) for layer, y in maps.items()] == [(row["name"], *row["shape"][1:]) for row in layers]
    for layer in layers:
        y = maps[layer["name"]][0]
        listed = [layer[f"map_{what}"] for what in ("mean", "std_population", "min", "max")]
        close(torch.stack([y.mean(), y.std(correction=0), y.min(), y.max()]), listed, rel=1.5e-7)  # eight digits
    chain = conv_maps(model, x, bare_chain=True)
    for layer, mean, std, first in file["official_script_variant_image0"]["layers"]:
        y = chain[layer][0]
        close(torch.stack([y.mean(), y.std(correction=0), y[0, 0]]), [mean, std, first], rel=6e-7)  # seven digits


def features(file: dict) -> torch.Tensor:
    """Tokens of several images whose channels fade, with some of them dead."""
    tokens, mean = drawn(file["features"])
    channels = tokens.shape[-1]
    fading = channels / numbers_in(r"arange\(#\)/\(#/#\)", file["features"])[2]
    x = tokens * torch.exp(-torch.arange(channels, dtype=torch.float64) / fading) + mean
    x[..., file["dead_channels"]["indices"]] = 0
    return x


every_extra = every("diagnosis__extras")


@every_extra
def test_ranks_channels_and_smoothing_equal_the_golden_numbers(name):
    file = golden(name)
    x, exact = features(file), allowed(file, "float64")
    ranks = feature_ranks(x)
    close(ranks.effective, file["rank"]["effective_rank_exp_entropy_of_s_over_sum"], **exact)
    close(ranks.participation, file["rank"]["participation_ratio_of_s2"], **exact)
    close(ranks.stable, file["rank"]["stable_rank"], **exact)
    assert ranks.numerical == file["rank"]["numerical_rank"]
    assert channel_health(x).dead == file["dead_channels"]["indices"]
    assert channel_health(x).exploding == []
    close(channel_correlation(x), file["channel_correlation"]["value"], **exact)
    close(token_similarity(x), file["token_cosine_similarity"]["value"], **exact)
    close(token_similarity(x.float()), file["token_cosine_similarity"]["value"], **allowed(file, "float32"))


@every_extra
def test_frequencies_and_variance_of_maps_equal_the_golden_numbers(name):
    file = golden(name)
    (noise,), exact = drawn(file["fourier"]["what"]), allowed(file, "float64")
    maps = features(file).mT.unflatten(2, noise.shape[2:]) + noise
    close(fourier_profile(maps), file["fourier"]["relative_log_amplitude"], **exact)
    close(spatial_variance(maps), file["feature_map_variance"]["value"], **exact)


@every_extra
def test_ridge_probe_equals_the_golden_numbers(name):
    file = golden(name)
    probed = file["ridge_probe"]
    train, test, V = drawn(probed["what"])
    (scale,) = numbers_in(r"features@V \+ #\*randn", probed["what"])
    train_seed, test_seed = map(int, numbers_in(r"noise seeds # \(train\), # \(test\)", probed["what"]))
    train_labels, test_labels = (
        (x @ V + scale * double((len(x), V.shape[1]), seed)).argmax(dim=1)
        for x, seed in ((train, train_seed), (test, test_seed))
    )
    probe = ridge_probe(train, train_labels, test, test_labels)
    assert probe.train_accuracy == pytest.approx(probed["train_accuracy"], abs=1e-10)
    assert probe.test_accuracy == pytest.approx(probed["test_accuracy"], abs=1e-10)
    close(probe.weight.norm(), probed["W_frobenius"], **allowed(file, "float64"))


# ---------------------------------------------------------------------------------------------------------------------
# Training health


@every_extra
def test_sharpness_and_curvature_equal_the_golden_numbers(name):
    file = golden(name)
    expected, exact = file["hessian"], allowed(file, "float64")
    x, W = drawn(expected["what"])
    labels = randint_in(expected["what"])
    W.requires_grad_()

    def loss():
        return F.cross_entropy(x @ W.T, labels)

    hessian = Hessian(loss, [W])
    close(loss().item(), expected["loss"], **exact)
    close(hessian.gradient.norm().item(), expected["gradient_norm"], **exact)
    close(hessian.largest_eigenvalues(2), [expected["top_eigenvalue"], expected["second_eigenvalue"]], **exact)
    close(hessian.trace(), expected["trace"], **exact)
    for key, value in expected.items():
        if key.startswith("sam_sharpness_rho_"):
            rho = float(key.removeprefix("sam_sharpness_rho_"))
            close(loss_sharpness(loss, [W], rho=rho), value, **exact)


@every("diagnosis__ece")
def test_calibration_equals_the_golden_numbers_and_torchmetrics(name):
    from torchmetrics.functional.classification import multiclass_calibration_error

    file = golden(name)
    exact, single = allowed(file, "float64"), allowed(file, "float32")
    for case in file["cases"]:
        labels, (z,) = randint_in(case["labels"]), drawn(case["probabilities"])
        assert labels[:10].tolist() == case["labels_first10"]
        z[torch.arange(len(z)), labels] += numbers_in(r"label_i\] \+= #", case["probabilities"])[0]
        p, bins = z.softmax(dim=1), case["n_bins"]
        close(expected_calibration_error(p, labels, bins=bins), case["ece"], **exact)
        close(expected_calibration_error(p, labels, bins=bins, norm="max"), case["mce"], **exact)
        close(expected_calibration_error(p, labels, bins=bins, norm="l2"), case["rms_calibration_error"], **exact)
        close(adaptive_calibration_error(p, labels, bins=bins), case["adaptive_ece_equal_mass"], **exact)
        close(classwise_calibration_error(p, labels, bins=bins), case["classwise_ece"], **exact)
        close(brier_score(p, labels), case["brier_sum_over_classes"], **exact)
        close(expected_calibration_error(p.float(), labels, bins=bins), case["ece"], **single)
        peer = multiclass_calibration_error(p, labels, num_classes=p.shape[1], n_bins=bins)
        close(expected_calibration_error(p, labels, bins=bins), peer.item(), abs_=1e-6)
        curve = reliability_curve(p, labels, bins=bins)
        listed = torch.tensor(case["bins_index_count_conf_acc"], dtype=torch.float64)
        filled = curve.counts.nonzero().flatten()
        assert filled.tolist() == listed[:, 0].long().tolist()
        assert curve.counts[filled].tolist() == listed[:, 1].tolist()
        close(curve.confidence[filled], listed[:, 2].tolist(), **exact)
        close(curve.accuracy[filled], listed[:, 3].tolist(), **exact)
        if case["per_class_accuracy"]:
            accuracies = torch.tensor([row.accuracy for row in per_class_accuracy(p, labels)], dtype=torch.float64)
            close(accuracies, case["per_class_accuracy"], abs_=5e-9)  # eight decimals
