"""Tests for your own methods: a check of the whole contract, and faults that a federation must
survive.
"""

from fedglean.testing.conformance import check_method

__all__ = ["check_method"]
