"""Entry: a part of the settings; and the kinds of value that several parts have."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(min_length=1, max_length=128)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
ApiPath = Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./{}-]*$", max_length=256)]
Count = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Entry(BaseModel):
    """A part of the settings: keys that nobody knows are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
