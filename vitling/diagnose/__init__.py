"""Why does a model train badly? Measurements of any checkpoint, each a function of tensors or of a model and images."""

from importlib import import_module as _import_module

# The public names and the file each lives in. They load on first use, because torch takes seconds to import.
_PUBLIC = {
    name: f"vitling.{module}" if "." in module else f"vitling.diagnose.{module}"
    for module, names in {
        "attention": (
            "attention_distance", "attention_entropy", "attention_masks", "attention_rollout", "gradient_relevance",
            "fold_head_tokens", "head_diversity", "head_token_maps", "local_mass", "resize_masks", "uniform_distance",
        ),
        "attribution": ("grad_cam", "integrated_gradients", "relevance_map"),
        "cka": ("CkaMatrix", "cka_matrix", "hsic1", "linear_cka", "minibatch_cka"),
        "diagnosis": ("Diagnosis", "diagnose", "diagnose_run", "write_diagnosis"),
        "features": (
            "channel_correlation", "channel_health", "conv_maps", "feature_ranks", "fourier_profile", "spatial_variance",
            "token_maps", "token_similarity",
        ),
        "health": ("confident_mistakes", "generalisation_gap"),
        "match": ("match_layers",),
        "probe": ("ridge_probe",),
        "sharpness": ("Hessian", "loss_sharpness"),
        "single_pass": ("Measurements", "measure"),
        "verdict": ("Finding", "judge"),
        "evaluation.calibration": (
            "adaptive_calibration_error", "brier_score", "classwise_calibration_error", "expected_calibration_error",
            "reliability_curve",
        ),
        "evaluation.metrics": ("per_class_accuracy",),
        "models.inspect": (
            "as_tokens", "capture_batch", "find_blocks", "layer_gradient_norms", "watch", "watch_attention", "what_works",
        ),
    }.items()
    for name in names
}  # fmt: skip
__all__ = sorted(_PUBLIC)


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'vitling.diagnose' has no attribute {name!r}")
    return getattr(_import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
