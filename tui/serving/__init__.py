"""The dashboard in a browser of this machine: a server that lets nobody in but whom its address was shown."""
