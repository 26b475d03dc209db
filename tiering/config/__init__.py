"""The configuration: reads one file and the environment, once; nothing below sees anything but its values."""
