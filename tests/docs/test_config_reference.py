"""docs/configuration.md says what the settings classes say."""

import pytest
from pydantic import BaseModel, Field

from gateway.config.settings import Settings
from gateway.config.sources import load_settings
from tools.config_reference import PAGE, Key, page, sections, sections_of


def test_the_page_is_what_the_classes_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tools.config_reference"


def test_every_key_has_a_meaning() -> None:
    silent = [
        f"{section.place}.{key.name}"
        for section in sections()
        for key in section.keys
        if not key.meaning
    ]

    assert silent == [], "say it in a docstring below the key in gateway/config"


def test_every_field_there_is_stands_on_the_page() -> None:
    (top, *_) = sections()
    assert len(top.keys) == len(Settings.model_fields)
    places = {section.place for section in sections()}
    assert {"backends[]", "backends[].tls", "models.<name>.timeouts", "queue"} <= places


def test_variables_set_what_they_are_said_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXSAGE_QUEUE__MAX_REQUESTS", "7")
    monkeypatch.setenv("HEXSAGE_BACKENDS", '[{"name": "a", "url": "http://127.0.0.1:8001"}]')
    said = {key.variable for section in sections() for key in section.keys}

    settings = load_settings(None)

    assert {"HEXSAGE_QUEUE__MAX_REQUESTS", "HEXSAGE_BACKENDS"} <= said
    assert settings.queue.max_requests == 7
    assert settings.backends[0].name == "a"


class _Inner(BaseModel):
    """Something inside.

    More of it.
    """

    size_s: float = 1.5
    """Said
    over two lines."""


class _Outer(BaseModel):
    """Something."""

    many: tuple[_Inner, ...] = ()
    named: dict[str, _Inner] = Field(default_factory=dict, description="By their names.")
    bounded: int | None = Field(default=None, gt=0)
    """At least one."""


def test_types_defaults_and_places_are_in_words() -> None:
    outer, many, named = sections_of(_Outer, "", "P_", "All.")

    assert [section.place for section in (outer, many, named)] == ["", "many[]", "named.<name>"]
    assert many.meaning == "Something inside."
    assert named.meaning == "By their names."
    assert many.keys == (
        Key(
            name="size_s",
            type="number",
            default="`1.5`",
            meaning="Said over two lines.",
            variable="",
        ),
    )
    assert outer.keys[0].variable == "P_MANY"
    assert outer.keys[2].type == "whole number or nothing"
