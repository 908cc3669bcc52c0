"""The scikit-learn face of vitling."""

from vitling.estimator.classifier import ViTClassifier

__all__ = ["ViTClassifier"]
