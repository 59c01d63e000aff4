from __future__ import annotations

import signal

# A run in the background of a shell starts with SIGINT ignored, and so would every command that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
