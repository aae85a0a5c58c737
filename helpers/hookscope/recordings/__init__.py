"""Write down in which order every kind of hook fired."""

from hookscope.recordings.record import KINDS, Event, FullBackwardHookError, Recording, record

__all__ = ["KINDS", "Event", "FullBackwardHookError", "Recording", "record"]
