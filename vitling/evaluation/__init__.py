"""How good a model is: the one evaluation loop, metrics, calibration, comparison."""
