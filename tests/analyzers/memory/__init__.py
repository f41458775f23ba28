"""Tests of the model of memory."""
