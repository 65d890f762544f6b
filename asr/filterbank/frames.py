"""Frame rates: features come every 10 ms, the model looks at three of them stacked, every 30 ms.

The low frame rate is that of the paper's group.
"""

from typing import Any

STACKED_FRAMES = 3


def stacked_length(frames: Any) -> Any:
    """CTC frames (30 ms) of an utterance of ``frames`` feature frames (10 ms).

    An incomplete last stack is dropped. Takes an integer or a tensor of them.
    """
    return frames // STACKED_FRAMES
