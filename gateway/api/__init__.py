"""The door: OpenAI's API as raw ASGI handlers, everything else as FastAPI routes.

A refusal or a failing engine becomes a status in one place, `errors`. Nothing here decides who
runs where.
"""
