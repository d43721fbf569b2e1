"""Engines that nobody here wrote, behind the gateway: `make test-engines` (docs/testing.md)."""
