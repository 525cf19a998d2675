"""For people who write methods: the judge of the contract, and the faults that a federation must survive."""

from fedglean.testing.conformance import check_method

__all__ = ["check_method"]
