"""Why does a model train badly? Measurements of any checkpoint, each a function of tensors or of a model and images."""

from importlib import import_module as _import_module

from vitling import _deprecated

# The public names and the file each lives in. They load on first use, because torch takes seconds to import.
_PUBLIC = {
    name: f"vitling.{module}" if "." in module else f"vitling.diagnose.{module}"
    for module, names in {
        "attention": (
            "attention_masks", "attention_rollout", "gradient_relevance", "fold_head_tokens", "head_token_maps", "resize_masks",
        ),
        "attribution": ("grad_cam", "integrated_gradients", "relevance_map"),
        "cka": ("CkaMatrix", "cka_matrix", "hsic1", "linear_cka", "minibatch_cka"),
        "causes": ("find_causes",),
        "diagnosis": ("diagnose", "diagnose_run"),
        "evidence": ("Evidence", "gather_evidence"),
        "features": ("channel_correlation", "conv_maps", "fourier_profile", "spatial_variance", "token_maps"),
        "files": ("write_diagnosis",),
        "growth": ("LearningCurve", "fit_learning_curve"),
        "health": ("confident_mistakes", "generalisation_gap"),
        "indicator": ("Finding",),
        "label_errors": ("LabelErrors", "find_label_errors"),
        "match": ("match_layers",),
        "measurements": ("Measurements",),
        "result": ("Diagnosis",),
        "sharpness": ("Hessian", "loss_sharpness"),
        "single_pass": ("measure",),
        "suspects": ("cross_validate",),
        "verdict": ("judge",),
        "diagnose.measures.channels": ("channel_health",),
        "diagnose.measures.distance": ("attention_distance", "uniform_distance"),
        "diagnose.measures.diversity": ("head_diversity",),
        "diagnose.measures.entropy": ("attention_entropy",),
        "diagnose.measures.locality": ("local_mass",),
        "diagnose.measures.probe": ("ridge_probe",),
        "diagnose.measures.rank": ("feature_ranks",),
        "diagnose.measures.similarity": ("token_similarity",),
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
        return _deprecated.find_old_name(__name__, name, stacklevel=4)
    return _deprecated.accept_old_arguments(getattr(_import_module(_PUBLIC[name]), name), __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
