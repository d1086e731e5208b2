"""The core: interfaces, messages, the round loop, records."""
