"""Models: names, bundles, tokenizing and running; the only part that imports a runtime.

Importing this package costs nothing: each name below is loaded when it is first used (PEP 562), so that
whoever needs ``ImageConfig`` alone does not wait for numpy or ONNX Runtime.
"""

from __future__ import annotations

from clipfleet.models.config import ImageConfig, ModelConfig, TextConfig

__all__ = ["ImageConfig", "ModelConfig", "TextConfig"]
