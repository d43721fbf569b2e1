"""Owner: the one thread that owns the learner, fed by the event loop through bounded queues."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock, Thread
from time import perf_counter

from gateway.predictor.chore import Chore
from gateway.predictor.learner import Learner, Numbers
from gateway.predictor.query import Ended, Level, Mass, Ticket

MAX_ASKS = 64
"""More could not be answered within any useful deadline."""
MAX_OUTCOMES = 4096
BATCH = 2
"""Answered together, and told when all are worked out: with more the first would be late, too."""
PUBLISH_EVERY_S = 1.0
LULL_S = 0.02
"""How long outcomes wait for each other once one was learned: to wake the thread for each takes
longer than to learn it."""
MANY = 64
"""So many outcomes wait no longer."""
SLICE_S, PAUSE_S = 0.001, 0.00005
"""After so long a time of learning the thread steps aside, so that the event loop can run: it holds
the interpreter lock."""

Answer = tuple[Mass, Level] | None
Reply = asyncio.Future[Answer]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """What the owner last said of itself; the loop may read it at any time."""

    history_sizes: dict[str, int] = field(default_factory=dict)
    calibration: dict[str, Numbers] = field(default_factory=dict)
    nbytes: int = 0
    answer_s_p50: float = 0.0
    answer_s_p99: float = 0.0


class Owner:
    """Answers before it learns, learns before it restores; never blocks its callers.

    What is asked wakes the thread at once. An outcome wakes it if it sleeps; after it has learned
    all there are it takes no notice of more for a lull, unless they become many or all are wanted.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._asks: deque[tuple[Ticket, Reply]] = deque()
        self._outcomes: deque[tuple[Ticket, float, Ended]] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._idle: deque[Reply] = deque()
        # Locked but when there is something to wake up for. A `SimpleQueue` would do, but for this:
        # of CPython 3.11 it can wait for ever once a short timeout has passed.
        self._gate = Lock()
        self._gate.acquire()
        self._thread = Thread(target=self._run, name="hexsage-lengths", daemon=True)
        # Of ordinary priority: a nice thread that loses its core while it holds the interpreter
        # lock keeps the event loop waiting until it gets one again.
        self._helper = ThreadPoolExecutor(1, "hexsage-lengths-chores")
        self._chores = 0
        self._is_asleep = False
        """Until it is woken: an outcome has to do that."""
        self._rests_until = 0.0
        self._works_since = 0.0
        self._is_restoring = False
        self._is_closing = False
        self._has_news = False
        self._published_at = 0.0
        self.published = Published()

    def start(self) -> None:
        """Begin to work; what the journal holds is read back in the background."""
        self._learner.begin_restore()
        self._is_restoring = True
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait until what was learned is on disk."""
        self._is_closing = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)
        self._helper.shutdown(wait=True, cancel_futures=True)

    def ask(self, ticket: Ticket) -> Reply | None:
        """Ask for levels 4-5; None: too many are waiting. On an event loop."""
        if len(self._asks) >= MAX_ASKS or self._is_closing:
            return None
        reply: Reply = asyncio.get_running_loop().create_future()
        self._asks.append((ticket, reply))
        self._wake()
        return reply

    def tell(self, ticket: Ticket, tokens: float, ended: Ended) -> bool:
        """Report an outcome; false: it is dropped, too many are waiting."""
        if len(self._outcomes) >= MAX_OUTCOMES or self._is_closing:
            return False
        self._outcomes.append((ticket, tokens, ended))
        if self._is_asleep or len(self._outcomes) == MANY:
            self._wake()
        return True

    async def drained(self) -> None:
        """Wait until everything told so far is learned and nothing else is going on."""
        idle: Reply = asyncio.get_running_loop().create_future()
        self._idle.append(idle)
        self._wake()
        await idle

    def _run(self) -> None:
        while not self._is_closing:
            try:
                self._step()
            except Exception:  # one bad call must not end all predictions
                log.exception("the length predictor stumbled")
        try:
            while self._outcomes:
                self._learner.learn(*self._outcomes.popleft())
            self._learner.close()
        except Exception:
            log.exception("the length predictor did not close cleanly")

    def _step(self) -> None:
        """Do the most urgent thing, or wait for one."""
        if self._asks:
            self._answer()
        elif self._calls:
            self._calls.popleft()()
        elif self._outcomes and self._is_due():
            self._learn()
        elif self._is_restoring:
            self._is_restoring, chore = self._learner.restore_one()
            self._has_news = True
            self._hand_over(chore)
        elif self._idle and not self._chores:
            self._publish()
            _deliver([(self._idle.popleft(), None) for _ in range(len(self._idle))])
        else:
            self._wait()
        if self._has_news and perf_counter() - self._published_at >= PUBLISH_EVERY_S:
            self._publish()

    def _is_due(self) -> bool:
        """Tell whether outcomes have waited for each other long enough."""
        return (
            perf_counter() >= self._rests_until or len(self._outcomes) >= MANY or bool(self._idle)
        )

    def _learn(self) -> None:
        """Take in one outcome."""
        self._has_news, self._rests_until = True, 0.0
        try:
            self._hand_over(self._learner.learn(*self._outcomes.popleft()))
        finally:
            now = perf_counter()
            if not self._outcomes:
                self._rests_until = now + LULL_S
            elif now - self._works_since > SLICE_S:
                self._sleep(PAUSE_S)

    def _wait(self) -> None:
        left_s = self._rests_until - perf_counter()
        if left_s > 0:
            self._sleep(left_s)
            return
        self._is_asleep = True
        if not self._outcomes:  # one that came before it was said to be asleep woke nobody
            self._sleep(PUBLISH_EVERY_S if self._has_news else None)
        self._is_asleep = False

    def _sleep(self, timeout_s: float | None) -> None:
        """Let the others run until somebody wakes it: once for all that have come."""
        self._gate.acquire(timeout=-1 if timeout_s is None else timeout_s)
        self._works_since = perf_counter()

    def _wake(self) -> None:
        """Have the thread look at the queues. Any thread, after it has put something into one."""
        try:
            self._gate.release()
        except RuntimeError:
            log.debug("it was woken already")

    def _answer(self) -> None:
        batch = [self._asks.popleft() for _ in range(min(BATCH, len(self._asks)))]
        # A late one is not embedded here either: that is done when its outcome comes.
        waiting = [(ticket, reply) for ticket, reply in batch if not reply.done()]
        if not waiting:
            return
        answers: list[Answer] = [None] * len(waiting)
        try:
            answers = self._learner.answer([ticket for ticket, _ in waiting])
        finally:
            _deliver([(reply, answer) for (_, reply), answer in zip(waiting, answers, strict=True)])

    def _hand_over(self, chore: Chore | None) -> None:
        if chore is None:
            return
        self._chores += 1

        def keep() -> None:
            self._chores -= 1
            chore.keep()

        def done(future: Future[None]) -> None:
            if not future.cancelled() and future.exception() is not None:
                log.error("a chore of the length predictor failed", exc_info=future.exception())
            self._calls.append(keep)
            self._wake()

        self._helper.submit(chore.run).add_done_callback(done)

    def _publish(self) -> None:
        self._learner.flush()
        p50, p99 = self._learner.seconds()
        self.published = Published(
            self._learner.history_sizes(),
            self._learner.calibration(),
            self._learner.nbytes,
            p50,
            p99,
        )
        self._has_news, self._published_at = False, perf_counter()


def _deliver(answers: list[tuple[Reply, Answer]]) -> None:
    """Set results on the loop they belong to."""

    def set_results() -> None:
        for reply, answer in answers:
            if not reply.done():
                reply.set_result(answer)

    try:
        answers[0][0].get_loop().call_soon_threadsafe(set_results)
    except RuntimeError:
        log.debug("an answer came after its event loop had closed")
