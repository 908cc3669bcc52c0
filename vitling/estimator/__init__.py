"""The scikit-learn face: ViTClassifier and ViTRegressor."""

from vitling.estimator.classifier import ViTClassifier
from vitling.estimator.regressor import ViTRegressor

__all__ = ["ViTClassifier", "ViTRegressor"]
