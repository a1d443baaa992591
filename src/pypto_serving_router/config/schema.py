"""The JSON Schema of the fleet file, made from the classes that check it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from pypto_serving_router.config.model import Fleet


def fleet_schema() -> dict[str, Any]:
    """Describe the fleet file in JSON Schema, as far as that can: rules between fields are not in it."""
    either = [{"required": [key], "properties": {key: {"minItems": 1}}} for key in ("replicas", "hosts")]
    root = msgspec.json.schema(Annotated[Fleet, msgspec.Meta(extra_json_schema={"anyOf": either})])
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": "Fleet file of pypto-serving-router", **root}
