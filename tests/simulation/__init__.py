"""Three machines of the real code on one bucket in memory, under one scheduler: `make simulate`."""
