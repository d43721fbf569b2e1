"""Tests of `parity`."""
