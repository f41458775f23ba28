"""Tests of the port ledger."""
