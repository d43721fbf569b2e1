"""Tests of HexSage; folders mirror the source."""
