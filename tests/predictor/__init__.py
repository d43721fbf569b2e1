"""Tests of `predictor`."""
