"""Tests of `loadgen`."""
