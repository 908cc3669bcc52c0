"""The measurements of the diagnosis against the authors' release and against independent computations."""

import pytest
import timm
import torch
import torch.nn.functional as F
from rule import fan_in, golden
from torch import nn

import vitling
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


def randn(shape, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def randint(high: int, count: int, seed: int) -> torch.Tensor:
    return torch.randint(0, high, (count,), generator=torch.Generator().manual_seed(seed))


def close(measured, expected, rel=0.0, abs_=0.0) -> None:
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(torch.as_tensor(measured, dtype=torch.float64), expected, rtol=rel, atol=abs_)


# ---------------------------------------------------------------------------------------------------------------------
# CKA


def cka_inputs(file: dict) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    seed, n, p1, p2 = file["seeds"], file["n"], file["p1"], file["p2"]
    X, Y = randn((n, p1), seed["X"]), randn((n, p2), seed["Y"])
    Z = X @ randn((p1, p2), seed["W"]) / p1**0.5 + 0.7 * randn((n, p2), seed["N"])
    Q = torch.linalg.qr(randn((p1, p1), seed["Q"])).Q
    A = randn((12, 3, 4, 4), seed["A"])
    return {
        "independent": (X, Y),
        "related": (X, Z),
        "self": (X, X),
        "rotated_scaled": (2.5 * X @ Q, 0.3 * Z),
        "shifted": (X + 3 * randn((1, p1), seed["m"]), Z),
        "not_invariant_to_general_linear": (X * torch.linspace(0.2, 3, p1, dtype=torch.float64), Z),
        "four_dimensional": (A, randn((12, 5, 2, 2), seed["B"]) + A[:, :1, :2, :2]),
        "smallest_batch_n4": (randn((4, 6), seed["n4"][0]), randn((4, 6), seed["n4"][1])),
    }


@pytest.mark.parametrize("variant", ["A", "B"])
def test_cka_of_two_layers_equals_the_golden_numbers_biased_and_unbiased(variant):
    file = golden(f"diagnosis__cka_basic_{variant}")
    inputs = cka_inputs(file)
    assert [case["name"] for case in file["cases"]] == list(inputs)
    for case in file["cases"]:
        x, y = inputs[case["name"]]
        close(linear_cka(x, y), case["cka_biased"], rel=1e-8)
        close(linear_cka(x, y, unbiased=True), case["cka_unbiased"], rel=1e-8)
        close(torch.stack([hsic1(x, y), hsic1(x, x), hsic1(y, y)]), case["hsic1_xy_xx_yy"], rel=1e-8)
        close(linear_cka(x.float(), y.float()), case["cka_biased"], abs_=1e-4)
        close(linear_cka(x.float(), y.float(), unbiased=True), case["cka_unbiased"], abs_=1e-4)


def test_minibatch_cka_is_the_ratio_of_mean_hsics():
    file = golden("diagnosis__cka_minibatch_A")
    X = randn((40, 12), 200)
    x, y = X @ randn((9, 12), 201).T, X @ randn((20, 12), 202).T
    close(linear_cka(x, y), file["full_set"]["cka_biased"], rel=1e-8)
    for case in file["cases"]:
        size = case["batch_size"]
        batches = list(zip(x.split(size), y.split(size), strict=True))
        batches = batches[: len(X) // size] if case["drop_last"] else batches
        assert len(batches) == case["batches"]
        close(minibatch_cka(batches), case["cka_minibatch"], rel=1e-8)
        close(minibatch_cka([(a.float(), b.float()) for a, b in batches]), case["cka_minibatch"], abs_=1e-4)
        for (a, b), expected in zip(batches, case["per_batch_hsic_xy_xx_yy"], strict=True):
            close(torch.stack([hsic1(a, b), hsic1(a, a), hsic1(b, b)]), expected, rel=6e-8)  # eight digits in the file


def test_cka_in_float32_survives_a_large_common_mean():
    file = golden("diagnosis__cka_robust_A")
    x = torch.randn((64, 2048), generator=torch.Generator().manual_seed(700))
    x = x + 2.0 * torch.randn((1, 2048), generator=torch.Generator().manual_seed(701))
    w = torch.randn((2048, 512), generator=torch.Generator().manual_seed(702)) / 2048**0.5
    y = (x.double() @ w.double()).float()
    # The file allows 1e-3; float32 with the mean removed reaches a thousand times less.
    close(linear_cka(x, y, unbiased=True), file["cka_unbiased_float64_of_these_float32_features"], abs_=1e-6)


class ModelA(nn.Module):
    def __init__(self, inplace: bool):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.act = nn.ReLU(inplace=inplace)
        self.block = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1, bias=False) for _ in range(2))
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        x = self.act(self.bn1(self.conv1(x)))
        for block in self.block:
            x = x + block(x)
        return self.head(x.mean(dim=(2, 3)))


class ModelB(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, stride=4)
        self.norm = nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.embed(x).flatten(2).mT
        x = x + self.mlp(self.norm(x))
        return self.head(x.mean(dim=1))


def fill(model: nn.Module, rule: dict, salt: str = "salt") -> nn.Module:
    model.double().load_state_dict(fan_in([(k, v.shape) for k, v in model.state_dict().items()], rule, salt))
    return model.eval()


@pytest.mark.parametrize("inplace", [False, True])
def test_cka_of_two_networks_is_right_under_every_name_even_with_in_place_activations(inplace):
    file = golden("diagnosis__cka_models_A")
    a = fill(ModelA(inplace), file["fill"], "salt_A")
    b = fill(ModelB(), file["fill"], "salt_B")
    batches = randn(file["input"]["shape"], file["input"]["seed"]).split(file["input"]["batch_size"])
    result = cka_matrix(a, b, batches)
    for row, expected in file["cka_by_name"].items():
        for column, value in expected.items():
            assert result.value(row, column) == pytest.approx(value, abs=1e-7)
    assert (result.skipped_rows, result.skipped_columns) == (["block"], [])
    assert result.rows == ["conv1", "bn1", "act", "block.0", "block.1", "head"]
    assert result.columns == ["embed", "norm", "mlp.0", "mlp.1", "mlp.2", "head"]
    assert result.column_aliases == {"mlp": "mlp.2", "": "head"}
    single = cka_matrix(a.float(), b.float(), [batch.float() for batch in batches])
    for row, expected in file["cka_by_name"].items():
        for column, value in expected.items():
            assert single.value(row, column) == pytest.approx(value, abs=1e-4)


def test_best_matches_equal_the_golden_definitions():
    file = golden("diagnosis__match_A")
    match = match_layers(torch.tensor(file["cka_matrix_rows_first_model_columns_second"], dtype=torch.float64))
    assert match.best_match.tolist() == file["best_match_index"]
    assert match.column_best_row.tolist() == file["column_best_row"]
    close(match.best_match_depth, file["best_match_depth"], rel=1e-7)
    close(match.peak, file["peak"], rel=1e-7)
    close(match.soft_depth, file["soft_depth"], rel=1e-7)
    close(match.monotonicity, file["monotonicity"], rel=1e-7)
    close(match.block_means, file["block_means_quarters_x_halves"], rel=1e-7)
    close(match.unmatched_top_quarter, file["unmatched_top_quarter"], rel=1e-7)
    assert match.depth_needed == 3 / 11  # the first row whose match lies in the upper half of the columns


# ---------------------------------------------------------------------------------------------------------------------
# Attention


@pytest.mark.parametrize(
    ("variant", "scale", "shape", "seed"), [("A", 1.5, (6, 8, 17, 17), 400), ("D", 1.0, (12, 3, 10, 10), 430)]
)
def test_rollout_masks_and_relevance_equal_the_release(variant, scale, shape, seed):
    file = golden(f"diagnosis__rollout_{variant}")
    maps = (scale * randn(shape, seed)).softmax(dim=-1)
    rollout = attention_rollout(maps)
    close(rollout[:, 0, 1:], file["rollout_class_row"], rel=1e-8)
    close(rollout[:, 0, 0], file["rollout_class_to_class"], rel=1e-8)
    close(rollout.sum(dim=-1), torch.ones(rollout.shape[:2]).tolist(), rel=1e-12)
    own, common = attention_masks(maps), attention_masks(maps, scale="common")
    literal = attention_masks(maps, rollout=False, scale="common")
    close(own.flatten(1), file["rollout_mask_own_max"], rel=1e-6)  # fields of eight digits from here on
    close(common.flatten(1), file["rollout_mask_common_max"], rel=1e-6)
    close(literal.flatten(1), file["per_layer_mask_common_max"], rel=1e-6)
    close(rollout[:, 0, 1:].max(), file["common_factor"], rel=1e-8)
    close(maps.mean(dim=1)[:, 0, 1:], file["raw_head_mean_class_row"], rel=1e-6)
    for fusion, expected in file["rollout_last_layer_head_fusion"].items():
        close(attention_rollout(maps, fusion=fusion)[-1, 0, 1:], expected, rel=1e-6)
    relevance = gradient_relevance(maps, randn(shape, seed + 1))
    close(relevance[0, 1:], file["relevance_class_row"]["value"], rel=1e-6)
    for resized in file["resized"]:
        mask = resize_masks(own, tuple(resized["shape"]))[resized["layer"]]
        close(mask.mean(), resized["mean"], abs_=1e-5)
        corners = torch.stack([mask[0, 0], mask[0, -1], mask[-1, 0], mask[-1, -1]])
        close(corners, resized["corners_tl_tr_bl_br"], abs_=1e-5)
        close(mask[0], resized["row_0"], abs_=1e-5)
        close(mask[len(mask) // 2], resized["row_middle"], abs_=1e-5)
    close(attention_rollout(maps.float())[:, 0, 1:], file["rollout_class_row"], abs_=1e-5)


def test_attention_distance_entropy_and_local_mass_equal_the_golden_numbers():
    shapes = {500: (1.5, (2, 3, 17, 17)), 501: (2.0, (1, 2, 16, 16)), 502: (1.0, (2, 2, 16, 16))}
    for case in golden("diagnosis__attention_distance_A")["cases"]:
        scale, shape = shapes[case["seed"]]
        maps = (scale * randn(shape, case["seed"])).softmax(dim=-1)
        grid, patch = tuple(case["grid"]), case["patch_size"]
        plain = attention_distance(maps, grid, patch_size=patch, renormalize=False)
        close(plain, case["mean_distance_pixels_not_renormalised_per_head"], rel=1e-8)
        pixels = attention_distance(maps, grid, patch_size=patch)
        close(pixels, case["mean_distance_pixels_renormalised_per_head"], rel=1e-8)
        each = attention_distance(maps, grid, per_image=True)
        close(each, case["mean_distance_patches_renormalised_per_image_head"], rel=1e-8)
        close(uniform_distance(grid), case["uniform_attention_distance_patches"], rel=1e-8)
        close(attention_entropy(maps), case["mean_entropy_nats_all_queries_all_keys_per_head"], rel=1e-8)
        close(local_mass(maps, grid), case["mean_mass_within_one_patch_renormalised_per_head"], rel=1e-8)
        single = attention_distance(maps.float(), grid, patch_size=patch)
        close(single, case["mean_distance_pixels_renormalised_per_head"], rel=1e-5)


@pytest.mark.parametrize("variant", ["vit_main_p8_d64_c10", "vit_paper_p4_d512_c10"])
def test_attention_captured_from_the_papers_vit_gives_the_releases_rollout_entropy_and_distance(variant):
    file = golden(f"diagnosis__{variant}")
    config = file["config"]
    model = timm.create_model(f"diag_vit_patch{config['patch_size']}", embed_dim=config["dim"])
    model.double()
    vitling.load_weights(model, fan_in(file["state_dict"], file["fill"]))
    seen = capture_batch(model, randn(file["input"]["shape"], file["input"]["seed"]))
    assert len(seen.attention) == len(seen.blocks) == 6
    close(seen.logits, file["logits"], abs_=1e-7)
    maps = torch.stack(list(seen.attention.values()))  # (layer, B, H, N, N)
    both, grid = file["attention_both_images"], 32 // config["patch_size"]
    close(torch.stack([attention_entropy(x) for x in maps]), both["mean_entropy_nats_layer_head"], abs_=6e-7)
    distance = [attention_distance(x, (grid, grid), patch_size=config["patch_size"]) for x in maps]
    close(torch.stack(distance), both["mean_distance_pixels_renormalised_layer_head"], rel=6e-7)  # seven digits
    first = file["attention_image0"]
    rows = attention_rollout(maps)[:, 0, 0, 1:]
    close(rows[-1], first["rollout_class_row_last_layer"], abs_=1e-7)
    close(rows.amax(dim=1), first["rollout_class_row_patches_each_layer_max"], abs_=1e-7)
    close(rows.max(), first["common_factor_over_layers"], abs_=1e-7)
    for layer, name in ((0, "head_mean_class_row_layer0"), (-1, "head_mean_class_row_last_layer")):
        close(maps[layer, 0].mean(dim=0)[0], first[name], abs_=1e-7)


# ---------------------------------------------------------------------------------------------------------------------
# Features


def test_resnet_maps_come_from_a_real_forward_pass_and_the_bare_chain_is_an_option():
    file = golden("diagnosis__resnet18_c10")
    model = fill(timm.create_model("diag_resnet18"), file["fill"])
    images = randn(file["input"]["shape"], file["input"]["seed"])
    maps = conv_maps(model, images)
    assert list(maps) == [layer["name"] for layer in file["feature_maps_image0"]["layers"]]
    assert [tuple(x.shape[1:]) for x in maps.values()] == [(32, 32)] * 5 + [(16, 16)] * 4 + [(8, 8)] * 4 + [(4, 4)] * 4
    for layer in file["feature_maps_image0"]["layers"]:
        x = maps[layer["name"]][0]
        listed = [layer[f"map_{what}"] for what in ("mean", "std_population", "min", "max")]
        close(torch.stack([x.mean(), x.std(correction=0), x.min(), x.max()]), listed, rel=1.5e-7)  # eight digits
    chain = conv_maps(model, images, bare_chain=True)
    for name, mean, std, first in file["official_script_variant_image0"]["layers"]:
        x = chain[name][0]
        close(torch.stack([x.mean(), x.std(correction=0), x[0, 0]]), [mean, std, first], rel=6e-7)  # seven digits


def features() -> torch.Tensor:
    decay = torch.exp(-torch.arange(24, dtype=torch.float64) / 6)
    x = randn((6, 16, 24), 800) * decay + 0.2 * randn((1, 1, 24), 801)
    x[..., [1, 12]] = 0
    return x


def test_ranks_channels_and_smoothing_equal_the_golden_numbers():
    file = golden("diagnosis__extras_A")
    x = features()
    ranks = feature_ranks(x)
    close(ranks.effective, file["rank"]["effective_rank_exp_entropy_of_s_over_sum"], rel=1e-7)
    close(ranks.participation, file["rank"]["participation_ratio_of_s2"], rel=1e-7)
    close(ranks.stable, file["rank"]["stable_rank"], rel=1e-7)
    assert ranks.numerical == file["rank"]["numerical_rank"]
    assert channel_health(x).dead == file["dead_channels"]["indices"]
    assert channel_health(x).exploding == []
    close(channel_correlation(x), file["channel_correlation"]["value"], rel=1e-7)
    close(token_similarity(x), file["token_cosine_similarity"]["value"], rel=1e-7)
    close(token_similarity(x.float()), file["token_cosine_similarity"]["value"], rel=1e-4)


def test_frequencies_and_variance_of_maps_equal_the_golden_numbers():
    file = golden("diagnosis__extras_A")
    maps = features().mT.unflatten(2, (4, 4)) + 0.3 * randn((6, 24, 4, 4), 802)
    close(fourier_profile(maps), file["fourier"]["relative_log_amplitude"], rel=1e-7)
    close(spatial_variance(maps), file["feature_map_variance"]["value"], rel=1e-7)


def test_ridge_probe_equals_the_golden_numbers():
    file = golden("diagnosis__extras_A")["ridge_probe"]
    train, test, V = randn((120, 16), 806), randn((80, 16), 807), randn((16, 4), 808)
    train_labels = (train @ V + 0.8 * randn((120, 4), 809)).argmax(dim=1)
    test_labels = (test @ V + 0.8 * randn((80, 4), 810)).argmax(dim=1)
    probe = ridge_probe(train, train_labels, test, test_labels)
    assert probe.train_accuracy == pytest.approx(file["train_accuracy"], abs=1e-10)
    assert probe.test_accuracy == pytest.approx(file["test_accuracy"], abs=1e-10)
    close(probe.weight.norm(), file["W_frobenius"], rel=1e-7)


# ---------------------------------------------------------------------------------------------------------------------
# Training health


def test_sharpness_and_curvature_equal_the_golden_numbers():
    file = golden("diagnosis__extras_A")["hessian"]
    x, labels = randn((40, 5), 803), randint(4, 40, 804)
    W = (0.3 * randn((4, 5), 805)).requires_grad_()

    def loss():
        return F.cross_entropy(x @ W.T, labels)

    hessian = Hessian(loss, [W])
    close(loss().item(), file["loss"], rel=1e-7)
    close(hessian.gradient.norm().item(), file["gradient_norm"], rel=1e-7)
    close(hessian.largest_eigenvalues(2), [file["top_eigenvalue"], file["second_eigenvalue"]], rel=1e-7)
    close(hessian.trace(), file["trace"], rel=1e-7)
    close(loss_sharpness(loss, [W], rho=0.05), file["sam_sharpness_rho_0.05"], rel=1e-7)


def test_calibration_equals_the_golden_numbers_and_torchmetrics():
    from torchmetrics.functional.classification import multiclass_calibration_error

    file = golden("diagnosis__ece_A")
    recipes = [(500, 10, 1.0, 1.0), (200, 4, 2.0, 0.5), (400, 100, 1.5, 3.0)]
    for i, (case, (n, classes, spread, lift)) in enumerate(zip(file["cases"], recipes, strict=True)):
        labels = randint(classes, n, 700 + i)
        assert labels[:10].tolist() == case["labels_first10"]
        z = spread * randn((n, classes), 600 + i)
        z[torch.arange(n), labels] += lift
        p, bins = z.softmax(dim=1), case["n_bins"]
        close(expected_calibration_error(p, labels, bins=bins), case["ece"], rel=1e-8)
        close(expected_calibration_error(p, labels, bins=bins, norm="max"), case["mce"], rel=1e-8)
        close(expected_calibration_error(p, labels, bins=bins, norm="l2"), case["rms_calibration_error"], rel=1e-8)
        close(adaptive_calibration_error(p, labels, bins=bins), case["adaptive_ece_equal_mass"], rel=1e-8)
        close(classwise_calibration_error(p, labels, bins=bins), case["classwise_ece"], rel=1e-8)
        close(brier_score(p, labels), case["brier_sum_over_classes"], rel=1e-8)
        close(expected_calibration_error(p.float(), labels, bins=bins), case["ece"], abs_=1e-5)
        peer = multiclass_calibration_error(p, labels, num_classes=classes, n_bins=bins)
        close(expected_calibration_error(p, labels, bins=bins), peer.item(), abs_=1e-6)
        curve = reliability_curve(p, labels, bins=bins)
        listed = torch.tensor(case["bins_index_count_conf_acc"], dtype=torch.float64)
        filled = curve.counts.nonzero().flatten()
        assert filled.tolist() == listed[:, 0].long().tolist()
        assert curve.counts[filled].tolist() == listed[:, 1].tolist()
        close(curve.confidence[filled], listed[:, 2].tolist(), rel=1e-8)
        close(curve.accuracy[filled], listed[:, 3].tolist(), rel=1e-8)
        if case["per_class_accuracy"]:
            accuracies = [row.accuracy for row in per_class_accuracy(p, labels)]
            close(
                torch.tensor(accuracies, dtype=torch.float64), case["per_class_accuracy"], abs_=5e-9
            )  # eight decimals
