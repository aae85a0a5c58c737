"""Record the order in which hooks of every kind fire."""

from hookscope.recordings.record import KINDS, Event, FullBackwardHookError, Recording, record

__all__ = ["KINDS", "Event", "FullBackwardHookError", "Recording", "record"]
