"""Tests of loadgen.workloads."""
