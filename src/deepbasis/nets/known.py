# SPDX-License-Identifier: Apache-2.0
"""Numbers that a model file may hold."""

from typing import Any

import torch
from torch import Tensor, nn


class Known(nn.Module):
    """Buffers that do not exist until they are set or loaded."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.register_buffer(name, None)

    def store(self, **values: Tensor | float | None) -> None:
        """Set some of them; None forgets them."""
        for name, value in values.items():
            setattr(self, name, None if value is None else torch.as_tensor(value).float())

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Make room for what a file holds."""
        for name in self._buffers:
            if (stored := state_dict.get(prefix + name)) is not None:
                setattr(self, name, torch.empty_like(stored))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
