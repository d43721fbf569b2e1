"""What is wrong is said to whoever wrote it, not to whoever wrote the model."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gateway.mistakes import plainly


class Inner(BaseModel):
    """A section."""

    size: int = 1


class Thing(BaseModel):
    """One key of every kind."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern="^[a-z]*$", min_length=1)] = "a"
    kind: Literal["vllm", "tgi"] = "vllm"
    size: Annotated[int, Field(gt=0)] = 1
    share: Annotated[float, Field(le=1)] = 1.0
    works: bool = True
    parts: tuple[str, ...] = ()
    inner: Inner = Inner()
    by_name: dict[str, int] = Field(default_factory=dict)
    even: int = 0

    @field_validator("even")
    @classmethod
    def _is_even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("must be even")
        return number


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ({"sise": 1}, "is no key that HexSage knows"),
        ({"name": 8001}, "must be text; a number that is meant as text goes in quotes"),
        ({"name": ""}, "must have at least 1 character"),
        ({"name": "A"}, "must match pattern '^[a-z]*$'"),
        ({"kind": "vlm"}, "must be 'vllm' or 'tgi'"),
        ({"size": "many"}, "must be a whole number"),
        ({"size": 1.5}, "must be a whole number"),
        ({"size": None}, "must be a whole number"),
        ({"size": 0}, "must be greater than 0"),
        ({"share": "half"}, "must be a number"),
        ({"share": 2}, "must be less than or equal to 1"),
        ({"works": "yess"}, "must be true or false"),
        ({"parts": "one"}, "must be a list"),
        ({"inner": 5}, "must be a map of keys and values"),
        ({"by_name": []}, "must be a map of keys and values"),
        ({"even": 3}, "must be even"),
    ],
)
def test_it_says_what_belongs_there(wish: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Thing.model_validate(wish)

    assert [plainly(error) for error in caught.value.errors()] == [told]
