"""DecodeBatch and StepRun: sums that move on in jumps, and the instants of steps in a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sim.batch import NOT_DECODING, DecodeBatch, Sequence, StepRun


def a_sequence(prompt_tokens: int, output_tokens: int = 50, arrival: int = 1) -> Sequence:
    """Return a sequence whose prompt is computed and whose first token is there."""
    sequence = Sequence("a", prompt_tokens, output_tokens, (), 0, arrival)
    sequence.computed = prompt_tokens
    sequence.output = 1
    return sequence


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 100)), min_size=1, max_size=6),
    st.integers(0, 60),
)
def test_blocks_needed_is_what_each_sequence_needs(
    joins: list[tuple[int, int]], steps: int
) -> None:
    batch = DecodeBatch(16)
    computed: list[int] = []
    for number, (pause, prompt_tokens) in enumerate(joins):
        batch.move_on(pause)
        computed = [tokens + pause for tokens in computed] + [prompt_tokens]
        batch.add(a_sequence(prompt_tokens, 10_000, number))

    each = [-(-(tokens + steps) // 16) - -(-tokens // 16) for tokens in computed]
    assert batch.blocks_needed(steps) == sum(each)
    assert batch.blocks_needed(1) == batch.blocks_for_next_step()
    assert batch.kv_tokens == sum(computed)


def test_a_sequence_taken_out_knows_how_far_it_came() -> None:
    batch = DecodeBatch(16)
    sequence = a_sequence(100)
    batch.move_on(7)
    batch.add(sequence)
    batch.move_on(5)

    batch.remove(sequence)

    assert (sequence.output, sequence.computed, sequence.finish_step) == (6, 105, NOT_DECODING)
    assert (batch.size, batch.kv_tokens, batch.blocks_needed(16)) == (0, 0, 0)


def test_who_is_done_comes_out_in_order_and_who_left_does_not() -> None:
    batch = DecodeBatch(16)
    gone, late, early = a_sequence(9, 4, 1), a_sequence(9, 5, 3), a_sequence(9, 5, 2)
    for sequence in (gone, late, early):
        batch.add(sequence)
    batch.remove(gone)

    assert batch.steps_to_finish() == 4
    batch.move_on(3)
    assert batch.next_done() is None
    batch.move_on(1)
    assert [batch.next_done(), batch.next_done(), batch.next_done()] == [early, late, None]


@given(
    st.integers(1, 500),
    st.floats(0.001, 0.1),
    st.floats(0, 0.001),
    st.floats(0, 1, exclude_max=True),
)
def test_done_by_inverts_after(steps: int, first_s: float, growth_s: float, share: float) -> None:
    run = StepRun(3.0, steps, first_s, growth_s, is_decode=True)
    now = 3.0 + share * (run.end - 3.0)

    done = run.done_by(now)

    assert 0 <= done < steps
    assert run.after(done) <= now + 1e-12
    assert run.after(done + 1) > now - 1e-12
    for number in range(min(steps, 40)):
        assert run.done_by(run.after(number)) == number


@pytest.mark.parametrize(
    ("now", "steps"),
    [
        pytest.param(0.0, 1, id="a step that has begun is completed"),
        pytest.param(0.15, 2, id="in the middle of a step"),
        pytest.param(0.2, 2, id="at a boundary"),
        pytest.param(0.95, 10, id="in the last step"),
    ],
)
def test_a_run_is_cut_at_the_next_boundary(now: float, steps: int) -> None:
    run = StepRun(0.0, 10, 0.1, 0.0, is_decode=True)

    run.cut_short(now)

    assert run.steps == steps
    assert run.end == pytest.approx(steps * 0.1)
