"""Tests of the dashboard's server."""
