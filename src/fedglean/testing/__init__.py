"""Tests for your own methods and models, and faults that a federation must survive."""

from fedglean.testing.conformance import CheckResult, check_method, parametrize_with_checks
from fedglean.testing.model_checks import check_model

__all__ = ["CheckResult", "check_method", "check_model", "parametrize_with_checks"]
