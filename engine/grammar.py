"""What constrains the tokens of one request, as the sampler asks it. Torch-free when imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Grammar(Protocol):
    """The state of one grammar in one output. Neither method raises: both run in everybody's step."""

    error: str | None
    """Why the output could not be held to the grammar; the request fails with it when it ends."""

    def mask(self, row: Tensor) -> None:
        """Set the logits of tokens that may not come next to ``-inf``, in place.

        Args:
            row: float32 ``[vocabulary]`` on the model's device; a model may have more rows than its tokenizer tokens.
        """
        ...

    def accept(self, token: int) -> None:
        """Take the token that was chosen, an end id included."""
        ...
