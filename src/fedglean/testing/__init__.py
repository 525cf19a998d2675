"""Tests for your own methods: the whole contract, and faults that a federation must survive."""

from fedglean.testing.conformance import CheckResult, check_method, parametrize_with_checks

__all__ = ["CheckResult", "check_method", "parametrize_with_checks"]
