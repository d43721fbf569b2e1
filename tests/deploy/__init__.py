"""Tests of `deploy`, the image, the compose file."""
