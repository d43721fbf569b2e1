"""HexSage: an OpenAI-compatible gateway that schedules agent workflows over mixed GPUs."""

__version__ = "0.1.0"
