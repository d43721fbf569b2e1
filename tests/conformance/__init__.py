"""Tests of `conformance`."""
