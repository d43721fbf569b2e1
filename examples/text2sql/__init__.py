"""A text-to-SQL agent in the manner of CHESS: LangGraph, langchain-openai and SQLite.

It knows HexSage only by a base URL and a few headers; any OpenAI-compatible server will do.
"""
