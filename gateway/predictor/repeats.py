"""Repeats: prompts that keep coming word for word are answered from memory, and asked about rarely.

What is known of such a prompt changes slowly: its stage and its repeats have been looked at many
times. So of so many uses one is predicted and learned in full, as every other call is, and of more
the longer the prompt is known; the rest get the same forecast. Their lengths still count in the
statistics of their stage.
"""

from collections import OrderedDict
from dataclasses import replace

from gateway.predictor.prediction import Prediction
from gateway.predictor.query import Level, Mass, PromptQuery

FAMILIAR_AFTER = 8
"""Uses that are predicted in full before any is answered from memory."""
ONE_IN, DOUBLINGS = 16, 3
"""Of so many uses one is predicted in full at first; how often that is doubled, a time each."""
MAX_PROMPTS = 2048
PROMPT_BYTES, ECHO_BYTES = 250, 3000
"""About what one prompt takes, and its forecast: a distribution and its ticket, no text."""


class _Prompt:
    __slots__ = ("echo", "left", "uses")

    def __init__(self) -> None:
        self.uses = 0
        """That were to be predicted in full."""
        self.left = 0
        """How many more uses the echo serves."""
        self.echo: Prediction | None = None


class Repeats:
    """The prompts that were used lately. Bounded; the least recently used go first."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[int, _Prompt] = OrderedDict()
        self._echoes = 0

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return PROMPT_BYTES * len(self._prompts) + ECHO_BYTES * self._echoes

    def echo(self, key: int) -> Prediction | None:
        """Return the forecast of the same prompt a while ago; None: predict it in full."""
        prompt = self._prompts.get(key)
        if prompt is None:
            prompt = self._prompts[key] = _Prompt()
            if len(self._prompts) > MAX_PROMPTS:
                _, gone = self._prompts.popitem(last=False)
                self._echoes -= gone.echo is not None
        else:
            self._prompts.move_to_end(key)
        if prompt.left > 0:
            prompt.left -= 1
            return prompt.echo
        prompt.uses += 1
        if prompt.echo is not None:  # others that come meanwhile, or after an answer that was late
            prompt.left = ONE_IN - 1
        return None

    def known(self, key: int) -> tuple[Mass, Level] | None:
        """Return what was forecast of the same prompt, for who had no better answer in time."""
        prompt = self._prompts.get(key)
        if prompt is None or prompt.echo is None:
            return None
        return prompt.echo.ticket.mass, prompt.echo.ticket.level

    def remember(self, prediction: Prediction) -> None:
        """Keep a full forecast for the next uses, once the prompt is familiar."""
        prompt = self._prompts.get(prediction.ticket.prompt_key)
        if prompt is None:
            return
        if prompt.uses >= FAMILIAR_AFTER:
            self._echoes += prompt.echo is None
            ticket = replace(prediction.ticket, text="", is_echo=True)
            prompt.echo = Prediction(
                mass=prediction.mass, level=prediction.level, asks_more=False, ticket=ticket
            )
            prompt.left = (ONE_IN << min(prompt.uses - FAMILIAR_AFTER, DOUBLINGS)) - 1


def key_of(query: PromptQuery) -> int:
    """Return what no other prompt has but by a chance of 1 in 2^64, and 0 without a text."""
    if not query.text:
        return 0
    return hash(
        (query.text, query.model, query.stages, query.max_tokens, query.n, query.hint_tokens)
    )
