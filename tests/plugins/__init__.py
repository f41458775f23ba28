"""Tests of plug-ins, a folder each."""
