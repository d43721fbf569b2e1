"""Where settings come from: command line, environment, file, default, in this order."""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsError,
)

from gateway.config.contradictions import contradictions
from gateway.config.settings import ENV_PREFIX, Settings
from gateway.config.yaml_file import Location, YamlFile, dotted
from gateway.mistakes import ConfigError, plainly


def load_settings(path: Path | None, overrides: Mapping[str, object] | None = None) -> Settings:
    """Return the settings, or raise ConfigError with every mistake there is."""
    document = YamlFile.read(path) if path is not None else YamlFile({}, {}, "")
    mistakes = [*document.mistakes, *_unknown_variables()]
    settings: Settings | None = None

    class Layered(Settings):
        """Settings that know the file too."""

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - there are no .env files
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - nor secret files
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            """Put the file below the environment."""
            return init_settings, env_settings, InitSettingsSource(settings_cls, document.content)

    try:
        settings = Layered.model_validate(overrides or {})
    except ValidationError as error:
        mistakes += [_told(item["loc"], plainly(item), document) for item in error.errors()]
    except SettingsError as error:
        mistakes.append(str(error))
    if settings is not None:
        mistakes += [
            _told(location, message, document) for location, message in contradictions(settings)
        ]
    if mistakes or settings is None:
        raise ConfigError(mistakes)
    return settings


def _told(location: Location, message: str, document: YamlFile) -> str:
    """Return one mistake with the place where it was made."""
    variable = _variable(location)
    if variable is not None:
        return f"{variable}: {message}"
    line = document.line_of(location)
    place = f"{document.name}:{line}: " if line else ""
    return f"{place}{dotted(location)}: {message}"


def _variable(location: Location) -> str | None:
    """Return the environment variable that set a value, if one did."""
    name = ENV_PREFIX + "__".join(str(part) for part in location).upper()
    present = {variable.upper() for variable in os.environ}
    return name if name in present else None


def _unknown_variables() -> list[str]:
    known = set(Settings.model_fields)
    return [
        f"{variable}: is no setting that HexSage knows"
        for variable in sorted(os.environ)
        if variable.upper().startswith(ENV_PREFIX)
        and variable[len(ENV_PREFIX) :].lower().partition("__")[0] not in known
    ]
