"""Tests of the capture tools."""
