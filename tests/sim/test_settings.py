"""What a simulated replica is started with."""

from __future__ import annotations

import pytest

from pypto_serving_router.sim.settings import Settings


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (Settings(model="/models/Qwen3-14B"), "Qwen3-14B"),
        (Settings(model="/models/Qwen3-14B/"), "Qwen3-14B"),
        (Settings(model="/models/Qwen3-14B", served_model_name="qwen"), "qwen"),
    ],
)
def test_the_models_name(settings: Settings, name: str) -> None:
    """The served name, else the last part of the model's path, is the model's name in answers (spec 10)."""
    assert settings.model_name == name
