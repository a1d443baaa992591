"""The conversations: what each user says and when, all drawn beforehand, so that every router gets the same."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

_TEXT = (
    "the of and to in is it you that he was for on are with as his they be at one have this from or had "
    "by hot but some what there we can out other were all your when up use word how said an each she"
)
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of conversation; sizes in tokens, times in seconds, ranges from and to."""

    turns: int
    system: int
    """Of its system prompt, which no other conversation has."""
    user: tuple[int, int]
    answer: tuple[int, int]
    think: tuple[float, float]
    """Between an answer and the user's next turn."""


LIGHT = Kind(turns=5, system=400, user=(150, 300), answer=(8, 16), think=(0.05, 0.5))
HEAVY = Kind(turns=6, system=1000, user=(350, 600), answer=(8, 16), think=(0.0, 0.0))
LONG = Kind(turns=6, system=3000, user=(150, 300), answer=(8, 16), think=(1.0, 4.0))
VERY_LONG = Kind(turns=8, system=9000, user=(500, 1000), answer=(8, 16), think=(0.0, 0.5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Conversations that run side by side."""

    light: Kind
    heavy: Kind
    heavy_share: float
    """Of the conversations, that many are heavy ones."""
    within: float
    """Seconds in which all of them start."""


MIXES = {
    "even": Mix(light=LIGHT, heavy=HEAVY, heavy_share=0.0, within=1.0),
    "skew": Mix(light=LIGHT, heavy=HEAVY, heavy_share=0.25, within=1.0),
    "long": Mix(light=LONG, heavy=VERY_LONG, heavy_share=0.0, within=10.0),
    "longskew": Mix(light=LONG, heavy=VERY_LONG, heavy_share=0.1, within=10.0),
}


@dataclass(slots=True)
class Conversation:
    """One user's side of a conversation."""

    index: int
    heavy: bool
    session: str
    """The id for it where the client chooses one."""
    starts_at: float
    system: str
    users: list[str]
    answers: list[int] = field(repr=False)
    """The most tokens of each answer."""
    thinks: list[float] = field(repr=False)
    home: int = 0
    """The server of the best placement."""

    @property
    def work(self) -> int:
        """What its prompts take to compute with a perfect cache, in characters."""
        return len(self.system) + sum(map(len, self.users))


def draw(mix: Mix, *, seed: str, count: int, servers: int, words_per_token: float) -> list[Conversation]:
    """Draw the conversations of one run, each with its place."""
    rng = random.Random(seed)
    order = list(range(count))
    rng.shuffle(order)
    heavy = set(order[: round(count * mix.heavy_share)])
    found = [_draw_one(mix, rng, i, heavy=i in heavy, words_per_token=words_per_token) for i in range(count)]
    _place(found, servers)
    return found


def _draw_one(mix: Mix, rng: random.Random, index: int, *, heavy: bool, words_per_token: float) -> Conversation:
    kind = mix.heavy if heavy else mix.light

    def text(tokens: float) -> str:
        return " ".join(rng.choices(_WORDS, k=int(tokens * words_per_token)))

    return Conversation(
        index=index,
        heavy=heavy,
        session=f"s-{rng.getrandbits(64):016x}",
        starts_at=rng.uniform(0, mix.within),
        system=f"{rng.getrandbits(64):016x} {text(kind.system)}",
        users=[text(rng.uniform(*kind.user)) for _ in range(kind.turns)],
        answers=[rng.randint(*kind.answer) for _ in range(kind.turns)],
        thinks=[rng.uniform(*kind.think) for _ in range(kind.turns)],
    )


def _place(conversations: Sequence[Conversation], servers: int) -> None:
    """Give each a home by what it will cost, which no router can know: the longest first, to the emptiest."""
    room = -(-len(conversations) // servers)
    load, count = [0] * servers, [0] * servers
    for one in sorted(conversations, key=lambda c: -c.work):
        one.home = min((i for i in range(servers) if count[i] < room), key=load.__getitem__)
        load[one.home] += one.work
        count[one.home] += 1
