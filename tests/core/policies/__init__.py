"""Tests of the policies, one file a part."""
