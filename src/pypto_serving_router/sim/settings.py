"""What a simulated replica is started with; with `Faults`, the only list of its options."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Measure = Annotated[float, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
ExitStatus = Annotated[int, Meta(ge=0, le=255)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of pypto-serving that mean something here, and the simulation's own; each field is an option."""

    model: Annotated[str, Meta(description="Path of the model; nothing is read from it.")]
    devices: Annotated[str, Meta(description="Ids of the cards, comma-separated.")] = "0"
    host: Annotated[str, Meta(description="Where to listen.")] = "0.0.0.0"  # noqa: S104 - pypto-serving's default
    port: Annotated[Port, Meta(description="Port to listen on; 0: any free one.")] = 8000
    served_model_name: Annotated[
        str | None, Meta(description="The model's name in answers, else the last part of its path.")
    ] = None
    show_startup_logs: Annotated[bool, Meta(description="Say what the load is doing.")] = False
    block_size: Annotated[Count, Meta(description="Tokens in a block of the cache.")] = 128
    max_num_seqs: Annotated[Count, Meta(description="Generations at a time; others wait.")] = 16
    enable_prefix_caching: Annotated[bool, Meta(description="Keep the prompts' blocks.")] = True

    sim_load_delay: Annotated[Measure, Meta(description="Seconds before it listens.")] = 0.0
    sim_prefill_rate: Annotated[
        Measure, Meta(description="Tokens per second of prefill, one prompt at a time; 0: at once.")
    ] = 4000.0
    sim_decode_rate: Annotated[Measure, Meta(description="Tokens per second of each generation; 0: at once.")] = 60.0
    sim_cache_blocks: Annotated[Count, Meta(description="Blocks that the cache holds.")] = 4096
    sim_stop_grace: Annotated[Measure, Meta(description="Seconds that SIGTERM leaves to open answers.")] = 1.0
    sim_fail_load: Annotated[ExitStatus | None, Meta(description="Exit with this status instead of listening.")] = None
    sim_exit_after: Annotated[
        Measure | None, Meta(description="Exit with status 1 so many seconds after the load.")
    ] = None
    sim_escape: Annotated[
        Count | None, Meta(description="Start a child in a session of its own that lives so many seconds.")
    ] = None

    @property
    def model_name(self) -> str:
        """The model's name in answers."""
        return self.served_model_name or self.model.rstrip("/").rpartition("/")[2]
